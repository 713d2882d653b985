package traces

import (
	"encoding/json"
	"math"
	"time"

	"tandem/serve/trace"
	"tandem/test/bench/workload"
)

// nativeRow is one line of our own format, or its header.
type nativeRow struct {
	Kind      string `json:"kind,omitempty"`
	Version   int    `json:"version,omitempty"`
	Source    string `json:"source,omitempty"`
	Seed      uint64 `json:"seed,omitempty"`
	BlockSize int    `json:"block_size,omitempty"`

	RequestID    string             `json:"request_id,omitempty"`
	Timestamp    *float64           `json:"timestamp_ms,omitempty"`
	Conversation string             `json:"conversation_id,omitempty"`
	Parent       string             `json:"parent_conversation_id,omitempty"`
	Agent        string             `json:"agent_kind,omitempty"`
	WaitFor      []string           `json:"wait_for,omitempty"`
	Delay        float64            `json:"delay_ms,omitempty"`
	ToolWait     float64            `json:"tool_wait_ms,omitempty"`
	Input        int                `json:"input_length,omitempty"`
	Output       int                `json:"output_length,omitempty"`
	HashIDs      []int64            `json:"hash_ids,omitempty"`
	Delta        bool               `json:"delta,omitempty"`
	Messages     json.RawMessage    `json:"messages,omitempty"`
	Tools        json.RawMessage    `json:"tools,omitempty"`
	Model        string             `json:"model,omitempty"`
	LoRA         string             `json:"lora,omitempty"`
	Priority     *float64           `json:"priority,omitempty"`
	Temperature  *float64           `json:"temperature,omitempty"`
	Final        bool               `json:"final,omitempty"`
	Observed     *workload.Observed `json:"observed,omitempty"`
}

const nativeKind = "trace-header"

// millis turns a time of a file into ours; false if nobody can mean it.
func millis(ms float64) (time.Duration, bool) {
	if math.IsNaN(ms) || ms < 0 || ms > 1e12 {
		return 0, false
	}
	return time.Duration(ms * float64(time.Millisecond)), true
}

// times reads the times of a row, naming what is wrong.
func (r *reader) times(line int, q *workload.Request, at *float64, delay, tool float64) error {
	q.Arrival = workload.NoArrival
	set := func(field string, ms float64, to *time.Duration) error {
		d, ok := millis(ms)
		if !ok {
			return r.fail(line, field, "is %g, want milliseconds, 0 at least", ms)
		}
		*to = d
		return nil
	}
	if at != nil {
		if err := set("timestamp_ms", *at, &q.Arrival); err != nil {
			return err
		}
	}
	if err := set("delay_ms", delay, &q.Delay); err != nil {
		return err
	}
	return set("tool_wait_ms", tool, &q.ToolWait)
}

func (r *reader) native(data []byte) error {
	block := 0
	return each(r, data, func(line int, v *nativeRow) error {
		if v.Kind == nativeKind {
			if v.Version != 1 {
				return &Error{r.o.Name, line, "version", "is not 1, which is all that is known"}
			}
			if v.BlockSize > 0 {
				block = v.BlockSize
			}
			if v.Seed != 0 {
				r.w.Seed = v.Seed
			}
			return nil
		}
		switch v.Kind {
		case "":
		case trace.RouteKind, trace.ReleaseKind:
			return nil // of a router, and no request
		default:
			return r.fail(line, "kind", "is %q, which is not known", v.Kind)
		}
		if v.BlockSize > 0 {
			block = v.BlockSize
		}
		if len(v.HashIDs) > 0 && block <= 0 {
			return r.fail(line, "block_size", "is missing: neither the header nor the row has it")
		}
		r.w.BlockSize = block
		return r.nativeRequest(line, v, block)
	})
}

func (r *reader) nativeRequest(line int, v *nativeRow, block int) error {
	if v.RequestID == "" {
		return r.fail(line, "request_id", "is missing")
	}
	if v.Input < 1 || v.Input > maxLength || v.Output < 0 || v.Output > maxLength {
		return r.fail(line, "input_length", "and output_length are %d and %d, want 1 and 0 to %d", v.Input, v.Output, maxLength)
	}
	q := workload.Request{
		ID: v.RequestID, Conversation: v.Conversation, Parent: v.Parent, Kind: v.Agent, Input: v.Input, Output: v.Output, Final: v.Final,
		Model: v.Model, LoRA: v.LoRA, Priority: v.Priority, Temperature: v.Temperature, Messages: v.Messages, Tools: v.Tools, Observed: v.Observed,
	}
	if err := r.times(line, &q, v.Timestamp, v.Delay, v.ToolWait); err != nil {
		return err
	}
	prompt, err := r.hashes(line, v.HashIDs, block, v.Input, workload.Name("hash"), len(v.HashIDs)*block > v.Input)
	if err != nil {
		return err
	}
	q.Prompt = prompt
	if v.Delta {
		r.delta(&q)
	}
	if len(v.WaitFor) > 0 {
		r.links = append(r.links, link{len(r.w.Requests), v.WaitFor})
	}
	r.add(line, q)
	return nil
}

// maxLength bounds token counts.
const maxLength = 1 << 28

// delta makes a prompt that says only what it adds complete.
func (r *reader) delta(q *workload.Request) {
	c := r.conversation(q.Conversation)
	own := append(q.Prompt, tail(q)...)
	q.Prompt = append(append([]workload.Segment(nil), c.full...), own...)
	q.Input += c.input
}
