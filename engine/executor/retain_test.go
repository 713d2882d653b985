package executor

import (
	"slices"
	"testing"
	"time"

	"tandem/engine/request"
)

// keeping runs a request of 12 prompt tokens in blocks of 4, and 5 output tokens of
// which 4 have K and V, to its end.
func (r *rank) keeping(now time.Duration, id int, keep *request.Retention) []int32 {
	q := ask(id, 5, count(0, 12)...)
	q.Retention = keep
	cl := r.submit(q, nil)
	r.drainQueue(now)
	return append(count(0, 12), cl.tokens...)
}

func TestRetentionOfRequests(t *testing.T) {
	const end = 1 << 30
	out := func(p uint8, d time.Duration) *request.Keep { return &request.Keep{Priority: p, For: d} }
	for _, c := range []struct {
		name        string
		keep        *request.Retention
		want, later []int // priorities at the end, and 10 s later
	}{
		{"none", nil, []int{35, 35, 35, 35}, []int{35, 35, 35, 35}},
		{"empty", &request.Retention{}, []int{35, 35, 35, 35}, []int{35, 35, 35, 35}},
		{"a prefix", &request.Retention{Prompt: []request.Keep{{To: 4, Priority: 90}}}, []int{90, 35, 35, 35}, []int{90, 35, 35, 35}},
		{"for a time", &request.Retention{Prompt: []request.Keep{{To: 4, Priority: 90, For: 10 * time.Second}}}, []int{90, 35, 35, 35}, []int{35, 35, 35, 35}},
		{"for longer", &request.Retention{Prompt: []request.Keep{{To: 4, Priority: 90, For: 11 * time.Second}}}, []int{90, 35, 35, 35}, []int{90, 35, 35, 35}},
		{"a part of a block", &request.Retention{Prompt: []request.Keep{{To: 5, Priority: 90}, {From: 5, To: end, Priority: 10}}}, []int{90, 90, 35, 35}, []int{90, 90, 35, 35}},
		{"a low end", &request.Retention{Prompt: []request.Keep{{From: 8, To: end, Priority: 10}}, Output: out(0, 10*time.Second)}, []int{35, 35, 10, 0}, []int{35, 35, 35, 35}},
		{"the prompt ends", &request.Retention{Prompt: []request.Keep{{To: end, Priority: 60}}}, []int{60, 60, 60, 35}, []int{60, 60, 60, 35}},
		{"the answer holds what is before it", &request.Retention{Prompt: []request.Keep{{To: end, Priority: 10}}, Output: out(80, 10*time.Second)}, []int{80, 80, 80, 80}, []int{35, 35, 35, 35}},
	} {
		r := newRank(t, holdConfig())
		tokens := r.keeping(0, 1, c.keep)
		if got := r.priorities(tokens[:16]); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		r.Plan(10 * time.Second)
		if got := r.priorities(tokens[:16]); !slices.Equal(got, c.later) {
			t.Errorf("%s: %v after 10 s, want %v", c.name, got, c.later)
		}
		r.verifyEnd(true)
	}
}

// A later request's setting replaces the earlier one's; one that sets nothing does not.
func TestLaterRetentionReplaces(t *testing.T) {
	r := newRank(t, holdConfig())
	whole := func(p uint8) *request.Retention {
		return &request.Retention{Prompt: []request.Keep{{To: 12, Priority: p, For: 10 * time.Second}}}
	}
	tokens := r.keeping(0, 1, whole(90))
	r.keeping(6*time.Second, 2, nil)
	if got := r.priorities(tokens[:12]); !slices.Equal(got, []int{90, 90, 90}) {
		t.Errorf("%v after a request that sets nothing", got)
	}
	r.keeping(6*time.Second, 3, whole(90))
	r.keeping(12*time.Second, 4, nil)
	if got := r.priorities(tokens[:12]); !slices.Equal(got, []int{90, 90, 90}) {
		t.Errorf("%v: the time did not begin anew", got)
	}
	r.keeping(12*time.Second, 5, whole(20))
	if got := r.priorities(tokens[:16]); !slices.Equal(got, []int{35, 35, 35, 35}) { // the answer's blocks have the default
		t.Errorf("%v after a lower setting", got)
	}
	r.keeping(12*time.Second, 6, &request.Retention{Prompt: whole(20).Prompt, Output: &request.Keep{Priority: 0}})
	if got := r.priorities(tokens[:16]); !slices.Equal(got, []int{20, 20, 20, 0}) {
		t.Errorf("%v when the answer is set lower too", got)
	}
	r.verifyEnd(true)
}

func TestImpossibleRetentionIsRefused(t *testing.T) {
	r := newRank(t, holdConfig())
	for i, keep := range []*request.Retention{
		{Prompt: []request.Keep{{To: 4, Priority: 101}}},
		{Prompt: []request.Keep{{To: 4, For: -1}}},
		{Output: &request.Keep{Priority: 101}},
	} {
		q := ask(i+1, 5, count(0, 12)...)
		q.Retention = keep
		if err := r.Precheck(q, nil); err == nil || err.Code != request.InvalidRequest {
			t.Errorf("case %d: %v", i, err)
		}
	}
}
