package disagg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"tandem/serve/openai"
	"tandem/serve/trace"
)

// maxHeldBytes bounds comments that wait for the first event.
const maxHeldBytes = 64 << 10

// drainWait bounds the wait for the end of a worker's finished answer.
const drainWait = 250 * time.Millisecond

// relay passes a gen worker's stream on, event by event.
type relay struct {
	s      *Server
	l      *leg
	g      *genAttempt
	events *openai.EventReader
	held   []byte // comments and roles before the first token: one write less on its way, and they could rule out another attempt
	begun  bool   // the worker has its time for each event, and no longer the request's
}

// run relays until [DONE]. An error before the first event leaves the client's answer unbegun, but for an early first
// delta; afterwards g.out.relayed is set.
func (r *relay) run() *legError {
	l, g := r.l, r.g
	if !l.isStream() {
		return l.fail(faultReply, upstream("the worker answered without a stream where one was asked for"), nil)
	}
	if g.h != nil && g.h.early && !g.out.early {
		if err := r.emitFirst(); err != nil {
			return r.clientGone(err)
		}
	}
	r.events = openai.NewEventReader(l.body, 0)
	for {
		event, err := r.events.Next()
		if err != nil {
			return r.readError(err)
		}
		data, ok := openai.EventData(event)
		if !ok {
			if err := errors.Join(r.comment(event), r.flush()); err != nil {
				return r.clientGone(err)
			}
			r.await()
			continue
		}
		if e := eventError(data); e != nil {
			return l.fail(faultStatus, e, nil)
		}
		text := bytes.TrimSpace(data)
		finished := string(text) == "[DONE]"
		if !finished && !(bytes.HasPrefix(text, []byte("{")) && bytes.HasSuffix(text, []byte("}"))) {
			return l.fail(faultReply, upstream("the worker sent an event that is no JSON object"), nil)
		}
		if finished && !g.out.started() {
			return l.fail(faultReply, upstream("the worker's stream has no events"), nil)
		}
		l.timer.Stop() // a slow client is not a slow worker
		if lerr := r.gate(data, finished); lerr != nil {
			return lerr
		}
		if finished && r.s.cfg.ReturnPerf {
			now := r.s.now()
			event = fmt.Appendf(nil, ": %s: %s\n\n%s", trace.HeaderTiming, g.p.trip.serverTiming(g.p.Arrived, now), event)
		}
		if finished {
			g.out.ends()
		}
		if err := r.event(event, data); err != nil {
			return r.clientGone(err)
		}
		if finished {
			if err := g.out.events.Flush(); err != nil {
				return r.clientGone(err)
			}
			r.drain()
			return nil
		}
		if !g.out.relayed { // only the role of a chat: the first token has the request's time
			l.timer.Reset(max(1, g.p.Deadline.Sub(r.s.now())))
			continue
		}
		l.why.Store(&errIdle)
		r.begun = true
		r.await()
	}
}

// await gives the worker its time for another event. Parts of one give it none: it could send them for ever.
func (r *relay) await() {
	if r.begun {
		r.l.timer.Reset(r.s.cfg.StreamIdle)
	}
}

// drain reads what follows [DONE], the end of the body, so that the worker sees its answer taken and not a cut
// connection.
func (r *relay) drain() {
	r.l.timer.Reset(drainWait)
	_, _ = io.Copy(io.Discard, io.LimitReader(r.l.body, maxErrorBytes))
}

// comment relays a comment, or keeps it until the answer has begun.
func (r *relay) comment(event []byte) error {
	if text, ok := isTiming(event); ok {
		r.g.p.trip.timing(r.l.role, text)
		return nil
	}
	if choice, ids, ok := openai.IDsComment(event); ok && r.g.ids {
		r.g.out.have.told(choice, ids) // for resume, and not for the client
		return nil
	}
	if r.g.out.relayed {
		return r.g.out.raw(event)
	}
	if len(r.held)+len(event) <= maxHeldBytes {
		r.held = append(r.held, event...)
	}
	return nil
}

// event relays one event, rewriting its usage if it has one.
func (r *relay) event(event, data []byte) error {
	out, first := r.g.out, !r.g.out.relayed
	choice := 0
	if r.g.p.Req.N > 1 || r.g.resume {
		if choice = eventOf(data); choice >= 0 && out.have.at(choice).finished {
			out.have.at(choice).waiting = nil
			return r.flush() // a worker that goes on, with others or for the counts, tells its end again
		}
	}
	if first {
		r.l.first = r.s.now().Sub(r.l.started)
		roleOnly := r.g.p.Req.Endpoint == openai.Chat && isRoleOnly(data)
		if roleOnly && out.roles[choice] {
			return nil // it went out with the early delta
		}
		if roleOnly && len(r.held)+len(event) <= maxHeldBytes {
			r.held = append(r.held, event...) // with the first token: until then another attempt may answer
			return nil
		}
		out.relayed = true
	}
	if r.g.p.trip.first.IsZero() {
		r.g.p.trip.first = r.s.now()
	}
	r.g.h.settle(r.s)
	event = r.flushHeld(event)
	if hasUsage(data) {
		event = r.withUsage(event, data)
	}
	if err := r.put(event); err != nil {
		return err
	}
	out.have.sent(choice, data)
	return nil
}

// put sends an event, or keeps it if another has arrived already: that goes out with it, in one write.
func (r *relay) put(event []byte) error {
	if r.events.More() {
		return r.g.out.hold(event)
	}
	return r.g.out.raw(event)
}

// flush sends what waits unless more has arrived: that goes out with it, in one write.
func (r *relay) flush() error {
	if r.events.More() {
		return nil
	}
	return r.g.out.events.Flush()
}

// flushHeld puts comments that waited before the event.
func (r *relay) flushHeld(event []byte) []byte {
	if len(r.held) == 0 {
		return event
	}
	event = append(r.held, event...)
	r.held = nil
	return event
}

// withUsage returns the event with the ctx worker's counts. An event that cannot be parsed passes as it is.
func (r *relay) withUsage(event, data []byte) []byte {
	body, err := openai.ParseBody(data)
	if err != nil {
		return event
	}
	usage, changed, err := rewriteUsage(&body, r.g.ctxUsage())
	if usage != nil && err == nil {
		r.g.out.usage = usage
		r.l.tokens = usage.CompletionTokens
	}
	if err != nil || !changed {
		return event
	}
	return replaceData(event, body.AppendJSON(nil))
}

// replaceData puts other data into an event and keeps its comments and other fields.
func replaceData(event, data []byte) []byte {
	out := make([]byte, 0, len(event)+64)
	put := false
	for line := range bytes.Lines(event) {
		if !bytes.HasPrefix(line, []byte("data:")) {
			out = append(out, line...)
			continue
		}
		if !put {
			out = append(append(out, "data: "...), data...)
			out = append(out, '\n')
			put = true
		}
	}
	return out
}

// openings are the usual forms of a chat's opening delta. Inside a string their quotes would be escaped.
var openings = [][]byte{[]byte(`"delta":{"role":"assistant"}`), []byte(`"delta":{"role":"assistant","content":""}`)}

// isRoleOnly recognises a chat stream's opening event, which says only who speaks.
func isRoleOnly(data []byte) bool {
	if !bytes.Contains(data, []byte(`"role"`)) {
		return false
	}
	if bytes.Count(data, []byte(`"delta"`)) == 1 && bytes.Count(data, []byte(`"finish_reason"`)) == 1 && bytes.Contains(data, []byte(`"finish_reason":null`)) {
		for _, form := range openings {
			if bytes.Contains(data, form) {
				return true
			}
		}
	}
	var chunk struct {
		Choices []struct {
			Delta        map[string]json.RawMessage `json:"delta"`
			FinishReason *string                    `json:"finish_reason"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &chunk) != nil || len(chunk.Choices) != 1 || chunk.Choices[0].FinishReason != nil {
		return false
	}
	delta := chunk.Choices[0].Delta
	if _, ok := delta["role"]; !ok {
		return false
	}
	for name, raw := range delta {
		if name != "role" && string(raw) != `""` && string(raw) != "null" {
			return false
		}
	}
	return true
}

// statusOf is the status that an error event would have had as an answer.
var statusOf = map[string]int{
	openai.TypeInvalidRequest: http.StatusBadRequest, openai.TypeOverloaded: http.StatusTooManyRequests,
	openai.TypeUnavailable: http.StatusServiceUnavailable, openai.TypeTimeout: http.StatusGatewayTimeout,
	openai.TypeCancelled: openai.StatusClientClosed, openai.TypeInternal: http.StatusInternalServerError,
}

// eventError reads an error event, nil if the event is none.
func eventError(data []byte) *openai.Error {
	if !bytes.HasPrefix(data, []byte(`{"error"`)) {
		return nil
	}
	e := openai.ParseError(http.StatusBadGateway, nil, data)
	if status, ok := statusOf[e.Type]; ok {
		e.Status = status
	}
	return e
}

func (r *relay) readError(err error) *legError {
	switch {
	case errors.Is(err, openai.ErrEventTooLong):
		return r.l.fail(faultReply, upstream("the worker sent an event that is too long"), err)
	case errors.Is(err, io.EOF) && r.l.ctx.Err() == nil:
		kind := faultBroken
		if !r.g.out.relayed {
			kind = faultRace // the headers came and then nothing: as good as no answer
		}
		return r.l.fail(kind, upstream("the stream ended without [DONE]"), err)
	}
	return r.l.broken(err)
}

func (r *relay) clientGone(err error) *legError {
	return r.l.fail(faultGone, openai.NewError(openai.StatusClientClosed, "cancelled", "the client closed the connection"), err)
}
