package config

import (
	"maps"
	"slices"

	"tandem/engine/tokenizer/chat"
)

// byTemplate lets the model's chat template say how the parts of its answers are marked.
const byTemplate = "auto"

// thoughts are the other values of reasoning_parser.
var thoughts = map[string]chat.Thought{"none": chat.NoThought, "qwen3": chat.MarkedThought, "deepseek-r1": chat.FirstThought}

func reasoningParsers() []string {
	return append([]string{byTemplate}, slices.Sorted(maps.Keys(thoughts))...)
}

func toolParsers() []string {
	out := []string{byTemplate}
	for _, f := range chat.CallFormats {
		out = append(out, string(f))
	}
	return out
}

// Format is how the parts of answers to chats are marked, where the model's template says own.
func (w Worker) Format(own chat.Format) chat.Format {
	if w.ToolParser != byTemplate {
		own.Calls = chat.CallFormat(w.ToolParser)
	}
	if thought, ok := thoughts[w.ReasoningParser]; ok {
		own.Thought = thought
	}
	return own
}
