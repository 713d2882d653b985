//go:build e2e

package e2e

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// fault is something that happens to one worker, and how it ends.
type fault struct {
	name       string
	begin, end func(*member, *testing.T)
}

// Faults of the process.
var (
	// The proxy still takes connections, as a load balancer does.
	killed = fault{"kill", (*member).kill, (*member).start}
	// Nothing listens any more, as on a host of its own.
	killedRefusing = fault{
		"kill, refuse",
		func(m *member, t *testing.T) { m.http.cut(t); m.kill(t) },
		func(m *member, t *testing.T) { m.start(t); m.http.join(t) },
	}
	stalled = fault{
		"stall",
		func(m *member, t *testing.T) { m.now.signal(t, syscall.SIGSTOP) },
		func(m *member, t *testing.T) { m.now.signal(t, syscall.SIGCONT) },
	}
	drained = fault{
		"drain",
		func(m *member, t *testing.T) { m.now.signal(t, syscall.SIGTERM) },
		func(m *member, t *testing.T) {
			if code := m.now.wait(t, stopLimit); code != 0 {
				t.Errorf("%s drained and ended with %d", m.now.name, code)
			}
			m.start(t)
		},
	}
)

// spoiled is a fault of one of a worker's wires.
func spoiled(name string, of func(*member) wire, kind string, attributes object, directions ...string) fault {
	return fault{
		name,
		func(m *member, t *testing.T) { of(m).spoil(t, kind, attributes, directions...) },
		func(m *member, t *testing.T) { of(m).heal(t) },
	}
}

// wireFaults are what can happen to a wire: cut, silent in both directions or in one, standing still, slow, in crumbs.
func wireFaults(name string, of func(*member) wire) []fault {
	return []fault{
		{
			name + " cut",
			func(m *member, t *testing.T) { of(m).cut(t) },
			func(m *member, t *testing.T) { of(m).join(t) },
		},
		spoiled(name+" partition", of, "timeout", object{"timeout": 0}, there, back),
		spoiled(name+" swallows requests", of, "timeout", object{"timeout": 0}, there),
		spoiled(name+" swallows answers", of, "timeout", object{"timeout": 0}, back),
		spoiled(name+" stands still", of, "bandwidth", object{"rate": 0}, there, back),
		spoiled(name+" resets", of, "reset_peer", object{"timeout": 200}, back),
		spoiled(name+" is far away", of, "latency", object{"latency": 150, "jitter": 100}, there, back),
		spoiled(name+" is narrow", of, "bandwidth", object{"rate": 40}, back),
		spoiled(name+" crumbles", of, "slicer", object{"average_size": 60, "size_variation": 20, "delay": 50}, back),
	}
}

func genFaults() []fault {
	return append([]fault{killed, killedRefusing, stalled, drained}, wireFaults("HTTP", func(m *member) wire { return m.http })...)
}

func ctxFaults() []fault {
	out := append(genFaults(), wireFaults("KV control", func(m *member) wire { return m.control })...)
	return append(out, wireFaults("KV data", func(m *member) wire { return m.data })...)
}

// blow is one or two faults at once, of workers of different roles.
type blow struct {
	faults []fault
	at     []*member
	hold   time.Duration
}

// schedule deals faults out so that each kind comes before any comes again. A worker of each role stays untouched.
type schedule struct {
	rng      *rand.Rand
	ctx, gen deck
}

// deck is a shuffled pile of faults that is shuffled anew when it is used up.
type deck struct{ all, left []fault }

func (d *deck) draw(rng *rand.Rand) fault {
	if len(d.left) == 0 {
		d.left = append(d.left, d.all...)
		rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
	}
	f := d.left[0]
	d.left = d.left[1:]
	return f
}

func newSchedule(seed uint64) *schedule {
	return &schedule{rng: rand.New(rand.NewPCG(seed, 3)), ctx: deck{all: ctxFaults()}, gen: deck{all: genFaults()}}
}

func (s *schedule) next(a *arena) (b blow) {
	which := s.rng.IntN(3)
	if which != 0 {
		b.faults, b.at = append(b.faults, s.ctx.draw(s.rng)), append(b.at, a.ctx[s.rng.IntN(len(a.ctx))])
	}
	if which != 1 {
		b.faults, b.at = append(b.faults, s.gen.draw(s.rng)), append(b.at, a.gen[s.rng.IntN(len(a.gen))])
	}
	b.hold = time.Duration(500+s.rng.IntN(5500)) * time.Millisecond
	return b
}

// kill is a blow on one gen worker.
func (s *schedule) kill(a *arena) blow {
	f := []fault{killed, killedRefusing}[s.rng.IntN(2)]
	return blow{[]fault{f}, []*member{a.gen[s.rng.IntN(len(a.gen))]}, time.Duration(300+s.rng.IntN(1500)) * time.Millisecond}
}

func (b blow) String() string {
	text := ""
	for i, f := range b.faults {
		if i > 0 {
			text += " and "
		}
		text += b.at[i].name + ": " + f.name
	}
	return text
}

// strike lets a blow begin, waits, and ends it.
func (b blow) strike(t *testing.T) {
	t.Helper()
	for i, f := range b.faults {
		f.begin(b.at[i], t)
	}
	time.Sleep(b.hold)
	for i, f := range b.faults {
		f.end(b.at[i], t)
	}
}
