package comm

import "fmt"

// Group is the part of an instance's ranks that lives in this process.
type Group struct {
	hub *hub
}

// NewLocal makes a group whose ranks all live in this process.
func NewLocal(cfg Config) (*Group, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	h := newHub(cfg, Span{0, cfg.Size - 1})
	h.start()
	return &Group{hub: h}, nil
}

func (h *hub) start() {
	h.bg.Add(1)
	go h.watch()
	if h.up != nil {
		h.bg.Add(1)
		go h.report()
	}
}

// Ranks are the ranks of this process.
func (g *Group) Ranks() Span { return g.hub.span }

// Rank is the place of one rank of this process. Ranks of other processes are a
// mistake of the caller.
func (g *Group) Rank(id int) *Rank {
	if !g.hub.span.Has(id) {
		panic(fmt.Sprintf("comm: rank %d is not among the %v of this process", id, g.hub.span))
	}
	return g.hub.ranks[id-g.hub.span.First]
}

// Done is closed when the group ends, for whatever reason.
func (g *Group) Done() <-chan struct{} { return g.hub.done }

// Err says why the group ended, nil while it lives.
func (g *Group) Err() error {
	select {
	case <-g.hub.done:
		return g.hub.err
	default:
		return nil
	}
}

// Close ends the group for all processes, unless it has ended, and waits for
// its goroutines.
func (g *Group) Close() error {
	h := g.hub
	_ = h.ranks[0].Close()
	if h.up != nil {
		h.up.close()
	}
	h.bg.Wait()
	return nil
}
