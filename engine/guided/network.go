package guided

import "fmt"

// maxStates bounds a network.
const maxStates = 200_000

// place is a state of the network: a byte of set leads to to; or nothing is read and
// all of eps follow, or the rule is matched and then to.
type place struct {
	kind placeKind
	set  set
	to   int32
	rule int32
	eps  []int32
}

type placeKind uint8

const (
	isSet placeKind = iota
	isEps
	isCall
	isReturn
)

// theReturn is the place where every rule ends.
const theReturn = 0

// network is a compiled grammar. Rule 0 is what the whole output matches.
type network struct {
	places []place
	starts []int32 // by rule
}

// builder makes a network.
type builder struct {
	net   network
	rules map[string]int32
	names []string // by rule
	body  func(name string) (*expr, error)
	stop  func() bool
	steps int
}

// build compiles the rule start and all that it refers to. stop is asked now and then
// whether to give up.
func build(start string, body func(name string) (*expr, error), stop func() bool) (*network, error) {
	b := &builder{rules: map[string]int32{}, body: body, stop: stop}
	b.net.places = append(b.net.places, place{kind: isReturn})
	b.rule(start)
	for i := 0; i < len(b.names); i++ {
		e, err := body(b.names[i])
		if err != nil {
			return nil, err
		}
		at, err := b.compile(e, theReturn)
		if err != nil {
			return nil, err
		}
		b.net.starts[i] = at
	}
	return &b.net, nil
}

func (b *builder) rule(name string) int32 {
	if id, ok := b.rules[name]; ok {
		return id
	}
	id := int32(len(b.names))
	b.rules[name] = id
	b.names = append(b.names, name)
	b.net.starts = append(b.net.starts, -1)
	return id
}

func (b *builder) add(p place) (int32, error) {
	if len(b.net.places) >= maxStates {
		return 0, fmt.Errorf("the grammar is too large: more than %d states", maxStates)
	}
	b.net.places = append(b.net.places, p)
	return int32(len(b.net.places) - 1), nil
}

// compile adds what matches e and goes on at next, and returns where it begins.
func (b *builder) compile(e *expr, next int32) (at int32, err error) {
	if b.steps++; b.steps%1024 == 0 && b.stop() {
		return 0, errTime
	}
	switch at = next; e.op {
	case opLit:
		for i := len(e.lit) - 1; i >= 0 && err == nil; i-- {
			p := place{kind: isSet, to: at}
			p.set.add(e.lit[i], e.lit[i])
			at, err = b.add(p)
		}
	case opSet:
		at, err = b.add(place{kind: isSet, set: e.set, to: next})
	case opClass:
		return b.compile(runes(e.ranges...), next)
	case opSeq:
		for i := len(e.subs) - 1; i >= 0 && err == nil; i-- {
			at, err = b.compile(e.subs[i], at)
		}
	case opAlt:
		p := place{kind: isEps}
		for _, s := range e.subs {
			from, err := b.compile(s, next)
			if err != nil {
				return 0, err
			}
			if n := len(p.eps); n == 0 || p.eps[n-1] != from { // many may be empty
				p.eps = append(p.eps, from)
			}
		}
		at, err = b.add(p)
	case opRepeat:
		return b.repeat(e, next)
	case opRef:
		at, err = b.add(place{kind: isCall, rule: b.rule(e.rule), to: next})
	}
	return at, err
}

func (b *builder) repeat(e *expr, next int32) (at int32, err error) {
	at = next
	if e.max < 0 {
		if at, err = b.add(place{kind: isEps}); err != nil {
			return 0, err
		}
		once, err := b.compile(e.subs[0], at)
		if err != nil {
			return 0, err
		}
		b.net.places[at].eps = []int32{once, next}
	}
	for range max(0, e.max-e.min) {
		once, err := b.compile(e.subs[0], at)
		if err != nil {
			return 0, err
		}
		if at, err = b.add(place{kind: isEps, eps: []int32{once, next}}); err != nil {
			return 0, err
		}
	}
	for range e.min {
		if at, err = b.compile(e.subs[0], at); err != nil {
			return 0, err
		}
	}
	return at, nil
}
