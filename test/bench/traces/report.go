package traces

import (
	"fmt"
	"io"
	"strings"

	"tandem/test/bench/result"
	"tandem/test/bench/workload"
)

// Report is what a trace has in it.
type Report struct {
	Requests, Conversations, Trees int
	Input, Output                  result.Stats
	Span                           float64 // seconds of arrivals
	Timed                          int     // requests with a time of their own
	Kept, Resets                   float64 // share of later turns that keep 90 % of the prompt before, and less than half
	Block                          int
	Reuse                          float64    // share of blocks that an endless cache would have
	Capacity                       int        // tokens that the next are parts of
	AtCapacity                     [4]float64 // reuse with 1/8, 1/4, 1/2 and all of it
	LeftOut                        []*Error
	Skipped                        int // rows that the limits of the format leave out
}

// Describe makes the report, without reuse at a capacity.
func Describe(w *workload.Workload) *Report {
	r := &Report{Requests: len(w.Requests), Block: w.BlockSize}
	if r.Block == 0 {
		r.Block = 16
	}
	var in, out []float64
	conversations, roots := map[string]int{}, 0
	first, last := workload.NoArrival, workload.NoArrival
	later, kept, resets := 0, 0, 0
	for i := range w.Requests {
		q := &w.Requests[i]
		in, out = append(in, float64(q.Input)), append(out, float64(q.Output))
		if q.Arrival != workload.NoArrival {
			r.Timed++
			if first == workload.NoArrival || q.Arrival < first {
				first = q.Arrival
			}
			last = max(last, q.Arrival)
		}
		prev, follows := conversations[q.Conversation]
		switch {
		case q.Conversation == "":
			roots++
			continue
		case follows:
			later++
			switch share := preserved(&w.Requests[prev], q); {
			case share >= 0.9:
				kept++
			case share < 0.5:
				resets++
			}
		case q.Parent == "":
			roots++
		}
		conversations[q.Conversation] = i
	}
	r.Conversations, r.Trees = len(conversations), roots
	r.Input, r.Output = result.Describe(in), result.Describe(out)
	if r.Timed > 0 {
		r.Span = (last - first).Seconds()
	}
	if later > 0 {
		r.Kept, r.Resets = float64(kept)/float64(later), float64(resets)/float64(later)
	}
	r.Reuse = w.Reuse(r.Block, 0)
	return r
}

// preserved is which share of a prompt the next turn's begins with.
func preserved(prev, q *workload.Request) float64 {
	same := 0
	for i, s := range prev.Prompt {
		if i >= len(q.Prompt) || q.Prompt[i] != s {
			break
		}
		same += s.Tokens
	}
	whole := prev.Input
	if len(prev.Prompt) > 0 && prev.Tail() < prev.Prompt[0].Tokens {
		whole -= prev.Tail() // less than a block, which hash ids do not name
	}
	return float64(same) / float64(max(1, whole))
}

// At fills in reuse with parts of a cache of so many tokens.
func (r *Report) At(w *workload.Workload, capacity int) {
	r.Capacity = capacity
	for i := range r.AtCapacity {
		r.AtCapacity[i] = w.Reuse(r.Block, max(1, capacity>>(3-i)))
	}
}

// Print writes the report for a person.
func (r *Report) Print(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %d conversations, %d trees", r.Requests, r.Conversations, r.Trees)
	if r.Timed > 0 {
		fmt.Fprintf(&b, "; %d with a time, within %.1f s", r.Timed, r.Span)
	}
	for _, l := range []struct {
		name string
		s    result.Stats
	}{{"prompt", r.Input}, {"answer", r.Output}} {
		fmt.Fprintf(&b, "\n%s tokens: mean %.0f, p50 %.0f, p90 %.0f, p99 %.0f, max %.0f", l.name, l.s.Mean, l.s.P50, l.s.P90, l.s.P99, l.s.Max)
	}
	if r.Conversations > 0 {
		fmt.Fprintf(&b, "\nlater turns that keep 90 %% of the prompt before: %.1f %%, less than half: %.1f %%", 100*r.Kept, 100*r.Resets)
	}
	fmt.Fprintf(&b, "\nreuse of blocks of %d tokens with an endless cache: %.1f %%", r.Block, 100*r.Reuse)
	if r.Capacity > 0 {
		fmt.Fprintf(&b, "\nwith 1/8, 1/4, 1/2 and all of %d tokens: %.1f %.1f %.1f %.1f %%", r.Capacity, 100*r.AtCapacity[0], 100*r.AtCapacity[1], 100*r.AtCapacity[2], 100*r.AtCapacity[3])
	}
	if r.Skipped > 0 {
		fmt.Fprintf(&b, "\nleft out: %d rows, beyond the limits of the format", r.Skipped)
	}
	for i, e := range r.LeftOut {
		if i == 10 {
			fmt.Fprintf(&b, "\n... and %d more", len(r.LeftOut)-i)
			break
		}
		fmt.Fprintf(&b, "\nleft out: %v", e)
	}
	b.WriteByte('\n')
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
