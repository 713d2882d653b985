package disagg

import (
	"encoding/json"
	"errors"

	"tandem/serve/openai"
	"tandem/serve/trace"
)

// skipGen answers from the ctx reply alone: the first token ended the request.
func (s *Server) skipGen(p *RoutePlan, h *handoff, out *client) error {
	s.obs.Happened(EventGenSkipped, skipLabel(h.finish))
	p.Path = PathCtxOnly
	out.route(h.id, PathCtxOnly, h.instance.ID, "", h.route)
	usage := openai.NewUsage(h.usage.PromptTokens, h.usage.CompletionTokens, h.usage.Cached())
	out.usage, p.trip.first = &usage, p.trip.ctxDone
	if p.Req.Stream {
		return s.skipStream(p, h, out, usage)
	}
	if s.cfg.ReturnPerf {
		out.w.Header().Set(trace.HeaderTiming, p.trip.serverTiming(p.Arrived, s.now()))
	}
	body := h.body.Clone()
	stripInternal(&body, p.Req.ReturnTokenIDs)
	return out.whole(body.AppendJSON(nil))
}

// skipLabel keeps the metric's label set closed.
func skipLabel(finish string) string {
	switch finish {
	case openai.FinishStop, openai.FinishLength, openai.FinishToolCalls, openai.FinishFilter:
		return finish
	}
	return "other"
}

// skipStream makes a complete, valid stream of a ctx reply: role, content, finish reason, usage, [DONE].
func (s *Server) skipStream(p *RoutePlan, h *handoff, out *client, usage openai.Usage) error {
	e := p.Req.Endpoint
	enc := openai.NewChunks(e, h.replyID(e, p.RequestID), h.model, h.created(s))
	for i := range h.choices {
		if err := h.skipChoice(p, out, enc, i, usage); err != nil {
			return err
		}
	}
	if p.Req.IncludeUsage {
		if err := out.data(enc.AppendUsage(nil, usage)); err != nil {
			return err
		}
	}
	if s.cfg.ReturnPerf {
		if err := out.events.Comment(trace.HeaderTiming + ": " + p.trip.serverTiming(p.Arrived, s.now())); err != nil {
			return errors.Join(errClientGone, err)
		}
	}
	return out.done()
}

// skipChoice sends all of one choice.
func (h *handoff) skipChoice(p *RoutePlan, out *client, enc *openai.Chunks, i int, usage openai.Usage) error {
	e, choice := p.Req.Endpoint, &h.choices[i]
	if e == openai.Chat {
		if err := out.data(enc.AppendRole(nil, i)); err != nil {
			return err
		}
	}
	content := openai.Delta{Choice: i, Text: choiceText(e, choice)}
	final := openai.Delta{Choice: i, Finish: finishOf(h.choices[i : i+1])}
	if raw, ok := choice.Get("logprobs"); ok && string(raw) != "null" && p.Req.Logprobs >= 0 {
		content.Logprobs = raw
	}
	if raw, ok := choice.Get("token_ids"); ok {
		_ = json.Unmarshal(raw, &content.TokenIDs) // absent or foreign: no ids
	}
	if p.Req.ContinuousUsage {
		content.Usage, final.Usage = &usage, &usage
	}
	delta, hasDelta := deltaOf(choice)
	switch {
	case hasDelta:
		if err := out.data(enc.AppendRelayed(nil, delta, content)); err != nil {
			return err
		}
	case content.Text != "":
		if err := out.data(enc.AppendDelta(nil, content)); err != nil {
			return err
		}
	default:
		// A token without text, such as an end of sequence, still has its entry.
		final.Logprobs, final.TokenIDs = content.Logprobs, content.TokenIDs
	}
	return out.data(enc.AppendDelta(nil, final))
}

// deltaOf returns the message's parsed form where plain text would lose something, such as a tool call.
func deltaOf(choice *openai.Body) (json.RawMessage, bool) {
	raw, ok := choice.Get("message")
	if !ok {
		return nil, false
	}
	msg, err := openai.ParseBody(raw)
	if err != nil {
		return nil, false
	}
	rich := false
	for _, name := range msg.Names() {
		val, _ := msg.Get(name)
		switch {
		case name == "role" || string(val) == "null" || string(val) == "[]":
			msg.Delete(name)
		case name == "tool_calls":
			msg.Set(name, numbered(val))
			rich = true
		case name != "content":
			rich = true
		}
	}
	return msg.AppendJSON(nil), rich
}

// numbered gives a message's calls the index that those of a delta have.
func numbered(raw json.RawMessage) json.RawMessage {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return raw
	}
	for i := range list {
		if call, err := openai.ParseBody(list[i]); err == nil {
			call.Set("index", number(i))
			list[i] = call.AppendJSON(nil)
		}
	}
	return joinList(list)
}

// choiceText is the choice's text, "" if it has none.
func choiceText(e openai.Endpoint, choice *openai.Body) (text string) {
	raw, _ := choice.Get("text")
	if e == openai.Chat {
		var msg struct {
			Content *string `json:"content"`
		}
		raw, _ = choice.Get("message")
		if json.Unmarshal(raw, &msg) != nil || msg.Content == nil {
			return ""
		}
		return *msg.Content
	}
	_ = json.Unmarshal(raw, &text) // not a string: no text
	return text
}

// replyID and created repeat what the ctx worker put into its reply.
func (h *handoff) replyID(e openai.Endpoint, requestID string) string {
	var id string
	if raw, ok := h.body.Get("id"); ok && json.Unmarshal(raw, &id) == nil && id != "" {
		return id
	}
	return openai.ReplyID(e, requestID)
}

func (h *handoff) created(s *Server) int64 {
	var created int64
	if raw, ok := h.body.Get("created"); ok && json.Unmarshal(raw, &created) == nil && created > 0 {
		return created
	}
	return openai.Created(h.id, s.now())
}
