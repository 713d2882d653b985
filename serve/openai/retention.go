package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
)

// MaxRetentionRanges bounds the ranges of kv_cache_retention_config.
const MaxRetentionRanges = 64

// Retention is kv_cache_retention_config: how firmly the K and V of a request are
// kept once it has ended.
type Retention struct {
	Ranges []RetentionRange // of the prompt, in order, none overlaps another
	Decode *RetentionRange  // of the output, whose bounds are 0; nil = as any other
}

// RetentionRange is a priority for the tokens From to To-1.
type RetentionRange struct {
	From, To int           // To is math.MaxInt32 for the end of the prompt
	Priority int           // 0..100
	For      time.Duration // since the request's end or the last use, 0 = for good
}

// setRetention reads the object by the names that TensorRT-LLM has for it.
func setRetention(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	var decode RetentionRange
	out, prioritised, timed := &Retention{}, false, false
	for _, m := range body.members {
		at := p + "." + m.name
		if isNull(m.raw) {
			continue
		}
		switch m.name {
		case "token_range_retention_configs":
			out.Ranges, err = rangesOf(at, m.raw)
		case "decode_retention_priority":
			decode.Priority, err = intOf(at, m.raw, 0, 100)
			prioritised = true
		case "decode_duration_ms":
			decode.For, err = durationOf(at, m.raw)
			timed = true
		default:
			err = unknownMember(at, m.name, "token_range_retention_configs, decode_retention_priority and decode_duration_ms")
		}
		if err != nil {
			return err
		}
	}
	if timed && !prioritised {
		return Invalid(p+".decode_duration_ms", "%s.decode_duration_ms needs a decode_retention_priority, which it is the duration of", p)
	}
	if prioritised {
		out.Decode = &decode
	}
	r.Retention = out
	return nil
}

// rangesOf reads the ranges and puts them in order.
func rangesOf(p string, raw json.RawMessage) ([]RetentionRange, error) {
	var list []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return nil, typeError(p, "a list of objects", raw)
	}
	if len(list) > MaxRetentionRanges {
		return nil, Invalid(p, "%s has %d entries: the limit is %d", p, len(list), MaxRetentionRanges)
	}
	type place struct {
		RetentionRange
		param string
	}
	places := make([]place, len(list))
	for i, raw := range list {
		at := fmt.Sprintf("%s[%d]", p, i)
		one, err := rangeOf(at, raw)
		if err != nil {
			return nil, err
		}
		places[i] = place{one, at}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.From, b.From) })
	out := make([]RetentionRange, len(places))
	for i, x := range places {
		if i > 0 && x.From < places[i-1].To {
			return nil, Invalid(x.param, "%s begins at token %d, before %s ends: ranges must not overlap", x.param, x.From, places[i-1].param)
		}
		out[i] = x.RetentionRange
	}
	return out, nil
}

func rangeOf(p string, raw json.RawMessage) (out RetentionRange, err error) {
	body, err := objectOf(p, raw)
	if err != nil {
		return out, err
	}
	start, prioritised := false, false
	out.To = math.MaxInt32
	for _, m := range body.members {
		at := p + "." + m.name
		if isNull(m.raw) {
			continue
		}
		switch m.name {
		case "token_start":
			out.From, err = intOf(at, m.raw, 0, math.MaxInt32-1)
			start = true
		case "token_end":
			out.To, err = intOf(at, m.raw, 1, math.MaxInt32)
		case "priority":
			out.Priority, err = intOf(at, m.raw, 0, 100)
			prioritised = true
		case "duration_ms":
			out.For, err = durationOf(at, m.raw)
		default:
			err = unknownMember(at, m.name, "token_start, token_end, priority and duration_ms")
		}
		if err != nil {
			return out, err
		}
	}
	switch {
	case !start:
		return out, Invalid(p+".token_start", "%s needs token_start, the first token of the range", p)
	case !prioritised:
		return out, Invalid(p+".priority", "%s needs a priority from 0 to 100", p)
	case out.To <= out.From:
		return out, Invalid(p+".token_end", "%s.token_end is %d: it must be above token_start, which is %d", p, out.To, out.From)
	}
	return out, nil
}

// durationOf reads milliseconds, at least one and at most some years.
func durationOf(p string, raw json.RawMessage) (time.Duration, error) {
	n, err := intOf(p, raw, 1, math.MaxInt32*100)
	return time.Duration(n) * time.Millisecond, err
}

func unknownMember(param, name, known string) error {
	return Invalid(param, "%s is unknown here: %s are known", Cut(name, 64), known)
}
