package disagg

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// journey is what is known of one request: its times and who took part. Legs that are repeated overwrite what they said.
type journey struct {
	id       int64 // of the last attempt, 0 = none
	ctx, gen discovery.Instance
	attempts int    // of both legs
	ctxRoute string // the workers' receipts: on which rank, and why
	genRoute string
	prompt   openai.Usage // as the ctx worker counts

	ctxSent, ctxDone time.Time
	genSent          time.Time
	first            time.Time // the client could have its first token
	finished         time.Time
	ctxStages        []trace.Stage // as the workers tell them
	genStages        []trace.Stage

	status  int
	outcome string // finish reason, or the error's type
	tokens  Tokens
}

// sent notes that an attempt of a leg goes out.
func (j *journey) sent(role discovery.Role, in discovery.Instance, id int64, now time.Time) {
	j.id = id
	j.attempts++
	if role == discovery.Context {
		j.ctx, j.ctxSent, j.ctxDone = in, now, time.Time{}
		return
	}
	j.gen, j.genSent = in, now
}

// answered reads what the headers of a worker's answer tell.
func (j *journey) answered(role discovery.Role, h http.Header) {
	if role == discovery.Context {
		j.ctxRoute = h.Get(openai.HeaderRoute)
	} else {
		j.genRoute = h.Get(openai.HeaderRoute)
	}
	j.timing(role, h.Get(trace.HeaderTiming))
}

// handed notes what a ctx reply tells.
func (j *journey) handed(h *handoff) { j.id, j.prompt = h.id, h.usage }

// timing reads a worker's stages.
func (j *journey) timing(role discovery.Role, text string) {
	switch {
	case text == "":
	case role == discovery.Context:
		j.ctxStages = trace.ParseServerTiming(text)
	default:
		j.genStages = trace.ParseServerTiming(text)
	}
}

// end notes how the request ended.
func (j *journey) end(ctx context.Context, now time.Time, out *client, err error) {
	j.finished, j.status, j.tokens = now, out.status, tokensOf(out.usage)
	if out.usage == nil { // a stream whose client wants no usage, or one that broke
		j.tokens = Tokens{Prompt: j.prompt.PromptTokens, Cached: j.prompt.Cached(), Completion: out.have.count()}
	}
	switch {
	case err == nil:
		j.outcome = "ok"
	case out.status == openai.StatusClientClosed || clientLeft(ctx):
		j.outcome = "client_closed"
	default:
		j.outcome = "error"
		var oe *openai.Error
		var le *legError
		if errors.As(err, &le) {
			oe = le.err
		}
		if oe != nil || errors.As(err, &oe) {
			j.outcome = oe.Type
		}
	}
}

// timeline divides the request's time as the frontend alone sees it.
func (j *journey) timeline(arrived time.Time) *trace.Timeline {
	tl := &trace.Timeline{Start: arrived}
	tl.Add("route", j.firstSent())
	tl.Add("ctx", j.ctxDone)
	tl.Add("kv_wait", j.genSent)
	tl.Add("gen", j.first)
	tl.Add("decode", j.finished)
	return tl
}

func (j *journey) firstSent() time.Time {
	if j.ctxSent.IsZero() || !j.genSent.IsZero() && j.genSent.Before(j.ctxSent) {
		return j.genSent
	}
	return j.ctxSent
}

// serverTiming is what a client is told. Unlike the stages of a record these may overlap: ttft contains what is before it.
func (j *journey) serverTiming(arrived, now time.Time) string {
	var out []trace.Stage
	add := func(name string, from, to time.Time) {
		if !from.IsZero() && to.After(from) {
			out = append(out, trace.Stage{Name: name, Took: to.Sub(from)})
		}
	}
	worker := func(name string, list []trace.Stage, of string) {
		for _, s := range list {
			if s.Name == of {
				out = append(out, trace.Stage{Name: name, Took: s.Took})
			}
		}
	}
	add("route", arrived, j.firstSent())
	add("ctx", j.ctxSent, j.ctxDone)
	worker("ctx_queue", j.ctxStages, "queue")
	worker("prefill", j.ctxStages, "prefill")
	if j.ctxSent.IsZero() { // one worker ran all of it
		worker("prefill", j.genStages, "prefill")
	}
	worker("transfer", j.genStages, "transfer")
	worker("gen_queue", j.genStages, "queue")
	add("ttft", arrived, j.first)
	if j.first.IsZero() { // one piece: the gen worker alone knows
		worker("decode", j.genStages, "decode")
	} else {
		add("decode", j.first, now)
	}
	return trace.ServerTiming(out)
}

// decimalID is the text of an id, "" for none: ids do not fit a double.
func decimalID(id int64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatInt(id, 10)
}

// ended gives a finished request to whoever keeps records.
func (s *Server) ended(ctx context.Context, p *RoutePlan, out *client, err error) {
	p.trip.end(ctx, s.now(), out, err)
	p.endSpan()
	s.logRequest(ctx, p)
	s.captureRequest(p)
	s.perf.add(p)
}

// describe tells the span of a leg what it is about.
func (l *leg) describe(c *call) {
	if l.span == nil {
		return
	}
	l.span.Text("server.address", c.inst.ID)
	l.span.Text("tandem.disagg_request_id", decimalID(c.id))
}

// endSpan ends the request's own span, with what its record would say.
func (p *RoutePlan) endSpan() {
	span, j := p.link.Span, &p.trip
	if span == nil {
		return
	}
	span.Text("tandem.request_id", p.RequestID)
	span.Text("tandem.disagg_request_id", decimalID(j.id))
	span.Text("tandem.path", string(p.Path))
	span.Text("tandem.outcome", j.outcome)
	span.Int("http.response.status_code", j.status)
	span.Int("tandem.attempts", j.attempts)
	span.Int("gen_ai.usage.input_tokens", j.tokens.Prompt)
	span.Int("gen_ai.usage.output_tokens", j.tokens.Completion)
	span.Int("tandem.cached_tokens", j.tokens.Cached)
	if j.outcome != "ok" {
		span.Fail(j.outcome)
	}
	span.End(j.finished)
}
