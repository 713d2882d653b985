package guided

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
)

// Bounds of the automaton that grows with outputs.
const (
	maxDepth  = 64       // calls inside each other: how deep JSON nests
	maxPlaces = 8192     // places of one state
	maxBytes  = 32 << 20 // about what is kept for other outputs
	maxWork   = 300_000  // places followed for one mask, which others of the batch wait for
)

// What things cost, in bytes and in places.
const (
	bytesOfState, bytesOfConfig, bytesOfFrame = 2200, 24, 96
	workOfState                               = 16
)

var (
	errTime    = errors.New("the grammar takes too long to compile")
	errComplex = errors.New("the grammar is too ambiguous: too many ways to go on at once")
)

// frame is where calls return to. Equal ones are one.
type frame struct {
	id    uint32
	depth int
	ret   int32
	up    *frame
}

// config is a place in the network, and the calls that led there.
type config struct {
	at    int32
	frame *frame
}

// state is a set of configs.
type state struct {
	configs []config // those that read a byte
	accept  bool     // the output may end here
	next    [256]*state
	mask    []uint64
}

// dead is the state from which nothing can follow.
var dead = &state{}

// Grammar is a compiled grammar over one vocabulary. It may be shared.
type Grammar struct {
	net   *network
	vocab *Vocab

	mu     sync.Mutex
	frames map[[2]uint32]*frame
	named  uint32 // last frame's id
	states map[string]*state
	bytes  int // of frames, states and masks
	start  *state
	work   int
	stop   func() bool // while it is compiled
	path   []*state    // scratch of a mask
}

func newGrammar(net *network, v *Vocab, stop func() bool) (*Grammar, error) {
	g := &Grammar{stop: stop, net: net, vocab: v, frames: map[[2]uint32]*frame{}, states: map[string]*state{}}
	var err error
	if g.start, err = g.close([]config{{at: net.starts[0]}}); err != nil {
		return nil, err
	}
	if _, err = g.maskOf(g.start); err != nil {
		return nil, err
	}
	g.stop = nil
	if g.start == dead || !g.start.accept && !some(g.start.mask) {
		return nil, errors.New("no token of this model can begin what the grammar asks for")
	}
	return g, nil
}

func some(mask []uint64) bool {
	return slices.ContainsFunc(mask, func(w uint64) bool { return w != 0 })
}

// call is the frame of a call in f that returns to ret.
func (g *Grammar) call(f *frame, ret int32) *frame {
	key := [2]uint32{uint32(ret), 0}
	depth := 1
	if f != nil {
		key[1], depth = f.id, f.depth+1
	}
	c, ok := g.frames[key]
	if !ok {
		g.named++
		g.bytes += bytesOfFrame
		c = &frame{id: g.named, depth: depth, ret: ret, up: f}
		g.frames[key] = c
	}
	return c
}

// close follows all that reads nothing and returns the state of what is left.
func (g *Grammar) close(todo []config) (*state, error) {
	seen := make(map[config]struct{}, len(todo))
	s := &state{}
	g.work += workOfState
	for len(todo) > 0 {
		c := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if _, ok := seen[c]; ok {
			continue
		}
		if seen[c] = struct{}{}; len(seen) > maxPlaces {
			return nil, errComplex
		}
		g.work++
		p := &g.net.places[c.at]
		switch p.kind {
		case isSet:
			s.configs = append(s.configs, c)
		case isEps:
			for _, at := range p.eps {
				todo = append(todo, config{at, c.frame})
			}
		case isCall:
			f := c.frame
			if p.to != theReturn { // else there is nothing to come back for
				if f = g.call(f, p.to); f.depth > maxDepth {
					continue
				}
			}
			todo = append(todo, config{g.net.starts[p.rule], f})
		case isReturn:
			if c.frame == nil {
				s.accept = true
			} else {
				todo = append(todo, config{c.frame.ret, c.frame.up})
			}
		}
	}
	if len(s.configs) == 0 && !s.accept {
		return dead, nil
	}
	return g.intern(s), nil
}

// intern returns the one state that is equal to s.
func (g *Grammar) intern(s *state) *state {
	slices.SortFunc(s.configs, func(a, b config) int {
		if a.at != b.at {
			return int(a.at) - int(b.at)
		}
		return int(a.frame.number()) - int(b.frame.number())
	})
	key := make([]byte, 0, 8*len(s.configs)+1)
	for _, c := range s.configs {
		key = binary.LittleEndian.AppendUint32(key, uint32(c.at))
		key = binary.LittleEndian.AppendUint32(key, c.frame.number())
	}
	if s.accept {
		key = append(key, 1)
	}
	if old, ok := g.states[string(key)]; ok {
		return old
	}
	g.states[string(key)] = s
	g.bytes += bytesOfState + bytesOfConfig*len(s.configs)
	return s
}

// trim forgets all when that is too much. Outputs under way keep the state they are
// in; what followed it is found again. Equal frames may then be two, which costs
// states only.
func (g *Grammar) trim() {
	if g.bytes <= maxBytes {
		return
	}
	for _, s := range g.states { // they hold each other
		s.next, s.mask = [256]*state{}, nil
	}
	g.start.next, g.start.mask = [256]*state{}, nil
	clear(g.states)
	clear(g.frames)
	clear(g.path[:cap(g.path)])
	g.bytes = 0
}

func (f *frame) number() uint32 {
	if f == nil {
		return 0
	}
	return f.id
}

// step returns the state after byte b.
func (g *Grammar) step(s *state, b byte) (*state, error) {
	if n := s.next[b]; n != nil || s == dead { // dead belongs to all grammars
		return cmp.Or(n, dead), nil
	}
	var todo []config
	g.work += len(s.configs) / 16 // a look is cheap
	for _, c := range s.configs {
		if p := &g.net.places[c.at]; p.set.has(b) {
			todo = append(todo, config{p.to, c.frame})
		}
	}
	n := dead
	if len(todo) > 0 {
		var err error
		if n, err = g.close(todo); err != nil {
			return nil, err
		}
	}
	s.next[b] = n
	return n, nil
}

// maskOf returns which tokens may follow s.
func (g *Grammar) maskOf(s *state) ([]uint64, error) {
	if s.mask != nil || s == dead {
		return s.mask, nil
	}
	g.trim()
	v := g.vocab
	mask, path := make([]uint64, (v.size+63)/64), append(g.path[:0], s)
	g.work = 0
	gone := -1 // tokens that have more than so many bytes in common with the last refused one are refused too
	for i, t := range v.tokens {
		if gone >= 0 && v.alike[i] > gone {
			continue
		}
		gone = -1
		path = path[:v.alike[i]+1]
		for k := v.alike[i]; k < len(t); k++ {
			n, err := g.step(path[k], t[k])
			if err != nil {
				return nil, err
			}
			if n == dead {
				gone = k
				break
			}
			path = append(path, n)
		}
		if g.work > maxWork {
			return nil, errComplex
		}
		if g.stop != nil && i%64 == 0 && g.stop() {
			return nil, errTime
		}
		if gone < 0 {
			id := v.ids[i]
			mask[id>>6] |= 1 << (id & 63)
		}
	}
	g.path = path
	s.mask = mask
	g.bytes += 8 * len(mask)
	return mask, nil
}

// Matcher follows one output.
type Matcher struct {
	g   *Grammar
	at  *state
	err error // why it went on no further
}

// Start returns a matcher of an empty output.
func (g *Grammar) Start() *Matcher { return &Matcher{g: g, at: g.start} }

// Push takes the next token; false: the grammar refuses it, and from then on all.
// Where the grammar is too complex to go on, Mask tells.
func (m *Matcher) Push(token int32) bool {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trim()
	g.work = 0
	if m.err != nil {
		return true
	}
	if token < 0 || int(token) >= g.vocab.size || len(g.vocab.bytes[token]) == 0 {
		m.at = dead
		return false
	}
	for _, b := range g.vocab.bytes[token] {
		n, err := g.step(m.at, b)
		if err == nil && g.work > maxWork {
			err = errComplex
		}
		if err != nil {
			m.err = err
			return true
		}
		m.at = n
	}
	return m.at != dead
}

// Mask returns which tokens may come next, a bit for each id, and whether the output
// may end here. The mask must not be changed. An error says that the grammar is too
// complex to go on.
func (m *Matcher) Mask() (allowed []uint64, mayEnd bool, err error) {
	if m.err != nil {
		return nil, false, m.err
	}
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	allowed, err = g.maskOf(m.at)
	return allowed, m.at.accept, err
}
