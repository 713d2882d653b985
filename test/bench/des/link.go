package des

import (
	"math"
	"time"
)

// link carries flows of bytes that share its bandwidth evenly. No more than most
// go at a time; the others wait in the order of their coming.
type link struct {
	sim   *Sim
	band  float64 // bytes/s
	most  int     // 0 = any number
	flows []*flow
	queue []*flow
	at    time.Duration // when left was true
	turn  uint64        // changes of the flows; an end that was foretold before is void
}

// flow is some bytes on their way.
type flow struct {
	left float64
	done func()
	gone bool
}

// send carries bytes after a set-up, and then calls done.
func (l *link) send(setup time.Duration, bytes float64, done func()) *flow {
	f := &flow{left: bytes, done: done}
	l.sim.after(setup, func() {
		if f.gone {
			return
		}
		l.advance()
		if l.most > 0 && len(l.flows) >= l.most {
			l.queue = append(l.queue, f)
			return
		}
		l.flows = append(l.flows, f)
		l.foretell()
	})
	return f
}

// stop takes a flow off the link.
func (l *link) stop(f *flow) {
	f.gone = true
	l.advance()
	l.drop(func(g *flow) bool { return g.gone })
	l.foretell()
}

// pace changes the bandwidth.
func (l *link) pace(band float64) {
	l.advance()
	l.band = band
	l.foretell()
}

func (l *link) advance() {
	if n := len(l.flows); n > 0 {
		sent := l.band * (l.sim.now - l.at).Seconds() / float64(n)
		for _, f := range l.flows {
			f.left -= sent
		}
	}
	l.at = l.sim.now
}

// drop removes flows and lets those go that wait.
func (l *link) drop(out func(*flow) bool) {
	keep := l.flows[:0]
	for _, f := range l.flows {
		if !out(f) {
			keep = append(keep, f)
		}
	}
	clear(l.flows[len(keep):])
	l.flows = keep
	for len(l.queue) > 0 && (l.most == 0 || len(l.flows) < l.most) {
		if f := l.queue[0]; !f.gone {
			l.flows = append(l.flows, f)
		}
		l.queue = l.queue[1:]
	}
}

// foretell schedules the next end of a flow.
func (l *link) foretell() {
	l.turn++
	if len(l.flows) == 0 {
		return
	}
	least := l.flows[0].left
	for _, f := range l.flows[1:] {
		least = min(least, f.left)
	}
	turn := l.turn
	wait := seconds(math.Max(least, 0) * float64(len(l.flows)) / l.band)
	l.sim.after(wait, func() {
		if l.turn == turn {
			l.finish()
		}
	})
}

// finish ends the flows that have nothing left, up to what a nanosecond carries.
func (l *link) finish() {
	l.advance()
	rest := l.band * 2e-9
	var over []*flow
	l.drop(func(f *flow) bool {
		if f.left <= rest {
			over = append(over, f)
			return true
		}
		return false
	})
	l.foretell()
	for _, f := range over {
		f.done()
	}
}

// seconds turns a number of seconds into a duration, rounded up.
func seconds(s float64) time.Duration { return time.Duration(math.Ceil(s * 1e9)) }
