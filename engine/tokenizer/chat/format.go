package chat

import "strings"

// CallFormat names how a model writes the functions that it calls.
type CallFormat string

// The formats of calls. The last two are not models' own: the answer is confined to them.
const (
	NoCalls   CallFormat = "none"
	Hermes    CallFormat = "hermes"      // <tool_call>{"name": …, "arguments": {…}}</tool_call>, or a list between the tags
	Llama3    CallFormat = "llama3_json" // the answer is {"name": …, "parameters": {…}}
	Mistral   CallFormat = "mistral"     // [TOOL_CALLS] and a list as of Hermes, or name[ARGS]{…}
	QwenCoder CallFormat = "qwen3_coder" // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>

	AnyCalls CallFormat = "calls"     // the answer is a list of {"name": …, "parameters": {…}}
	OneCall  CallFormat = "arguments" // the answer is the arguments of a function that is known
)

// CallFormats are those that a model may have.
var CallFormats = []CallFormat{NoCalls, Hermes, Llama3, Mistral, QwenCoder}

// Thought tells where a model's reasoning stands.
type Thought uint8

// The places.
const (
	NoThought     Thought = iota // it has none, or it is text like all other
	MarkedThought                // between <think> and </think>, of which the prompt may have the first
	FirstThought                 // from the start to </think>
)

// The markers of reasoning.
const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

const (
	callOpen   = "<tool_call>"
	callClose  = "</tool_call>"
	pythonTag  = "<|python_tag|>"
	mistralTag = "[TOOL_CALLS]"
	coderOpen  = "<function="
)

// Format is how the parts of an answer that are not its text are marked.
type Format struct {
	Calls   CallFormat
	Thought Thought
}

// formatOf reads the format off a template: a model writes what its template shows it.
func formatOf(source string) Format {
	f := Format{Calls: NoCalls}
	has := func(s string) bool { return strings.Contains(source, s) }
	switch {
	case has(coderOpen) && has("<parameter="):
		f.Calls = QwenCoder
	case has(callOpen):
		f.Calls = Hermes
	case has(mistralTag):
		f.Calls = Mistral
	case has("<|start_header_id|>") && has(`"parameters"`):
		f.Calls = Llama3
	}
	if has(thinkOpen) || has(thinkClose) {
		f.Thought = MarkedThought
	}
	return f
}

// Format is what the template says of the model's answers.
func (t *Template) Format() Format { return t.format }

// Marks are the texts that set the parts off. A tokenizer may have them as special tokens, which are then to be part of the
// text that a Parser gets.
func (f Format) Marks() (marks []string) {
	switch f.Calls {
	case Hermes, QwenCoder:
		marks = []string{callOpen, callClose}
	case Llama3:
		marks = []string{pythonTag}
	case Mistral:
		marks = []string{mistralTag, "[ARGS]", "[CALL_ID]"}
	}
	if f.Thought != NoThought {
		marks = append(marks, thinkOpen, thinkClose)
	}
	return marks
}

// markers are the texts that end the content.
func (c CallFormat) markers() []string {
	switch c {
	case Hermes:
		return []string{callOpen}
	case QwenCoder:
		return []string{callOpen, coderOpen}
	case Mistral:
		return []string{mistralTag}
	}
	return nil
}

// Thinks tells whether a prompt leaves the model in the midst of its reasoning.
func Thinks(promptEnd string) bool {
	return strings.HasSuffix(strings.TrimRight(promptEnd, white), thinkOpen)
}
