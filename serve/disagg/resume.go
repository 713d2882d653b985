package disagg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/router"
)

// progress is what the client has of a stream: enough for another gen worker to go on behind it. The worker tells the token
// ids behind an event in a comment before it. They count once the event went out: a client never gets a token twice, and one
// whose text it lacks is decoded again.
type progress struct {
	choices []choiceProgress
	counted bool // the usage event went out after the last finish reason
}

// choiceProgress is what the client has of one choice.
type choiceProgress struct {
	ids      []int32 // tokens behind what the client has
	waiting  []int32 // told, their event has not come yet
	finished bool    // the finish reason went out
}

// at returns the progress of a choice.
func (p *progress) at(choice int) *choiceProgress {
	for len(p.choices) <= choice {
		p.choices = append(p.choices, choiceProgress{})
	}
	return &p.choices[choice]
}

// count is how many tokens the client has of all choices.
func (p *progress) count() (n int) {
	for i := range p.choices {
		n += len(p.choices[i].ids)
	}
	return n
}

// finished tells that all n choices have ended.
func (p *progress) finished(n int) bool {
	for i := range n {
		if !p.at(i).finished {
			return false
		}
	}
	return true
}

// told notes the ids of a choice behind its next event.
func (p *progress) told(choice int, ids []int32) {
	c := p.at(choice)
	c.waiting = append(c.waiting, ids...)
}

// sent notes that an event with data went out, of a choice or, below 0, of none.
func (p *progress) sent(choice int, data []byte) {
	if choice < 0 || p.at(choice).finished {
		p.counted = p.counted || bytes.Contains(data, []byte(`"usage":{`))
		return
	}
	c := p.at(choice)
	c.ids = append(c.ids, c.waiting...)
	c.waiting = c.waiting[:0]
	// Inside a string the quotes would be escaped.
	c.finished = bytes.Contains(data, []byte(`"finish_reason":"`))
}

// broke notes that an attempt ended: what it told and did not send, the client does not have.
func (p *progress) broke() {
	for i := range p.choices {
		p.choices[i].waiting = nil
	}
}

// resumable tells whether another gen worker can go on after a failure: the stream broke by no fault of the request's, and
// all that the client has is known.
func (s *Server) resumable(p *RoutePlan, out *client, e *legError) bool {
	return s.cfg.Resume && !s.cfg.NoRetry && p.Req.Stream && out.started() && out.have.count() > 0 && e.broke()
}

// broke tells whether the worker or the way to it failed, and not the request.
func (e *legError) broke() bool {
	switch e.fault {
	case faultDial, faultRace, faultBroken, faultDeadline, faultSilent:
		return true
	case faultStatus:
		// A worker that shuts down cancels what it runs, although the client is still there.
		return e.err.Status >= 500 || e.err.Status == openai.StatusClientClosed || e.err.Status == http.StatusTooManyRequests
	case faultReply, faultGone:
	}
	return false
}

// resume goes on with a broken stream at another gen worker, which computes prompt and tokens anew and decodes what
// follows. The seed and the position of a token decide its draw, so that the text is that of an undisturbed run; without a
// seed it is another draw from there on. Attempts that bring no token are limited like retries.
func (s *Server) resume(ctx context.Context, p *RoutePlan, h *handoff, out *client, last *legError, broken string) (err error) {
	defer func() {
		outcome := "resumed"
		if err != nil {
			outcome = "failed"
		}
		s.obs.Happened(EventResume, outcome)
	}()
	if err := out.events.Flush(); err != nil { // what came before it broke
		return errClientGone
	}
	failed, idle, waited := []string{broken}, 0, false
	until := s.now().Add(s.cfg.AdmissionTimeout)
	for {
		if done, err := s.completeStream(p, h, out); done {
			return err
		}
		sel, err := s.chooseResumer(p, h, failed, waited || last.fault != faultDeadline && last.fault != faultSilent)
		if errors.Is(err, router.ErrNoServers) && s.now().Add(s.cfg.RetryPause).Before(until) && s.sleep(ctx, s.cfg.RetryPause) {
			waited = true
			continue // a worker may come back, also the one that fell silent
		}
		if err != nil {
			return last
		}
		before := out.have.count()
		g := genAttempt{inst: sel.Instance, rank: sel.Rank, h: h, out: out, p: p, id: out.id, resume: true, limit: s.cfg.AdmissionTimeout / 2, cause: errAdmission}
		s.log.Info("a stream goes on elsewhere", "request_id", p.RequestID, "from", broken, "to", sel.Instance.ID, "tokens", before, "reason", last)
		last = s.runGen(ctx, &g)
		sel.Reservation.Release(last == nil)
		if last == nil {
			return nil
		}
		if !last.broke() || ctx.Err() != nil {
			return last
		}
		broken, failed, idle = sel.Instance.ID, append(failed, sel.Instance.ID), idle+1
		if out.have.count() > before {
			failed, idle, until = []string{broken}, 0, s.now().Add(s.cfg.AdmissionTimeout)
		}
		if idle > s.cfg.MaxRetries || !s.sleep(ctx, s.cfg.RacePause) {
			return last
		}
	}
}

// chooseResumer asks the router for a worker that can go on with a stream of the hand-over's model, rather not one that
// failed, and only if again says so.
func (s *Server) chooseResumer(p *RoutePlan, h *handoff, failed []string, again bool) (router.Selection, error) {
	list := func() []discovery.Instance {
		all := s.genList(p, h)()
		able := all[:0]
		for _, in := range all {
			if in.Info.Resume {
				able = append(able, in)
			}
		}
		return able
	}
	sel, err := s.route(discovery.Generation, p.routing(discovery.Generation, list, failed))
	if errors.Is(err, router.ErrNoServers) && again {
		sel, err = s.route(discovery.Generation, p.routing(discovery.Generation, list, nil))
	}
	return sel, err // the caller compares with router.ErrNoServers
}

// completeStream ends a stream that broke after its last token: only the usage and [DONE] can be missing. done is false when
// tokens are missing, or counts that nobody knows.
func (s *Server) completeStream(p *RoutePlan, h *handoff, out *client) (done bool, err error) {
	missing := p.Req.IncludeUsage && !out.have.counted
	if !out.have.finished(p.Req.N) || missing && h == nil {
		return false, nil
	}
	if missing {
		u := openai.NewUsage(h.usage.PromptTokens, out.have.count(), h.usage.Cached())
		out.usage = &u
		enc := openai.NewChunks(p.Req.Endpoint, openai.ReplyID(p.Req.Endpoint, p.RequestID), h.model, openai.Created(h.id, s.now()))
		if err := out.data(enc.AppendUsage(nil, u)); err != nil {
			return true, err
		}
	}
	return true, out.done()
}

// sleep returns false when the request ended meanwhile.
func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// resumeBody is the client's request with the tokens that it has already: no hand-over, the worker computes them itself.
func (p *RoutePlan) resumeBody(h *handoff, id int64, have *progress, strip bool) (legBody, error) {
	body := p.base(discovery.Generation)
	params := openai.DisaggParams{DisaggRequestID: &id, FirstTokenEmitted: true}
	if p.Req.N == 1 {
		params.FirstGenTokens = have.at(0).ids
	} else {
		for i := range p.Req.N {
			params.ChoiceTokens = append(params.ChoiceTokens, append([]int32{}, have.at(i).ids...))
		}
	}
	if h != nil {
		params.CtxUsage = &h.usage
		if h.promptIDs != nil { // a ctx worker that saw the request end need not tell them
			p.putPrompt(&body, h, strip)
		}
		if h.params != nil {
			params.ResolvedThinking = h.params.ResolvedThinking
		}
	}
	if err := body.SetValue("disaggregated_params", params); err != nil {
		return legBody{}, fmt.Errorf("resumed request: %w", err)
	}
	return finish(body, &params), nil
}
