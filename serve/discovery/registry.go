package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Config lists the workers of a static cluster and what readiness needs. Without a list workers come by SetMembers.
type Config struct {
	Context    []string // addresses of ctx workers, forms of ParseURL
	Generation []string // addresses of gen workers; one that is in both lists is a mixed worker
	MinContext int      // prepared ctx workers needed for readiness, >= 0
	MinGen     int      // same for gen
}

// Registry keeps the table up to date by probing and answers who may be used. Safe for concurrent use.
type Registry struct {
	cfg       Config
	prober    Prober
	log       *slog.Logger
	now       func() time.Time
	onRestart func(id string)
	onGone    func(id string)
	onReport  func(id string, requests int)

	mu      sync.Mutex
	table   *table
	changed chan struct{}   // closed and replaced after each change of readiness inputs
	extra   []Warning       // of SetWarning
	running context.Context // of Run, nil before it and after it
	loops   sync.WaitGroup  // one for each address, while running
}

// Options are what a Registry needs from outside. Zero fields get defaults.
type Options struct {
	Prober    Prober
	Log       *slog.Logger
	Now       func() time.Time
	OnRestart func(id string) // called without locks when an address turned out to be a new process
	OnGone    func(id string) // called without locks when an address that left the cluster is given up for good
	// OnReport is called without locks after each good probe, with the requests that the worker says it has.
	OnReport func(id string, requests int)
}

// New makes a registry of the configured addresses; Run starts probing.
func New(cfg Config, opts Options) (*Registry, error) {
	r := &Registry{
		cfg: cfg, prober: opts.Prober, log: opts.Log, now: opts.Now, onRestart: opts.OnRestart, onGone: opts.OnGone, onReport: opts.OnReport,
		table: newTable(), changed: make(chan struct{}),
	}
	if r.prober == nil {
		return nil, errors.New("discovery: no prober")
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	if r.now == nil {
		r.now = time.Now
	}
	for _, leg := range []struct {
		role Role
		urls []string
	}{{Context, cfg.Context}, {Generation, cfg.Generation}} {
		for _, text := range leg.urls {
			id, url, err := ParseURL(text)
			if err == nil {
				err = r.table.add(id, url, leg.role)
			}
			if err != nil {
				return nil, fmt.Errorf("discovery: %w", err)
			}
		}
	}
	return r, nil
}

// Run probes every worker at once and then each ProbeInterval until ctx ends; it returns after all its goroutines did.
// Call it once.
func (r *Registry) Run(ctx context.Context) {
	r.mu.Lock()
	r.running = ctx
	for _, e := range r.table.order {
		r.start(e)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.running = nil // no loop begins any more
	r.mu.Unlock()
	r.loops.Wait()
}

// start begins to probe an address, if the registry runs. The caller holds mu.
func (r *Registry) start(e *entry) {
	if ctx := r.running; ctx != nil {
		r.loops.Go(func() { r.watch(ctx, e) })
	}
}

func (r *Registry) watch(ctx context.Context, e *entry) {
	for {
		wait := ProbeInterval
		if !r.probe(ctx, e) {
			wait = RetryInterval
		}
		if r.forgotten(e) {
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-e.kick:
			timer.Stop()
		}
	}
}

// forgotten gives an address up that left and needs no more watching.
func (r *Registry) forgotten(e *entry) bool {
	r.mu.Lock()
	done := r.table.forgotten(r.now(), e)
	r.mu.Unlock()
	if done && r.onGone != nil {
		r.onGone(e.id)
	}
	return done
}

// probe asks once and applies the answer; it returns whether the worker is routable now.
func (r *Registry) probe(ctx context.Context, e *entry) bool {
	id := e.id
	pctx, cancel := context.WithTimeout(ctx, ProbeTimeout)
	defer cancel()
	began := r.now()
	health, info, models, err := r.prober.Probe(pctx, e.url)
	if ctx.Err() != nil {
		return false
	}
	rep := report{health: health, info: info, models: models, err: err, gone: errors.Is(err, ErrGone), mute: errors.Is(err, ErrMute), began: began}
	r.mu.Lock()
	before := e.routable()
	restarted := r.table.probed(r.now(), id, rep)
	after := e.routable()
	if before != after || restarted {
		r.wake()
	}
	refused := e.refused
	var misfits []Warning
	if !before && after {
		misfits = r.table.unpaired(e)
	}
	r.mu.Unlock()
	if restarted && r.onRestart != nil {
		r.onRestart(id)
	}
	if err == nil && r.onReport != nil {
		r.onReport(id, health.RequestsActive)
	}
	switch {
	case !before && after:
		r.log.Info("worker is up", "server", id, "role", info.Role, "model", info.Model, "incarnation", info.Incarnation)
		for _, w := range misfits {
			r.log.Warn(w.Message)
		}
	case before && !after:
		r.log.Warn("worker is down", "server", id, "error", reason(err, refused))
	case restarted:
		r.log.Info("worker restarted", "server", id, "incarnation", info.Incarnation)
	}
	return after
}

// reason tells why a worker may not be chosen: its probe failed, or it is not what the list says.
func reason(err error, refused string) string {
	if err != nil {
		return err.Error()
	}
	return refused
}

// wake tells waiters that something changed. The caller holds mu.
func (r *Registry) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// LegEnded records whether a leg could talk to its worker. A failure asks for a probe at once.
func (r *Registry) LegEnded(id string, connected bool) {
	r.mu.Lock()
	opened := r.table.legEnded(r.now(), id, connected)
	if opened {
		r.wake()
	}
	r.mu.Unlock()
	if opened {
		r.log.Warn("worker refuses connections, breaker open", "server", id, "for", breakerOpenFor)
	}
	if !connected {
		r.Suspect(id)
	}
}

// Suspect asks for a probe of a worker at once, because an exchange with it broke.
func (r *Registry) Suspect(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.table.byID[id]; e != nil {
		e.ask()
	}
}

// Down returns a channel that is closed when legs now running on the instance are lost: the address stopped listening or
// answers as another process.
func (r *Registry) Down(id string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.table.byID[id]; e != nil {
		return e.down
	}
	return nil
}

// Candidates lists the routable workers of a leg, in configuration order, that pair with at least one routable worker of
// the other leg other than themselves. With a model name only workers that list it count; "" means any.
func (r *Registry) Candidates(leg Role, model string) []Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.list(listKey{leg, model})
}

// Partners lists the routable workers of the other leg that pair with the given one of leg, itself left out.
func (r *Registry) Partners(leg Role, in Instance, model string) []Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return partners(leg, in, r.table.serving(leg.Other(), model))
}

// Alone lists the routable mixed workers that serve both legs, which can run a request without a hand-over.
func (r *Registry) Alone(model string) []Instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.list(listKey{Mixed, model})
}

// Serves tells whether a model of that name may be asked for: a worker whose probes are good lists it, or does not say what
// it serves.
func (r *Registry) Serves(model string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.table.order {
		if (e.routable() || e.keptAway()) && (e.legs[Context] || e.legs[Generation]) && e.inst.mayServe(model) {
			return true
		}
	}
	return false
}

// Models lists the models of all routable workers, each name once, in configuration order. open tells that some worker
// does not say what it serves, so that a name not listed may still exist.
func (r *Registry) Models() (models []Model, open bool) {
	seen := map[string]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, leg := range []Role{Context, Generation} {
		for _, in := range r.table.serving(leg, "") {
			open = open || len(in.Models) == 0
			for _, m := range in.Models {
				if !seen[m.ID] {
					seen[m.ID] = true
					models = append(models, m)
				}
			}
		}
	}
	return models, open
}

// When a start that waits says for whom, first and from then on.
const (
	tellWait  = 10 * time.Second
	tellAgain = 30 * time.Second
)

// WaitStart blocks until all listed workers are prepared, or, unless strict, until the minimum is. The error names who
// is missing and why, and so does the log meanwhile.
func (r *Registry) WaitStart(ctx context.Context, strict bool) error {
	tell := time.NewTimer(tellWait)
	defer tell.Stop()
	for {
		r.mu.Lock()
		changed := r.changed
		ready := r.status().Ready && (!strict || len(r.missing()) == 0)
		r.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("workers not ready: %s", r.whoIsMissing()) // one line, since it ends the start
		case <-tell.C:
			r.log.Warn("waiting for workers", "missing", r.whoIsMissing())
			tell.Reset(tellAgain)
		case <-changed:
		}
	}
}

// whoIsMissing says it as of now: failed probes wake nobody.
func (r *Registry) whoIsMissing() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.missing(), "; ")
}

func (r *Registry) missing() []string {
	var out []string
	for _, e := range r.table.order {
		switch {
		case e.prepared || !e.left.IsZero():
		case e.refused != "":
			out = append(out, fmt.Sprintf("worker %s %s", e.id, e.refused))
		case e.lastError != "":
			out = append(out, fmt.Sprintf("worker %s: %s", e.id, e.lastError))
		default:
			out = append(out, fmt.Sprintf("worker %s has not answered yet", e.id))
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, leg := range []struct {
		role Role
		min  int
	}{{Context, r.cfg.MinContext}, {Generation, r.cfg.MinGen}} {
		if n := r.table.prepared(leg.role); n < leg.min {
			out = append(out, fmt.Sprintf("%d of %d %s workers are there", n, leg.min, leg.role))
		}
	}
	return out
}
