package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The numbers of DS 14.1.
const (
	ProbeInterval = 3 * time.Second // between two health probes of a worker
	RetryInterval = time.Second     // the same while the worker is not routable, so that it returns soon
	ProbeTimeout  = 5 * time.Second // of one probe
	probeFailures = 2               // consecutive failed probes that make a worker unroutable
)

// entry is all the table knows of one address. Invariant: prepared implies info was accepted.
type entry struct {
	id, url   string
	legs      map[Role]bool // sections that list it
	inst      Instance      // valid when known
	known     bool          // info was fetched once in the present incarnation
	prepared  bool          // the last probes were good
	refused   string        // why info was not accepted, "" = accepted
	fails     int           // consecutive failed probes
	gone      bool          // at the last probe nothing listened there
	lastError string
	lastSeen  time.Time
	health    Health
	breaker   breaker             // fed by legs and probes
	seen      int                 // good probes so far
	mute      []time.Time         // when the last probes in a row without any answer began, at most probeFailures
	watches   map[*Watch]struct{} // of the legs that run
	down      chan struct{}       // closed when legs are lost
	workerID  string              // of the registration in force, "" = from the configuration
	left      time.Time           // when it left the cluster; zero = it is in it
	kick      chan struct{}       // asks for a probe at once
}

func newEntry(id, url string) *entry {
	return &entry{id: id, url: url, inst: Instance{Info: &ServerInfo{}}, legs: map[Role]bool{}, watches: map[*Watch]struct{}{}, down: make(chan struct{}), kick: make(chan struct{}, 1)}
}

// ask asks for a probe at once.
func (e *entry) ask() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// report is the outcome of one probe.
type report struct {
	health Health
	info   ServerInfo
	models []Model
	err    error // nil = healthy and info fetched
	gone   bool  // nothing listens at the address: running legs are lost too
	mute   bool  // it gave no answer: legs that are silent since are lost too
	began  time.Time
}

// table is the pure state of discovery. Not safe for concurrent use.
type table struct {
	order []*entry // order of configuration or of joining, which is the order of placement
	byID  map[string]*entry
	lists map[listKey][]Instance // made since the last change
}

func newTable() *table { return &table{byID: map[string]*entry{}} }

// add lists an address under a section. The same address in both sections is one entry with two legs.
func (t *table) add(id, url string, leg Role) error {
	t.lists = nil
	e := t.byID[id]
	if e == nil {
		e = newEntry(id, url)
		t.byID[id] = e
		t.order = append(t.order, e)
	}
	if e.legs[leg] {
		return fmt.Errorf("worker %s is listed twice among the %s servers", id, leg)
	}
	e.legs[leg] = true
	return nil
}

// probed applies a probe's outcome and tells whether the worker turned out to be another process.
func (t *table) probed(now time.Time, id string, r report) (restarted bool) {
	e := t.byID[id]
	if e == nil {
		return false
	}
	t.lists = nil
	e.gone = r.gone
	if r.err != nil {
		e.fails++
		e.lastError = r.err.Error()
		if r.gone {
			e.lose(e.seen + 1)
		}
		e.muted(r)
		if e.fails >= probeFailures || r.gone {
			e.prepared = false
		}
		e.breaker.probed(now, false)
		return false
	}
	restarted = e.known && e.inst.Info.Incarnation != r.info.Incarnation
	if restarted {
		e.lose(e.seen)
		e.breaker = breaker{} // its failures were those of the process before
	}
	e.seen++
	e.mute = nil
	e.fails, e.lastError, e.lastSeen, e.health = 0, "", now, r.health
	e.inst = Instance{ID: e.id, URL: e.url, Info: &r.info, Models: r.models}
	e.known = true
	e.refused = e.accept(&r.info)
	e.prepared = e.refused == ""
	e.breaker.probed(now, true)
	return restarted
}

// accept returns why a worker's self-description cannot be used, "" if it can.
func (e *entry) accept(info *ServerInfo) string {
	if info.Remote {
		return fmt.Sprintf("computes %s of an instance and serves no requests: list the process of its rank 0", RankNames(info.Ranks))
	}
	listed := "is listed among the %s servers but says its role is %q"
	if e.workerID != "" {
		listed = "registered for the %s role but says its role is %q"
	}
	for _, leg := range []Role{Context, Generation} {
		if e.legs[leg] && !info.Role.Serves(leg) {
			return fmt.Sprintf(listed, leg, info.Role)
		}
	}
	return ""
}

// lose ends the legs that began before that many good probes.
func (e *entry) lose(before int) {
	for w := range e.watches {
		if w.seen < before {
			delete(e.watches, w)
			w.lost(FateGone)
		}
	}
	close(e.down)
	e.down = make(chan struct{})
}

// muted notes a probe without an answer. Once there are enough of them in a row, the legs are given up that have said nothing
// since the first of those began.
func (e *entry) muted(r report) {
	if !r.mute {
		e.mute = nil
		return
	}
	e.mute = append(e.mute, r.began)
	e.mute = e.mute[max(0, len(e.mute)-probeFailures):]
	if len(e.mute) < probeFailures {
		return
	}
	for w := range e.watches {
		if w.heard().Before(e.mute[0]) {
			delete(e.watches, w)
			w.lost(FateSilent)
		}
	}
}

// legEnded records whether a leg could talk to its worker; it feeds the breaker. It returns true when the breaker opened.
func (t *table) legEnded(now time.Time, id string, connected bool) (opened bool) {
	e := t.byID[id]
	if e == nil {
		return false
	}
	if opened = e.breaker.leg(now, connected); opened {
		t.lists = nil
	}
	return opened
}

// routable tells whether placement may choose e.
func (e *entry) routable() bool { return e.left.IsZero() && e.prepared && e.breaker.closed() }

// keptAway tells whether its probes are good and only its breaker keeps it away.
func (e *entry) keptAway() bool { return e.left.IsZero() && e.prepared && !e.breaker.closed() }

// prepared counts the workers of a leg whose probes are good.
func (t *table) prepared(leg Role) (n int) {
	for _, e := range t.order {
		if e.legs[leg] && e.prepared && e.left.IsZero() {
			n++
		}
	}
	return n
}

// Warning is a finding that does not stop the cluster.
type Warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Codes of Warning raised here.
const (
	WarnPairing = "W_PAIRING"
	WarnRole    = "W_ROLE"
)

// warnings lists workers that are healthy and yet can never be chosen.
func (t *table) warnings() []Warning {
	var out []Warning
	for _, e := range t.order {
		switch {
		case !e.left.IsZero():
		case e.refused != "":
			out = append(out, Warning{WarnRole, fmt.Sprintf("worker %s %s", e.id, e.refused)})
		case e.prepared:
			out = append(out, t.unpaired(e)...)
		}
	}
	slices.SortStableFunc(out, func(a, b Warning) int { return cmp.Compare(a.Code, b.Code) })
	return out
}

// unpaired warns about a worker that pairs with no known worker of the other leg.
func (t *table) unpaired(e *entry) []Warning {
	var out []Warning
	for _, leg := range []Role{Context, Generation} {
		if !e.legs[leg] || !e.left.IsZero() {
			continue
		}
		peers, reason := 0, ""
		for _, o := range t.order {
			if !o.legs[leg.Other()] || !o.known || o.refused != "" || !o.left.IsZero() {
				continue
			}
			peers++
			ok, why := pairsAs(leg, e.inst.Info, o.inst.Info)
			if ok {
				reason = ""
				break
			}
			reason = fmt.Sprintf("%s, compared with %s", why, o.id)
		}
		if peers > 0 && reason != "" {
			out = append(out, Warning{WarnPairing, fmt.Sprintf("%s worker %s is never selected: %s", leg, e.id, reason)})
		}
	}
	return out
}

// pairsAs compares a worker that would run leg with one that would run the other.
func pairsAs(leg Role, self, other *ServerInfo) (bool, string) {
	if leg == Context {
		return Pairs(self, other)
	}
	return Pairs(other, self)
}
