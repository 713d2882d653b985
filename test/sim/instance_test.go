package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
)

var iterations = flag.Int("iterations", defaultIterations, "iterations of TestLockstepInstance")

// iterationsOfSeed is how long clients come to one instance.
const iterationsOfSeed = 400

func randomInstance(t tb, seed uint64, change func(*InstanceConfig)) *Traffic {
	t.Helper()
	tr, err := RandomInstance(seed, change)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	return tr
}

// soak runs one instance after the other while more says so.
func soak(t tb, change func(*InstanceConfig), more func(*Log) bool) *Log {
	t.Helper()
	sum := &Log{}
	for seed := uint64(1); more(sum); seed++ {
		tr := randomInstance(t, seed, change)
		if err := tr.Run(iterationsOfSeed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sum.add(&tr.In.Log)
	}
	return sum
}

// TestLockstepInstance runs instances of all sizes, roles, routers and clients;
// see Instance for what every iteration proves.
func TestLockstepInstance(t *testing.T) {
	sum := soak(t, nil, func(l *Log) bool { return l.Iterations < uint64(*iterations) })
	t.Logf("%+v", *sum)
	if sum.Iterations < 20000 {
		return
	}
	for name, n := range map[string]uint64{
		"forwards": sum.Forwards, "pads": sum.Padded, "held": sum.Held, "gathers": sum.Gathers,
		"finished": sum.Finished, "cancelled": sum.Cancelled, "refused": sum.Refused,
		"full ranks": sum.Full, "pads of full ranks": sum.FullPads, "aborts": sum.Aborts, "pulls": sum.Pulls,
		"leases given up": sum.Released, "moves": sum.Moved, "loans": sum.Loans, "borrowed": sum.Borrowed, "rests": sum.Idles,
		"pullers that were met": sum.Met, "pulls before the prefill": sum.Early, "messages in passes": sum.Heard, "peers that did not come": sum.Failed[request.TransferTimeout],
		"deadlines": sum.Failed[request.DeadlineExceeded], "timeouts": sum.Failed[request.QueueTimeout],
		"failed steps": sum.Failed[request.StepFailed], "bad logits": sum.Failed[request.BadLogits],
		"full queues": sum.Failed[request.QueueFull],
	} {
		if n == 0 {
			t.Errorf("no %s", name)
		}
	}
}

// TestSoakLockstep is TestLockstepInstance for a time, SOAK.
func TestSoakLockstep(t *testing.T) {
	span, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("SOAK is not set to a duration")
	}
	end := time.Now().Add(span)
	t.Logf("%+v", *soak(t, nil, func(*Log) bool { return time.Now().Before(end) }))
}

// TestLockstepMoves has conversations leave busy ranks all the time.
func TestLockstepMoves(t *testing.T) {
	sum := soak(t, eagerMoves, func(l *Log) bool { return l.Iterations < uint64(defaultIterations)/2 })
	if n := sum.Iterations; sum.Moved < n/200 || sum.Loans < n/600 || sum.Borrowed < n/1000 {
		t.Errorf("only %d moves, %d loans, %d borrowed", sum.Moved, sum.Loans, sum.Borrowed)
	}
}

func eagerMoves(c *InstanceConfig) {
	c.Core.Role, c.Core.BlockReuse, c.Core.MaxSeqLen = executor.Mixed, true, 256
	c.Core.Blocks = max(c.Core.Blocks, 64)
	r := &c.Step.Router
	r.Kind, r.Ranks, r.Cap = adprouter.ConversationAware, max(2, r.Ranks), r.Cap+2
	r.Rehome = adprouter.DefaultRehome()
	r.Rehome.On, r.Rehome.MinGain, r.Rehome.Gain, r.Rehome.Cooldown, r.Rehome.MaxMoves = true, 1, 0, 0, 8
}

// TestLockstepIsDeterministic runs the same seed twice.
func TestLockstepIsDeterministic(t *testing.T) {
	for seed := range uint64(5) {
		var logs [2]string
		for i := range logs {
			tr := randomInstance(t, seed, nil)
			if err := tr.Run(iterationsOfSeed); err != nil {
				t.Fatal(err)
			}
			logs[i] = fmt.Sprintf("%+v at %v", tr.In.Log, tr.In.Now)
		}
		expect(t, fmt.Sprint("seed ", seed), logs[0], logs[1])
	}
}

// TestDivergenceIsReported changes what one rank knows. All ranks must see it
// within two iterations, and say who it is.
func TestDivergenceIsReported(t *testing.T) {
	route := func(m *Member) bool {
		ranks := m.Lock.Router().Config().Ranks
		m.Lock.Router().Route(make([]adprouter.RankState, ranks), []adprouter.Item{{ID: 1 << 39, Rank: -1, Key: "odd", Tokens: 3}})
		return true
	}
	move := func(m *Member) bool {
		r := m.Lock.Router()
		keys := r.Keys()
		if len(keys) == 0 {
			return false
		}
		home, _ := r.Home(keys[0])
		return r.Move(keys[0], (home+1)%r.Config().Ranks)
	}
	for _, tc := range []struct {
		kind adprouter.Kind
		name string
		flip func(*Member) bool
	}{
		{adprouter.Default, "route", route},
		{adprouter.KVCacheAware, "route", route},
		{adprouter.ConversationAware, "route", route},
		{adprouter.ConversationAware, "move", move},
		{adprouter.Default, "drain", func(m *Member) bool {
			m.Lock.Route(0, []lockstep.Delivery{{Drain: true}})
			return true
		}},
	} {
		for seed := range uint64(10) {
			tr := randomInstance(t, seed, func(c *InstanceConfig) {
				c.Step.Router.Kind, c.Step.Router.Ranks = tc.kind, max(2, c.Step.Router.Ranks)
			})
			victim := int(seed) % len(tr.In.Ranks)
			err := tr.diverge(60, func() bool { return tc.flip(tr.In.Ranks[victim]) })
			checkDivergence(t, fmt.Sprintf("%s %s, seed %d", tc.kind, tc.name, seed), err, victim)
		}
	}
}

var errNothing = errors.New("nothing to flip")

// diverge lets clients come for some iterations, then until flip did something,
// and for two more.
func (tr *Traffic) diverge(after int, flip func() bool) error {
	for i, left := 0, -1; left != 0; i++ {
		if i > 2000 {
			return errNothing
		}
		if left > 0 {
			left--
		} else if i >= after && flip() {
			left = 2
		}
		tr.clients()
		if _, err := tr.In.Step(); err != nil {
			return err
		}
	}
	return nil
}

func checkDivergence(t tb, name string, err error, victim int) {
	t.Helper()
	var d *lockstep.DivergenceError
	if !errors.As(err, &d) {
		t.Errorf("%s: %v", name, err)
		return
	}
	if want := max(victim, 1); d.Rank != want || d.Dump == "" { // rank 0 cannot know that it is the odd one
		t.Errorf("%s: blames rank %d, want %d; dump of %d bytes", name, d.Rank, want, len(d.Dump))
	}
}

// TestLostDeliveryIsDivergence takes a part of a payload from one rank.
func TestLostDeliveryIsDivergence(t *testing.T) {
	for _, tc := range []struct {
		name string
		take func(r *adprouter.Router, d []lockstep.Delivery) bool
	}{
		{"arrival", func(_ *adprouter.Router, d []lockstep.Delivery) bool {
			if len(d) == 0 || len(d[0].New) == 0 {
				return false
			}
			d[0].New = d[0].New[1:]
			return true
		}},
		{"end of moves", func(r *adprouter.Router, d []lockstep.Delivery) (open bool) {
			for i := range d {
				for _, m := range d[i].Moved {
					_, is := r.Moving(m.Key) // else it says nothing new
					open = open || is
				}
			}
			for i := range d {
				if open { // else the rank would only keep a loan
					d[i].Moved = nil
				}
			}
			return open
		}},
	} {
		struckSeeds := 0
		for seed := range uint64(12) {
			tr := randomInstance(t, seed, func(c *InstanceConfig) {
				eagerMoves(c)
				c.Step.Router.MaxSessions = 1000 // a binding that is dropped takes the difference along
			})
			tr.rate = 1
			victim, armed, struck := int(seed)%len(tr.In.Ranks), false, false
			tr.In.Tamper = func(to int, d []lockstep.Delivery) {
				if armed && !struck && to == victim {
					struck = tc.take(tr.In.Ranks[to].Lock.Router(), d)
				}
			}
			err := tr.diverge(60, func() bool {
				armed = true
				return struck
			})
			if errors.Is(err, errNothing) {
				continue
			}
			struckSeeds++
			checkDivergence(t, fmt.Sprintf("%s, seed %d", tc.name, seed), err, victim)
		}
		if struckSeeds < 5 {
			t.Errorf("%s: only %d seeds had one", tc.name, struckSeeds)
		}
	}
}

// add sums up what happened.
func (l *Log) add(o *Log) {
	l.Iterations += o.Iterations
	l.Forwards += o.Forwards
	l.Padded += o.Padded
	l.Held += o.Held
	l.Gathers += o.Gathers
	l.Entered += o.Entered
	l.Refused += o.Refused
	l.Finished += o.Finished
	l.Cancelled += o.Cancelled
	l.FullPads += o.FullPads
	l.Full += o.Full
	l.Moved += o.Moved
	l.Loans += o.Loans
	l.Borrowed += o.Borrowed
	l.Pulls += o.Pulls
	l.Aborts += o.Aborts
	l.Idles += o.Idles
	l.Released += o.Released
	l.Met += o.Met
	l.Early += o.Early
	l.Heard += o.Heard
	for code, n := range o.Failed {
		if l.Failed == nil {
			l.Failed = map[request.Code]uint64{}
		}
		l.Failed[code] += n
	}
}
