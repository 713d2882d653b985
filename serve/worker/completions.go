package worker

import (
	"context"
	"net/http"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// completions serves one of the two completion endpoints.
func (s *Server) completions(e openai.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{s: s, w: w, r: r, start: s.cfg.Now(), ob: Observation{Endpoint: endpointName(e), Kind: "refused", Status: http.StatusOK}}
		x.link = s.cfg.Tracer.Begin(r.Header, "refused", x.start)
		defer x.done()
		j, err := s.prepare(w, r, e)
		if err != nil {
			x.fail(err)
			return
		}
		x.job, x.ob.Kind, x.ob.Stream = j, kindName(j.req.Kind), j.wire.Stream
		stream, err := j.submit(r.Context())
		if err != nil {
			x.fail(err)
			return
		}
		defer stream.Cancel() // a no-op once the request has ended
		s.track(j, r, stream)
		defer s.live.drop(j)
		x.receipt(stream)
		if j.wire.Stream {
			x.stream(stream)
		} else {
			x.reply(stream)
		}
	}
}

// legGrowth is how many times larger than a client's request a leg may be: it has the token ids beside the text. Only a mixed
// worker has clients of its own.
const legGrowth = 4

// prepare reads, checks and translates a request. Nothing is scheduled yet.
func (s *Server) prepare(w http.ResponseWriter, r *http.Request, e openai.Endpoint) (*job, error) {
	b := s.backend.Load()
	if b == nil {
		return nil, unavailable("loading", "the model is still loading: try again soon")
	}
	if s.draining.Load() {
		return nil, unavailable("draining", "this worker is shutting down: send the request to another one")
	}
	arrived := b.Engine.Now()
	limit := s.cfg.MaxBody
	if b.Engine.Info().Role != executor.Mixed {
		limit *= legGrowth
	}
	data, err := openai.ReadBody(w, r, limit)
	if err != nil {
		return nil, err
	}
	leave, err := s.heavy.Enter(r.Context(), len(data))
	if err != nil {
		return nil, err
	}
	defer leave()
	q, err := openai.DecodeRequest(e, data)
	if err != nil {
		return nil, err
	}
	info := b.Engine.Info()
	if err := checkModel(q, info.Model); err != nil {
		return nil, err
	}
	in, err := s.readInternal(r.Header, q, info)
	if err != nil {
		return nil, err
	}
	kind, err := s.kindOf(q, info.Role)
	if err != nil {
		return nil, err
	}
	if q.Disagg != nil && len(q.Disagg.Ignored) > 0 {
		s.log.Info("unknown members of disaggregated_params are ignored", "members", q.Disagg.Ignored)
	}
	j := &job{Backend: b, wire: q, in: in, info: info, arrived: arrived, id: openai.ReplyID(e, r.Header.Get(openai.HeaderRequestID))}
	if err := j.build(r.Context(), kind); err != nil {
		return nil, err
	}
	id := j.req.TransferID
	if q.Disagg != nil && q.Disagg.DisaggRequestID != nil {
		id = *q.Disagg.DisaggRequestID // of a stream that goes on here: all its chunks tell the same time
	}
	j.made = openai.Created(id, s.cfg.Now())
	return j, nil
}

// exchange is one completions request being answered.
type exchange struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	job   *job
	start time.Time
	last  []time.Time // of each choice's last output with tokens, zero before it
	link  trace.Link
	turns turns
	// cached is the worker's own count; ob has what the client is told.
	cached int
	rank   *int // of several
	ob     Observation
}

// done reports the request to the observer and the log.
func (x *exchange) done() {
	end := x.s.cfg.Now()
	x.ob.Elapsed = end.Sub(x.start)
	x.settle(end)
	x.endSpan(end)
	x.s.cfg.Observer.Done(x.ob)
	x.logRequest(end)
}

// fail answers with an error while headers are not out.
func (x *exchange) fail(err error) {
	e := x.wireError(err)
	x.ob.Status = e.Status
	if e.Status >= http.StatusInternalServerError {
		x.s.log.Warn("request failed", "request_id", x.r.Header.Get(openai.HeaderRequestID), "status", e.Status, "error", err)
	}
	openai.WriteError(x.w, e)
}

// tick measures the time between outputs.
func (x *exchange) tick(o *runner.Output) {
	if len(o.Tokens) == 0 {
		return
	}
	now := x.s.cfg.Now()
	if x.last == nil {
		x.s.cfg.Observer.FirstToken(now.Sub(x.start))
		x.last = make([]time.Time, x.job.req.Answers())
	}
	if last := &x.last[o.Choice]; last.IsZero() {
		*last = now
	} else {
		x.s.cfg.Observer.Gap(now.Sub(*last), len(o.Tokens))
		*last = now
	}
}

// next waits for an output and turns an unhappy end into an error.
func (x *exchange) next(ctx context.Context, s Stream) (runner.Output, error) {
	o, err := s.Next(ctx)
	if err != nil {
		return o, err
	}
	x.tick(&o)
	if o.Finish != request.Running {
		x.turns, x.cached = turnsOf(o.Times, x.job.Engine.Now(), x.s.cfg.Now()), o.Usage.CachedTokens
	}
	switch o.Finish {
	case request.FinishError, request.FinishCancelled:
		if o.Err != nil {
			return o, o.Err
		}
		return o, request.Errorf(request.Cancelled, "the request was cancelled")
	}
	return o, nil
}

// usage is what a reply reports: a gen leg repeats the ctx worker's counts of
// the prompt, since to itself the whole prompt looks cached.
func (j *job) usage(u request.Usage) openai.Usage {
	prompt, cached := u.PromptTokens, u.CachedTokens
	if prompt == 0 {
		prompt = len(j.req.Prompt)
	}
	if d := j.wire.Disagg; d != nil && d.CtxUsage != nil && (len(j.req.FirstTokens) > 0 || j.parts != nil) {
		prompt, cached = d.CtxUsage.PromptTokens, d.CtxUsage.Cached()
	}
	return openai.NewUsage(prompt, u.CompletionTokens, cached)
}

// finished notes how a request ended.
func (x *exchange) finished(finish request.Finish, u openai.Usage) {
	x.ob.Finish = string(finish)
	x.ob.Prompt, x.ob.Cached, x.ob.Output = u.PromptTokens, u.Cached(), u.CompletionTokens
}

func endpointName(e openai.Endpoint) string {
	if e == openai.Chat {
		return "chat"
	}
	return "completions"
}

func kindName(k request.Kind) string {
	switch k {
	case request.ContextOnly:
		return openai.ContextOnly
	case request.GenerationOnly:
		return openai.GenerationOnly
	}
	return "full"
}
