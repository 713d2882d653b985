package worker

import (
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tokenizer/chat"
	"tandem/serve/openai"
)

// format is how the answer's parts are marked. Only chats have parts, and an answer that is confined to a structure has none
// but the calls that it is confined to.
func (j *job) format() chat.Format {
	q := j.wire
	f := chat.Format{Calls: chat.NoCalls}
	switch {
	case q.Endpoint != openai.Chat:
	case q.Forced != nil && q.Forced.Function != "":
		f.Calls = chat.OneCall
	case q.Forced != nil:
		f.Calls = chat.AnyCalls
	case q.Guided == nil:
		if f.Thought = j.Format.Thought; q.Tools != nil && j.Format.Calls != "" {
			f.Calls = j.Format.Calls
		}
	}
	return f
}

// markers are the special tokens of the model that mark parts of the answer.
func (j *job) markers() (ids []int32) {
	for _, m := range j.format().Marks() {
		if id, ok := j.Tokenizer.ID(m); ok && j.Tokenizer.IsSpecial(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// divider divides the text of one choice. The nil divider leaves it whole.
type divider struct {
	j      *job
	choice int
	parser *chat.Parser
}

// divide makes the divider of a choice, which has heard of the tokens that the client has.
func (j *job) divide(choice int) *divider {
	f := j.format()
	if f == (chat.Format{Calls: chat.NoCalls}) {
		return nil
	}
	o := chat.ParserOptions{Format: f, Tools: j.wire.Tools, MaxCalls: j.wire.MaxCalls, Thinks: j.thinks()}
	if j.wire.Forced != nil {
		o.Function = j.wire.Forced.Function
	}
	d := &divider{j: j, choice: choice, parser: chat.NewParser(o)}
	if shown := j.shown(choice); len(shown) > 0 {
		text := runner.TextOf(j.Tokenizer, j.req)
		for _, t := range shown {
			s, _ := text.Push(t.ID)
			d.parser.Push(s)
		}
	}
	return d
}

// thinks tells whether the prompt has opened the model's reasoning. A gen worker has ids alone, whose text tells as well.
func (j *job) thinks() bool {
	const tail = 16 // tokens, of which the marker and the white space behind it may consist
	if d := j.wire.Disagg; d != nil && d.ResolvedThinking != nil {
		return *d.ResolvedThinking
	}
	p := j.req.Prompt
	return chat.Thinks(j.Tokenizer.Decode(p[max(0, len(p)-tail):], false))
}

// next divides more text. The last one ends the answer.
func (d *divider) next(out *openai.Delta, text string, last bool) {
	if d == nil {
		out.Text = text
		return
	}
	a := d.parser.Push(text)
	d.add(out, &a)
	if last {
		a = d.parser.Close()
		d.add(out, &a)
	}
}

func (d *divider) add(out *openai.Delta, a *chat.Answer) {
	out.Reasoning += a.Reasoning
	out.Text += a.Content
	for _, c := range a.Calls {
		if n := len(out.Calls); n > 0 && c.Name == "" && out.Calls[n-1].Index == c.Index {
			out.Calls[n-1].Arguments += c.Arguments
			continue
		}
		call := openai.ToolCallDelta{Index: c.Index, Name: c.Name, Arguments: c.Arguments}
		if c.Name != "" {
			call.ID = openai.ToolCallID(d.j.id, d.choice, c.Index)
		}
		out.Calls = append(out.Calls, call)
	}
}

// finish is how the choice ended, as clients are told: with calls, if it has any and came to its end.
func (d *divider) finish(f request.Finish) string {
	if d != nil && d.parser.Calls() > 0 && f == request.FinishStop {
		return openai.FinishToolCalls
	}
	return string(f)
}

// message makes a whole answer of a divided one.
func message(d *openai.Delta) *openai.Message {
	m := &openai.Message{Role: "assistant", Content: &d.Text, ReasoningContent: d.Reasoning}
	for _, c := range d.Calls {
		if c.Name != "" {
			m.ToolCalls = append(m.ToolCalls, openai.ToolCall{ID: c.ID, Type: "function", Function: openai.FunctionCall{Name: c.Name}})
		}
		m.ToolCalls[len(m.ToolCalls)-1].Function.Arguments += c.Arguments
	}
	if d.Text == "" && len(m.ToolCalls) > 0 {
		m.Content = nil
	}
	return m
}
