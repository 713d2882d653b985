package disagg

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/h1"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// Limits on what a worker may answer, in bytes.
const (
	maxReplyBytes = 256 << 20
	maxErrorBytes = 64 << 10
)

// newClient makes the HTTP client for workers. Idle connections live shorter than the workers' own keep-alive, so that a
// stale one is not used again.
func newClient(connect time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: connect}
	return &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: connect, MaxIdleConnsPerHost: 1024, IdleConnTimeout: time.Second,
		DisableCompression: true, // buffers stay small, since each open stream has its own
	}}
}

// newCalls makes the client for legs, of which there may be thousands at once. Idle connections live as short as those above.
func newCalls(connect time.Duration) *h1.Client {
	dialer := &net.Dialer{Timeout: connect}
	return &h1.Client{Dial: dialer.DialContext, Connect: 2 * connect, MaxIdle: 1024, IdleTime: time.Second}
}

// leg is one running attempt at one worker. close ends it.
type leg struct {
	role    discovery.Role
	inst    discovery.Instance
	id      int64
	plan    *RoutePlan
	started time.Time
	first   time.Duration // to the first event or reply
	tokens  int
	span    *trace.Span

	ctx    context.Context // the leg is the scope of this context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	why    atomic.Pointer[error] // what the timer's end means
	watch  *discovery.Watch
	resp   *h1.Response
	body   meter
	now    func() time.Time
	heard  atomic.Int64 // when the last bytes came, in ns after started
}

// lastHeard is when the worker last said something.
func (l *leg) lastHeard() time.Time { return l.started.Add(time.Duration(l.heard.Load())) }

// hears notes that the worker said something.
func (l *leg) hears() { l.heard.Store(int64(l.now().Sub(l.started))) }

// call describes an attempt to start.
type call struct {
	role  discovery.Role
	inst  discovery.Instance
	rank  *int // that the router chose, nil = none
	id    int64
	body  legBody
	limit time.Duration // until the answer's headers came
	cause error         // what passing the limit means
	tell  bool          // pass the request's deadline on
	ids   bool          // ask for the token ids behind each event
}

// start sends a leg's request and waits for the headers of a 200 answer. On failure the leg is closed.
func (s *Server) start(ctx context.Context, p *RoutePlan, c call) (_ *leg, failed *legError) {
	s.syncClock(c.inst)
	p.trip.sent(c.role, c.inst, c.id, s.now())
	l := &leg{role: c.role, inst: c.inst, id: c.id, plan: p, started: s.now(), now: s.now}
	s.diag.leg(diagDispatch, l, nil)
	defer func() {
		if failed != nil {
			s.diag.leg(diagError, l, failed)
		}
	}()
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.why.Store(&c.cause)
	l.timer = time.AfterFunc(c.limit, func() { l.cancel(*l.why.Load()) })
	l.watch = s.reg.Watch(c.inst.ID, l.lastHeard, func(f discovery.Fate) {
		if f == discovery.FateSilent {
			l.cancel(errWorkerMute)
		}
		l.cancel(errWorkerLost) // only the first cause counts
	})
	if p.link.Span != nil {
		l.span = p.link.Child(string(c.role) + " leg")
	}
	headers := make(http.Header, 8)
	s.setHeaders(headers, p, &c)
	p.link.Inject(l.span, headers)
	l.describe(&c)
	resp, err := s.calls.Post(l.ctx, c.inst.URL+p.Req.Endpoint.String(), headers, c.body.data)
	if err != nil {
		kind, oe := transportError(l.ctx, err, false)
		if kind == faultDial || kind == faultRace || kind == faultSilent {
			s.reg.LegEnded(c.inst.ID, false)
		}
		defer l.close()
		return nil, l.fail(kind, oe, err)
	}
	s.reg.LegEnded(c.inst.ID, true)
	l.resp = resp
	l.hears()
	p.trip.answered(c.role, resp.Header)
	l.body = meter{l}
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(resp, maxErrorBytes))
		oe := openai.ParseError(resp.StatusCode, resp.Header, data)
		defer l.close()
		if resp.StatusCode < http.StatusBadRequest { // a redirect, or a success without an answer, is none for the client
			return nil, l.fail(faultReply, upstream(fmt.Sprintf("the worker answered with the status %d", resp.StatusCode)), nil)
		}
		return nil, l.fail(faultStatus, oe, nil)
	}
	return l, nil
}

func (s *Server) setHeaders(h http.Header, p *RoutePlan, c *call) {
	h.Set("Content-Type", "application/json")
	h.Set(openai.HeaderRequestID, p.RequestID)
	if c.tell {
		left := max(1, p.Deadline.Sub(s.now()).Milliseconds())
		h.Set(openai.HeaderDeadline, strconv.FormatInt(left, 10))
	}
	if c.ids {
		h.Set(openai.HeaderReturnTokenIDs, "1")
	}
	if s.cfg.ExposeRouting || s.logs() {
		h.Set(openai.HeaderReturnRoute, "1")
	}
	if s.cfg.ReturnPerf {
		h.Set(openai.HeaderReturnMetrics, "1")
	}
	if len(s.cfg.AuthKey) > 0 && c.body.params.Protected() {
		h.Set(openai.HeaderAuth, openai.Key(s.cfg.AuthKey).SignHandoff(c.body.params))
	}
	s.setPlacement(h, p, c)
}

// fail makes the leg's error.
func (l *leg) fail(kind fault, e *openai.Error, cause error) *legError {
	l.span.Fail(e.Type)
	return &legError{fault: kind, role: l.role, id: l.id, err: e, cause: cause}
}

// broken makes the error of a read that failed.
func (l *leg) broken(err error) *legError {
	kind, oe := transportError(l.ctx, err, true)
	return l.fail(kind, oe, err)
}

// close ends the leg: the connection goes unless the answer was read to its end.
func (l *leg) close() {
	l.timer.Stop()
	l.span.End(time.Time{})
	if l.resp != nil {
		// Without a verdict from the reader the connection is cut by the cancel below; this only gives it back when
		// the answer is already complete.
		l.resp.Close()
	}
	l.cancel(nil)
	l.watch.Stop()
}

// isStream tells whether the answer is a stream of events.
func (l *leg) isStream() bool {
	return strings.HasPrefix(l.resp.Header.Get("Content-Type"), "text/event-stream")
}

// readAll reads a whole JSON reply.
func (l *leg) readAll() ([]byte, *legError) {
	if l.isStream() {
		return nil, l.fail(faultReply, upstream("the worker answered with a stream where none was asked for"), nil)
	}
	data, err := io.ReadAll(io.LimitReader(l.body, maxReplyBytes+1))
	if err != nil {
		return nil, l.broken(err)
	}
	if len(data) > maxReplyBytes {
		return nil, l.fail(faultReply, upstream(fmt.Sprintf("the reply is larger than %d bytes", maxReplyBytes)), nil)
	}
	return data, nil
}

// meter reads the answer and notes that something came.
type meter struct{ l *leg }

// Piece is what h1 gives.
func (m meter) Piece() ([]byte, error) {
	data, err := m.l.resp.Piece()
	m.count(len(data))
	return data, err // as h1 says it
}

func (m meter) count(n int) {
	if n > 0 {
		m.l.hears()
	}
}

func (m meter) Read(p []byte) (int, error) {
	n, err := m.l.resp.Read(p)
	m.count(n)
	return n, err // a Reader hands on what it wraps
}

// report tells the observer how the attempt ended, and has a worker probed whose answer broke off.
func (s *Server) report(l *leg, e *legError) {
	if e != nil && (e.fault == faultBroken || e.fault == faultRace) {
		s.reg.Suspect(l.inst.ID)
	}
	event := diagComplete
	if e != nil {
		event = diagError
	}
	s.diag.leg(event, l, e)
	s.obs.LegEnded(LegEnd{Role: string(l.role), OK: e == nil, First: l.first, Total: s.now().Sub(l.started), Tokens: l.tokens})
}
