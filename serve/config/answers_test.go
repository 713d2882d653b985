package config

import (
	"testing"

	"tandem/engine/executor"
	"tandem/engine/tokenizer/chat"
)

func TestFormatOfAnswers(t *testing.T) {
	own := chat.Format{Calls: chat.Hermes, Thought: chat.MarkedThought}
	for yaml, want := range map[string]chat.Format{
		"": own,
		"{tool_parser: none, reasoning_parser: none}":           {Calls: chat.NoCalls},
		"{tool_parser: mistral, reasoning_parser: deepseek-r1}": {Calls: chat.Mistral, Thought: chat.FirstThought},
		"{tool_parser: auto, reasoning_parser: qwen3}":          own,
	} {
		w, _, err := loadWorker(t, executor.Mixed, yaml)
		if err != nil {
			t.Errorf("%s: %v", yaml, err)
		} else if got := w.Format(own); got != want {
			t.Errorf("%s: %+v", yaml, got)
		}
	}
}
