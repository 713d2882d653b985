package result

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limit is one condition of goodput: a metric's value in seconds at most.
type Limit struct {
	Key     string // ttft, tpot, e2el, tfat, ttst, itl_p99
	Seconds float64
}

// Limits hold all together.
type Limits []Limit

// names of limits, with those that other tools use.
var limitNames = map[string]string{
	"ttft": "ttft", "time_to_first_token": "ttft", "tpot": "tpot", "inter_token_latency": "tpot", "itl": "tpot",
	"e2el": "e2el", "request_latency": "e2el", "tfat": "tfat", "ttst": "ttst", "itl_p99": "itl_p99",
}

// presets of limits by use.
var limitPresets = map[string]string{
	"chat": "ttft:200 tpot:50", "rag": "ttft:300 tpot:100 e2el:3000", "agent": "e2el:5000",
	"completion": "e2el:2000", "code": "ttft:500 tpot:150",
}

// ParseLimits reads words like ttft:200 (milliseconds), or the name of a preset.
func ParseLimits(words []string) (Limits, error) {
	var out Limits
	for _, w := range words {
		if p, ok := limitPresets[w]; ok {
			more, err := ParseLimits(strings.Fields(p))
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
			continue
		}
		name, value, ok := strings.Cut(w, ":")
		key := limitNames[name]
		ms, err := strconv.ParseFloat(value, 64)
		if !ok || key == "" || err != nil || !(ms >= 0) || math.IsInf(ms, 0) {
			return nil, fmt.Errorf("goodput %q: give NAME:MILLISECONDS with one of ttft, tpot, e2el, tfat, ttst, itl_p99, or a preset: chat, rag, agent, completion, code", w)
		}
		out = append(out, Limit{key, ms / 1000})
	}
	return out, nil
}

// String writes the limits as ParseLimits reads them.
func (l Limits) String() string {
	words := make([]string, len(l))
	for i, x := range l {
		words[i] = fmt.Sprintf("%s:%g", x.Key, x.Seconds*1000)
	}
	return strings.Join(words, " ")
}

// Good tells whether a request met all limits. One that did not complete, or whose answer had no content, is never good.
func (l Limits) Good(r *Record) bool {
	if r.Outcome != OK || r.First < 0 {
		return false
	}
	return !slices.ContainsFunc(l, func(x Limit) bool { return x.of(r) > x.Seconds })
}

// Streamed is the first limit that answers in one piece tell nothing of, empty if there is none.
func (l Limits) Streamed() string {
	for _, x := range l {
		if x.Key != "e2el" {
			return x.Key
		}
	}
	return ""
}

// of is the value that the limit bounds; what a short answer does not have counts as 0. An answer in one piece has no
// times of tokens: nothing bounds them.
func (l Limit) of(r *Record) float64 {
	if r.Whole && l.Key != "e2el" {
		return math.Inf(1)
	}
	switch l.Key {
	case "ttft":
		return r.TTFT()
	case "tpot":
		v, _ := r.TPOT()
		return v
	case "e2el":
		return r.E2EL()
	case "tfat":
		v, ok := r.TFAT()
		if !ok { // only reasoning came: the answer proper took at least as long
			return r.E2EL()
		}
		return v
	case "ttst":
		v, _ := r.TTST()
		return v
	}
	gaps := make([]float64, len(r.Gaps))
	for i, g := range r.Gaps {
		gaps[i] = float64(g) / 1e9
	}
	slices.Sort(gaps)
	return Quantile(gaps, 0.99)
}
