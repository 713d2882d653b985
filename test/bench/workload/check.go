package workload

import (
	"fmt"
	"slices"
	"time"
)

// Problem is something wrong with a request. Request is its index.
type Problem struct {
	Request int
	Field   string // as the native record names it
	Text    string
}

// String names the request's place, from 1, and the field.
func (p Problem) String() string {
	return fmt.Sprintf("request %d: %s %s", p.Request+1, p.Field, p.Text)
}

// maxTokens bounds lengths, so that a broken file is refused before it takes all memory.
const maxTokens = 1 << 28

// maxTime bounds times.
const maxTime = 10 * 365 * 24 * time.Hour

// Check returns what is wrong with the requests by themselves, nothing if they can be run.
func (w *Workload) Check() (out []Problem) {
	ids := make(map[string]int, len(w.Requests))
	for i := range w.Requests {
		r := &w.Requests[i]
		bad := func(field, format string, args ...any) {
			out = append(out, Problem{i, field, fmt.Sprintf(format, args...)})
		}
		if j, ok := ids[r.ID]; ok {
			bad("request_id", "%q is also that of request %d", r.ID, j+1)
		}
		ids[r.ID] = i
		if r.Input < 1 || r.Input > maxTokens {
			bad("input_length", "%d is not 1 to %d", r.Input, maxTokens)
		}
		if r.Output < 0 || r.Output > maxTokens {
			bad("output_length", "%d is not 0 to %d", r.Output, maxTokens)
		}
		if r.Arrival != NoArrival && (r.Arrival < 0 || r.Arrival > maxTime) {
			bad("timestamp_ms", "%v is not between 0 and ten years", r.Arrival)
		}
		if r.Delay < 0 || r.ToolWait < 0 || r.Delay > maxTime || r.ToolWait > maxTime {
			bad("delay_ms", "and tool_wait_ms must be between 0 and ten years")
		}
		if slices.ContainsFunc(r.After, func(a int) bool { return a < 0 || a >= i }) {
			bad("wait_for", "names a request that is not before it")
		}
		if r.Tail() < 0 {
			bad("hash_ids", "are %d tokens, more than input_length %d", r.Input-r.Tail(), r.Input)
		}
		for _, s := range r.Prompt {
			if s.Tokens < 1 || s.ID < 1 || s.ID > MaxID {
				bad("hash_ids", "has a part %d of %d tokens", s.ID, s.Tokens)
				break
			}
		}
		if r.Parent != "" && r.Parent == r.Conversation {
			bad("parent_conversation_id", "%q is its own parent", r.Parent)
		}
	}
	return out
}
