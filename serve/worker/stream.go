package worker

import (
	"log/slog"
	"net/http"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// streamer writes the events of one streamed reply.
type streamer struct {
	x      *exchange
	events *openai.EventWriter
	chunks *openai.Chunks
	lp     []logprobs // by choice
	buf    []byte
	count  int        // completion tokens so far, of all choices
	divide []*divider // by choice
	echoed []bool     // the prompt was shown, by choice
	tally  tally
}

// stream answers a request event by event. Headers go out at once: the engine
// has accepted the request, so what fails from here on is an event.
func (x *exchange) stream(s Stream) {
	j := x.job
	st := &streamer{
		x: x, events: openai.NewEventWriter(x.w, x.s.cfg.WriteTimeout),
		chunks: openai.NewChunks(j.wire.Endpoint, j.id, j.info.Model, j.made),
		lp:     make([]logprobs, j.req.Answers()),
		tally:  tally{open: j.req.Answers()},
	}
	if err := st.begin(); err != nil {
		x.gone(err)
		return
	}
	for {
		o, err := x.next(x.r.Context(), s)
		if err != nil {
			st.fail(err)
			return
		}
		if err := st.output(&o); err != nil {
			x.gone(err)
			return
		}
		if st.tally.add(&o) {
			usage := j.usage(st.tally.usage)
			x.finished(st.tally.finish, usage)
			if err := st.end(usage); err != nil {
				x.gone(err)
			}
			return
		}
	}
}

// gone notes a client that cannot be written to; the deferred Cancel ends its request.
func (x *exchange) gone(err error) {
	x.ob.Status = openai.StatusClientClosed
	x.s.log.Debug("the client went away", "request_id", x.r.Header.Get(openai.HeaderRequestID), "error", err)
}

// begin sends headers and, unless the client has the first token already, the role of each choice.
func (st *streamer) begin() error {
	j := st.x.job
	for i := range st.lp {
		st.lp[i].job = j
		shown := j.shown(i)
		st.divide = append(st.divide, j.divide(i))
		st.echoed = append(st.echoed, j.req.FirstEmitted)
		st.count += len(shown)
		for _, t := range shown {
			st.lp[i].skip(t.ID)
		}
	}
	if err := st.events.Start(); err != nil || j.req.FirstEmitted || j.wire.Endpoint != openai.Chat {
		return err
	}
	for i := range st.lp {
		if err := st.events.Data(st.chunks.AppendRole(nil, i)); err != nil {
			return err
		}
	}
	return nil
}

// output writes what one output has to show, if anything.
func (st *streamer) output(o *runner.Output) error {
	j := st.x.job
	st.count += len(o.Tokens)
	d := openai.Delta{Choice: o.Choice}
	ended := o.Finish != request.Running
	divide := st.divide[o.Choice]
	divide.next(&d, o.Text, ended)
	show := ended || !d.Empty()
	if ended {
		d.Finish = divide.finish(o.Finish)
	}
	if j.wire.Echo && !st.echoed[o.Choice] {
		st.echoed[o.Choice], show = true, true
		d.Text = j.echoed() + d.Text
	}
	if j.wire.Logprobs >= 0 && len(o.Tokens) > 0 {
		d.Logprobs, show = st.lp[o.Choice].append(nil, o.Tokens), true
	}
	if j.wire.ReturnTokenIDs && len(o.Tokens) > 0 {
		d.TokenIDs, show = idsOf(o.Tokens), true
	}
	if j.wire.ContinuousUsage {
		u := j.usage(request.Usage{PromptTokens: o.Usage.PromptTokens, CompletionTokens: st.count, CachedTokens: o.Usage.CachedTokens})
		d.Usage = &u
	}
	st.buf = st.buf[:0]
	if j.in.returnTokenIDs && len(o.Tokens) > 0 {
		st.buf = openai.AppendIDsComment(st.buf, o.Choice, idsOf(o.Tokens))
	}
	if show {
		st.buf = append(st.buf, "data: "...)
		st.buf = st.chunks.AppendDelta(st.buf, d)
		st.buf = append(st.buf, '\n', '\n')
	}
	if len(st.buf) == 0 {
		return nil
	}
	return st.events.Raw(st.buf)
}

// end writes the usage chunk when asked for, and [DONE].
func (st *streamer) end(usage openai.Usage) error {
	if st.x.job.wire.IncludeUsage {
		if err := st.events.Data(st.chunks.AppendUsage(nil, usage)); err != nil {
			return err
		}
	}
	if t := st.x.timing(); t != "" {
		if err := st.events.Comment(trace.HeaderTiming + ": " + t); err != nil {
			return err
		}
	}
	return st.events.Done()
}

// fail ends a stream that broke: an error event, no [DONE], and a connection
// that ends in the middle of its encoding, so that no client takes the text for
// complete.
func (st *streamer) fail(err error) {
	e := st.x.wireError(err)
	st.x.ob.Status = e.Status
	if st.x.r.Context().Err() != nil {
		st.x.gone(err)
		return
	}
	level := slog.LevelWarn
	if e.Status == openai.StatusClientClosed {
		level = slog.LevelDebug // somebody aborted it
	}
	st.x.s.log.Log(st.x.r.Context(), level, "stream failed", "request_id", st.x.r.Header.Get(openai.HeaderRequestID), "status", e.Status, "error", err)
	_ = st.events.Error(e)
	panic(http.ErrAbortHandler)
}
