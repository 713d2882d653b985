package guided

import "fmt"

// A rule that begins with itself would call itself without end before it reads a byte.

// leftRecursion reports a rule that can begin with itself.
func (p *ebnf) leftRecursion(stop func() bool) error {
	empty, err := p.nullable(stop)
	if err != nil {
		return err
	}
	const open, closed = 1, 2
	marks := map[string]int{}
	var begins func(e *expr) error
	visit := func(name string) error {
		switch marks[name] {
		case open:
			return fmt.Errorf("the rule %q begins with itself: write what repeats with * or +, or behind what it begins with", cutText(name))
		case closed:
			return nil
		}
		marks[name] = open
		defer func() { marks[name] = closed }()
		return begins(p.rules[name])
	}
	begins = func(e *expr) error {
		if e.op == opRef {
			return visit(e.rule[len(ebnfRule):])
		}
		for _, s := range e.subs {
			if err := begins(s); err != nil {
				return err
			}
			if e.op == opSeq && !s.empty(empty) {
				break
			}
		}
		return nil
	}
	for _, name := range p.names {
		if err := visit(name); err != nil {
			return err
		}
	}
	return nil
}

// nullable finds the rules that can be empty.
func (p *ebnf) nullable(stop func() bool) (map[string]bool, error) {
	empty := map[string]bool{}
	for more := true; more; {
		if more = false; stop() {
			return nil, errTime
		}
		for _, name := range p.names {
			if !empty[name] && p.rules[name].empty(empty) {
				empty[name], more = true, true
			}
		}
	}
	return empty, nil
}

// empty reports whether e can be empty, given the rules that can.
func (e *expr) empty(rules map[string]bool) bool {
	switch e.op {
	case opLit:
		return len(e.lit) == 0
	case opRef:
		return rules[e.rule[len(ebnfRule):]]
	case opSeq:
		for _, s := range e.subs {
			if !s.empty(rules) {
				return false
			}
		}
		return true
	case opAlt:
		for _, s := range e.subs {
			if s.empty(rules) {
				return true
			}
		}
		return false
	case opRepeat:
		return e.min == 0 || e.subs[0].empty(rules)
	}
	return false
}
