package guided

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"unicode"
)

// regex turns a regular expression, in the syntax of Perl without look-around and
// back references, into an expression that the whole text has to match. inJSON leaves
// out the characters that JSON strings write in another way.
func regex(pattern string, inJSON bool) (*expr, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("the regular expression cannot be read: %w", err)
	}
	body, err := fromRegex(re, inJSON, true, true)
	if err != nil || !inJSON {
		return body, err
	}
	open, someOpen := anchored(re, false)
	shut, someShut := anchored(re, true)
	if open != someOpen || shut != someShut {
		return nil, errors.New("of the alternatives of the regular expression only some have ^ or $: give it to all of them")
	}
	if !open { // a pattern of a schema may stand anywhere in the string
		body = seq(rep(ref(ruleChar), 0, -1), body)
	}
	if !shut {
		body = seq(body, rep(ref(ruleChar), 0, -1))
	}
	return body, nil
}

// anchored reports whether all ways through an expression begin with ^, or end with $,
// and whether some do.
func anchored(re *syntax.Regexp, end bool) (all, some bool) {
	switch re.Op {
	case syntax.OpBeginText, syntax.OpBeginLine:
		return !end, !end
	case syntax.OpEndText, syntax.OpEndLine:
		return end, end
	case syntax.OpConcat, syntax.OpCapture:
		at := 0
		if end {
			at = len(re.Sub) - 1
		}
		return anchored(re.Sub[at], end)
	case syntax.OpAlternate:
		all = true
		for _, s := range re.Sub {
			a, o := anchored(s, end)
			all, some = all && a, some || o
		}
	}
	return all, some
}

// fromRegex translates an expression. first and last tell whether it stands at the
// ends of the whole, where alone anchors may be.
func fromRegex(re *syntax.Regexp, inJSON, first, last bool) (*expr, error) {
	var subs []*expr
	for i, s := range re.Sub {
		f, l := first, last
		switch re.Op {
		case syntax.OpConcat:
			f, l = f && i == 0, l && i == len(re.Sub)-1
		case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
			f, l = false, false
		}
		e, err := fromRegex(s, inJSON, f, l)
		if err != nil {
			return nil, err
		}
		subs = append(subs, e)
	}
	fold := re.Flags&syntax.FoldCase != 0
	switch re.Op {
	case syntax.OpEmptyMatch:
		return seq(), nil
	case syntax.OpBeginText, syntax.OpBeginLine:
		if first {
			return seq(), nil
		}
	case syntax.OpEndText, syntax.OpEndLine:
		if last {
			return seq(), nil
		}
	case syntax.OpNoMatch:
		return alt(), nil
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			subs = append(subs, class(folded(r, fold), inJSON))
		}
		return seq(subs...), nil
	case syntax.OpCharClass:
		return class(re.Rune, inJSON), nil
	case syntax.OpAnyChar:
		return class([]rune{0, 0x10FFFF}, inJSON), nil
	case syntax.OpAnyCharNotNL:
		return class([]rune{0, '\n' - 1, '\n' + 1, 0x10FFFF}, inJSON), nil
	case syntax.OpCapture:
		return subs[0], nil
	case syntax.OpConcat:
		return seq(subs...), nil
	case syntax.OpAlternate:
		return alt(subs...), nil
	case syntax.OpStar:
		return rep(subs[0], 0, -1), nil
	case syntax.OpPlus:
		return rep(subs[0], 1, -1), nil
	case syntax.OpQuest:
		return opt(subs[0]), nil
	case syntax.OpRepeat:
		return rep(subs[0], re.Min, re.Max), nil
	}
	return nil, fmt.Errorf("the regular expression has %s, which is not supported there", re)
}

// folded are the ranges of a character, with its other case if that does not matter.
func folded(r rune, fold bool) []rune {
	if !fold {
		return []rune{r, r}
	}
	out := []rune{r, r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		out = append(out, f, f)
	}
	return out
}

// class is one character of the ranges.
func class(ranges []rune, inJSON bool) *expr {
	if inJSON {
		ranges = without(ranges, 0, 0x1F)
		ranges = without(ranges, '"', '"')
		ranges = without(ranges, '\\', '\\')
	}
	return &expr{op: opClass, ranges: ranges}
}

// without takes lo to hi out of ranges.
func without(ranges []rune, lo, hi rune) (out []rune) {
	for r := range slices.Chunk(ranges, 2) {
		a, b := r[0], r[1]
		if a < lo {
			out = append(out, a, min(b, lo-1))
		}
		if b > hi {
			out = append(out, max(a, hi+1), b)
		}
	}
	return out
}
