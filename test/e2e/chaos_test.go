//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// trial is one run of chaos.
type trial struct {
	seed    uint64
	model   string // a path; empty = the tiny random model
	tokens  int    // of each worker's pool
	clients int
	samples int
	longest int           // tokens of an answer
	yaml    string        // more of the frontend
	kills   time.Duration // only gen workers are killed, no request is hit by two
	all     time.Duration // then everything happens
}

// TestChaos puts 300 streams at a time on two ctx and two gen workers that are killed, stalled, drained, cut off and slowed
// down. Every client gets a complete and right answer or a clean error, and nothing is left of any request.
func TestChaos(t *testing.T) {
	trial{seed: 1, tokens: 300000, clients: 300, samples: 120, longest: 120, kills: 6 * time.Second, all: 12 * time.Second}.run(t)
}

// TestSoakChaos is the same for SOAK, with the tiny model.
func TestSoakChaos(t *testing.T) {
	span := soakFor(t)
	seed := uint64(time.Now().UnixNano())
	trial{seed: seed, tokens: 400000, clients: 300, samples: 200, longest: 300, kills: span / 5, all: span - span/5}.run(t)
}

// TestSoakChaosGenerationFirst is the same with both legs at once.
func TestSoakChaosGenerationFirst(t *testing.T) {
	span := soakFor(t)
	seed := uint64(time.Now().UnixNano())
	trial{
		seed: seed, tokens: 400000, clients: 300, samples: 200, longest: 300, kills: span / 5, all: span - span/5,
		yaml: "schedule_style: generation_first\n",
	}.run(t)
}

// TestSoakChaosRealModel is the same with the default model and fewer clients.
func TestSoakChaosRealModel(t *testing.T) {
	span := soakFor(t)
	needModel(t)
	seed := uint64(time.Now().UnixNano())
	trial{seed: seed, model: modelName, tokens: 65536, clients: 24, samples: 40, longest: 60, kills: span / 5, all: span - span/5}.run(t)
}

// soakFor is how long a soak test runs; without SOAK it is skipped.
func soakFor(t *testing.T) time.Duration {
	t.Helper()
	span, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("SOAK is not set to a duration")
	}
	return span
}

func (c trial) run(t *testing.T) {
	t.Logf("seed %d", c.seed)
	model := chaosModel(t, c.model)
	samples := chaosSamples(c.samples, c.longest)
	alone := startAlone(t, model, c.tokens)
	want := oracle(t, samples, alone.url)
	alone.stop(t)

	a := newArena(t, model, c.tokens, c.yaml)
	a.whole(t)
	l := &load{t: t, url: a.front.url, samples: samples, want: want, seed: c.seed, dump: a.dump}
	run(t, samples, pass{"before", a.front.url, true, both})
	a.clean(t)
	before := footprints(t, append(a.workers(), a.front)...)

	plan := newSchedule(c.seed)
	l.begin(c.clients)
	killing := a.storm(t, l, c.kills, func() blow {
		l.turnOver(silence)
		return plan.kill(a)
	})
	everything := a.storm(t, l, c.all, func() blow { return plan.next(a) })
	t.Log("the clients end")
	l.end()
	a.report(t, l, "gen workers killed", killing, 0.01)
	a.report(t, l, "everything", everything, 0.05)

	a.clean(t)
	t.Log("nothing is left of any request")
	after := run(t, samples, pass{"after", a.front.url, true, both})
	for i, r := range after {
		if r != nil && !same(r, want[i]) {
			t.Errorf("after the chaos: %s differs\n got %s\nwant %s", samples[i].name, show(r), show(want[i]))
		}
	}
	a.clean(t)
	if c.all < time.Minute { // workers keep connections among themselves for half a minute
		checkFootprint(t, a.front, before[a.front])
		return
	}
	a.checkFootprints(t, before)
}

// startAlone starts the oracle.
func startAlone(t *testing.T, model string, tokens int) *process {
	t.Helper()
	file := writeFile(t, "alone.yaml", fmt.Sprintf(chaosYAML, chaosName, tokens, 0, 0, "127.0.0.1"))
	return start(t, "oracle", engineBin, "serve", model, "--port", "0", "-c", file)
}

// clean checks that nothing is left of any request, anywhere.
func (a *arena) clean(t *testing.T) {
	t.Helper()
	waitClean(t, settleLimit, a.workers()...)
	var open []string
	front := rig{process: a.front}
	if !eventually(settleLimit, func() bool { open = front.open(t); return len(open) == 0 }) {
		t.Errorf("the idle frontend says %q", open)
	}
}

// checkFootprints compares the frontend, and workers in whatever life they are now, with what they held before.
func (a *arena) checkFootprints(t *testing.T, before map[*process]footprint) {
	t.Helper()
	byRole := map[string]footprint{}
	for p, f := range before {
		role := p.name[:3]
		byRole[role] = footprint{max(byRole[role].goroutines, f.goroutines), max(byRole[role].files, f.files)}
	}
	for _, p := range append(a.workers(), a.front) {
		checkFootprint(t, p, byRole[p.name[:3]])
	}
}

// span is a stretch of time with the blows that fell.
type span struct {
	from, to time.Time
	blows    []struck
}

// struck is one blow and when it began.
type struck struct {
	blow
	at time.Time
}

// storm strikes blow after blow, each when the cluster has recovered from the one before.
func (a *arena) storm(t *testing.T, l *load, length time.Duration, next func() blow) span {
	t.Helper()
	s := span{from: time.Now()}
	for time.Since(s.from) < length && !t.Failed() {
		time.Sleep(time.Second)
		b := next()
		s.blows = append(s.blows, struck{b, time.Now()})
		t.Logf("%5.1fs %s for %v, %d requests are open", time.Since(s.from).Seconds(), b, b.hold, l.open())
		b.strike(t)
		a.whole(t)
	}
	s.to = time.Now()
	return s
}

// report prints how the requests of a span ended, and fails when too many got an error.
func (a *arena) report(t *testing.T, l *load, name string, s span, most float64) {
	t.Helper()
	var ends []ending
	for _, e := range l.ends {
		if e.over.After(s.from) && !e.over.After(s.to) || e.over.After(s.to) && !e.begun.After(s.to) {
			ends = append(ends, e)
		}
	}
	kinds, classes, streams := map[string]int{}, map[string]int{}, 0
	for _, e := range ends {
		kinds[e.kind]++
		if e.class != "" {
			classes[e.class]++
		}
		if e.stream {
			streams++
		}
	}
	var b strings.Builder
	row := func(format string, args ...any) { fmt.Fprintf(&b, "  "+format+"\n", args...) }
	row("%-28s %d in %v, %d of them streams", "requests", len(ends), s.to.Sub(s.from).Round(time.Second), streams)
	for _, k := range []string{endComplete, endLeft, endError, endBad} {
		row("%-28s %d", k, kinds[k])
	}
	for _, k := range sortedKeys(classes) {
		row("  %-26s %d", k, classes[k])
	}
	firsts, pauses := times(ends, s)
	row("%-28s p50 %v, p99 %v, most %v", "first byte", at(firsts, 0.5), at(firsts, 0.99), at(firsts, 1))
	row("%-28s %d pauses, p50 %v, p99 %v, most %v", "recovery of streams hit", len(pauses), at(pauses, 0.5), at(pauses, 0.99), at(pauses, 1))
	text := get(t, a.front.url+"/metrics")
	for _, m := range []string{
		`tandem_streams_resumed_total{outcome="resumed"}`, `tandem_streams_resumed_total{outcome="failed"}`,
		"tandem_ctx_retry_requests", "tandem_gen_retry_requests", "tandem_handoff_expired_total",
	} {
		row("%-48s %s (so far)", m, metric(text, m))
	}
	t.Logf("%s: %d blows\n%s", name, len(s.blows), b.String())
	if part := float64(kinds[endError]) / float64(max(1, len(ends)-kinds[endLeft])); part > most {
		t.Errorf("%s: %.2f %% of the requests got an error, the limit is %.0f %%", name, 100*part, 100*most)
	}
}

// times are the waits for a first byte, and the pauses of streams that a blow fell into, from the blow on.
func times(ends []ending, s span) (firsts, pauses []time.Duration) {
	for _, e := range ends {
		if e.stream && e.first > 0 {
			firsts = append(firsts, e.first)
		}
		for _, k := range s.blows {
			for _, g := range e.gaps {
				if e.kind == endComplete && k.hits(e.gen) && g.to.After(k.at) && g.from.Before(k.at.Add(shortestGap)) {
					pauses = append(pauses, g.to.Sub(k.at))
					break
				}
			}
		}
	}
	slices.Sort(firsts)
	slices.Sort(pauses)
	return firsts, pauses
}

// hits tells whether a blow fell on the worker behind an address.
func (b blow) hits(address string) bool {
	return slices.ContainsFunc(b.at, func(m *member) bool { return m.http.Listen == address })
}

// at is a quantile of sorted times.
func at(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(time.Millisecond)
}

func sortedKeys(m map[string]int) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
