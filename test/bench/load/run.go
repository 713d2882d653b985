package load

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// Options are one run of a load model against a server.
type Options struct {
	Client   *Client
	Prompts  *Prompts // bound to Workload by Run
	Workload *workload.Workload
	Schedule schedule.Options

	// Origin is time 0 of the records, so that phases and steps of one measurement share a clock; zero = the call of Run.
	Origin time.Time
	// Grace is how long requests may go on after the last one was sent in a run with a duration; then they are cancelled.
	// 0 = until they end.
	Grace  time.Duration
	Phase  result.Phase
	Step   int
	Target string
	// ActualReplies puts the server's answers into later prompts of their conversations, instead of synthetic ones.
	ActualReplies bool

	OnRecord func(*result.Record) // each as it ends, one at a time
	Progress *Progress            // nil = nobody watches
}

// Progress is what a run has done so far. It may be read at any time.
type Progress struct {
	Sent, Flying, Done, Failed, Chunks atomic.Int64
	Cut                                atomic.Int64 // that went on when time and grace were over
	Spare                              atomic.Int64 // slots of a closed loop that were never used, known at the end
	mu                                 sync.Mutex
	ttfts                              []float64 // the latest times to a first chunk, in seconds
	next                               int       // of ttfts, to be replaced
}

// latest is how many times to a first chunk Progress keeps.
const latest = 512

func (p *Progress) ended(r *result.Record) {
	p.Flying.Add(-1)
	p.Done.Add(1)
	if r.Error == errCut.Error() {
		p.Cut.Add(1)
	}
	if r.Outcome != result.OK {
		p.Failed.Add(1)
		return
	}
	if r.First < 0 {
		return // an answer without content
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ttfts) < latest {
		p.ttfts = append(p.ttfts, r.TTFT())
		return
	}
	p.ttfts[p.next] = r.TTFT()
	p.next = (p.next + 1) % latest
}

// TTFT describes the latest times to a first chunk, in seconds.
func (p *Progress) TTFT() result.Stats {
	p.mu.Lock()
	values := append([]float64(nil), p.ttfts...)
	p.mu.Unlock()
	return result.Describe(values)
}

// run is a Run under way.
type run struct {
	o       Options
	ctx     context.Context // of the requests
	origin  time.Time       // of records
	begin   time.Duration   // of the schedule, since origin
	ended   chan *flown
	replies *replies
	turns   map[turnKey]int
	bodies  [][]byte // of the first play, nil = made when sent
}

// flown is a request that has ended.
type flown struct {
	send   schedule.Send
	record *result.Record
}

// turnKey names a conversation of one play.
type turnKey struct {
	unit int
	id   string
}

// Run sends the workload as the load model says and returns the records, in the order in which the requests ended. The end
// of ctx cancels what is in flight; the records until then are returned with its error.
func Run(ctx context.Context, o Options) ([]*result.Record, error) {
	s, err := schedule.New(o.Workload, o.Schedule)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what is wrong
	}
	r, err := prepare(&o)
	if err != nil {
		return nil, err
	}
	reqCtx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	cancel := func() { end(errCut) }
	defer cancel()
	r.ctx = reqCtx
	stop := context.AfterFunc(ctx, func() { end(errInterrupted) })
	defer stop()
	records, kept := r.keep()
	r.loop(ctx, s, cancel, records)
	o.Progress.Spare.Store(int64(s.Spare()))
	close(records)
	return <-kept, ctx.Err()
}

// prepare makes ready what can be made before the clock starts.
func prepare(o *Options) (*run, error) {
	if o.Progress == nil {
		o.Progress = &Progress{}
	}
	if o.Phase == "" {
		o.Phase = result.Measured
	}
	r := &run{o: *o, ended: make(chan *flown, 1024), turns: map[turnKey]int{}}
	p := *o.Prompts
	if o.ActualReplies {
		r.replies = &replies{texts: map[replyKey]string{}}
		p.Replies = r.replies.get
	}
	r.o.Prompts = &p
	if err := p.Bind(o.Workload); err != nil {
		return nil, err
	}
	if err := r.preload(); err != nil {
		return nil, err
	}
	r.origin = o.Origin
	if r.origin.IsZero() {
		r.origin = time.Now()
	}
	r.begin = time.Since(r.origin)
	return r, nil
}

// preloaded bounds the bytes of bodies that are made in advance, so that making them takes no time while the clock runs.
const preloaded = 256 << 20

func (r *run) preload() error {
	if r.replies != nil {
		return nil // they depend on answers
	}
	r.bodies = make([][]byte, len(r.o.Workload.Requests))
	size := 0
	for i := range r.bodies {
		if size > preloaded || r.o.Schedule.Requests > 0 && i >= r.o.Schedule.Requests {
			break
		}
		body, err := r.o.Prompts.Body(&r.o.Workload.Requests[i], 0, 0)
		if err != nil {
			return err
		}
		r.bodies[i] = body
		size += len(body)
	}
	return nil
}

// keep collects records beside the loop, so that writing them delays nothing.
func (r *run) keep() (chan<- *result.Record, <-chan []*result.Record) {
	in, out := make(chan *result.Record, 4096), make(chan []*result.Record, 1)
	go func() {
		var all []*result.Record
		for rec := range in {
			all = append(all, rec)
			if r.o.OnRecord != nil {
				r.o.OnRecord(rec)
			}
		}
		out <- all
	}()
	return in, out
}

// now is the time of records.
func (r *run) now() int64 { return int64(time.Since(r.origin)) }

// clock is the schedule's time.
func (r *run) clock() time.Duration { return time.Since(r.origin) - r.begin }

// loop drives the schedule by the real clock. cancel ends the requests in flight.
func (r *run) loop(ctx context.Context, s *schedule.Schedule, cancel func(), records chan<- *result.Record) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	stopped := ctx.Done()
	for {
		now := r.clock()
		if s.Over(now) {
			return
		}
		due, next := s.Poll(now)
		for _, d := range due {
			r.start(d)
		}
		if len(due) > 0 {
			continue // time has passed meanwhile
		}
		timer.Reset(r.pause(next, s, cancel))
		select {
		case f := <-r.ended:
			r.took(s, f, records)
			for more := true; more; {
				select {
				case f := <-r.ended:
					r.took(s, f, records)
				default:
					more = false
				}
			}
		case <-timer.C:
		case <-stopped:
			s.Stop()
			stopped = nil
		}
	}
}

// pause is how long the loop may wait. It ends what goes on after the grace time.
func (r *run) pause(next time.Duration, s *schedule.Schedule, cancel func()) time.Duration {
	d := time.Hour
	if next != schedule.Never {
		d = next - r.clock()
	} else if o := &r.o; o.Grace > 0 && o.Schedule.Duration > 0 && r.clock() >= o.Schedule.Duration && s.Flying() > 0 {
		if d = o.Schedule.Duration + o.Grace - r.clock(); d <= 0 {
			cancel()
			d = time.Hour
		}
	}
	return max(d, 0)
}

func (r *run) took(s *schedule.Schedule, f *flown, records chan<- *result.Record) {
	s.Done(f.send.Seq, time.Duration(f.record.End)-r.begin)
	r.o.Progress.ended(f.record)
	records <- f.record
}

// start sends one request beside the loop.
func (r *run) start(d schedule.Send) {
	q := &r.o.Workload.Requests[d.Request]
	rec := &result.Record{
		ID: q.ID, Seq: d.Seq, Conversation: conversation(q.Conversation, d, r.o.Schedule.Recycle), Parent: conversation(q.Parent, d, r.o.Schedule.Recycle),
		Phase: r.o.Phase, Step: r.o.Step, Target: r.o.Target, AskedInput: q.Input, AskedOutput: q.Output,
		Sched: int64(d.Sched + r.begin), Send: result.Unset, Header: result.Unset, First: result.Unset, FirstAnswer: result.Unset, Last: result.Unset, End: result.Unset,
	}
	if q.Conversation != "" {
		k := turnKey{d.Unit, q.Conversation}
		rec.Turn = r.turns[k]
		r.turns[k]++
		if q.Final {
			delete(r.turns, k)
		}
	}
	if q.Warm && d.Play == 0 {
		rec.Phase = result.Warmup
	}
	r.o.Progress.Sent.Add(1)
	r.o.Progress.Flying.Add(1)
	go r.send(d, q, rec)
}

// conversation is the id that the server sees: of another play it is another conversation.
func conversation(id string, d schedule.Send, recycled bool) string {
	if id == "" || !recycled || d.Play == 0 {
		return id
	}
	return id + "-" + strconv.Itoa(d.Play)
}

func (r *run) send(d schedule.Send, q *workload.Request, rec *result.Record) {
	out := Outgoing{Conversation: rec.Conversation, Parent: rec.Parent, Final: q.Final, KeepText: r.replies != nil && q.Reply != 0}
	var err error
	begun := r.now()
	if d.Play == 0 && r.bodies != nil && r.bodies[d.Request] != nil {
		out.Body = r.bodies[d.Request]
	} else {
		out.Body, err = r.o.Prompts.Body(q, d.Play, d.Unit)
	}
	if err != nil {
		rec.Outcome, rec.Error, rec.Send, rec.End = result.Failed, err.Error(), r.now(), r.now()
	} else {
		ctx := r.ctx
		if q.Leave > 0 {
			var leave context.CancelCauseFunc
			ctx, leave = context.WithCancelCause(ctx)
			defer time.AfterFunc(q.Leave, func() { leave(errLeft) }).Stop()
			defer leave(nil)
		}
		text := r.o.Client.Do(ctx, &out, r.now, rec, func() { r.o.Progress.Chunks.Add(1) })
		if out.KeepText && rec.Outcome == result.OK {
			r.replies.put(d.Unit, q.Reply, text)
		}
		if rec.Outcome == result.Failed && !out.sent {
			r.rest(begun)
		}
	}
	r.ended <- &flown{d, rec}
}

// nobody is how long a request takes at least that finds no server: closed loops would fill memory and disk with failures
// while it is gone.
const nobody = 100 * time.Millisecond

// rest waits until a request that began then, and could not connect, has taken as long.
func (r *run) rest(begun int64) {
	t := time.NewTimer(nobody - time.Duration(r.now()-begun))
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.ctx.Done():
	}
}

// replies are answers that go into later prompts.
type replies struct {
	mu    sync.Mutex
	texts map[replyKey]string
}

type replyKey struct {
	unit    int
	segment uint64
}

func (p *replies) get(unit int, segment uint64) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.texts[replyKey{unit, segment}]
	return t, ok
}

func (p *replies) put(unit int, segment uint64, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.texts[replyKey{unit, segment}] = text
}
