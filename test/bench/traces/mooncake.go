package traces

import (
	"encoding/json"
	"fmt"
	"strings"

	"tandem/test/bench/workload"
)

// mooncakeBlock is how many tokens a hash id stands for.
const mooncakeBlock = 512

// mooncakeRow is one line, with what multi-turn and agentic variants add.
type mooncakeRow struct {
	Timestamp *float64        `json:"timestamp,omitempty"`
	Created   *float64        `json:"created_time,omitempty"`
	Input     int             `json:"input_length"`
	Output    int             `json:"output_length"`
	HashIDs   []int64         `json:"hash_ids,omitempty"`
	Session   json.RawMessage `json:"session_id,omitempty"`
	Delay     *float64        `json:"delay,omitempty"`
	DelayMs   *float64        `json:"delay_ms,omitempty"`
	Delta     bool            `json:"delta,omitempty"`

	RequestID string   `json:"request_id,omitempty"`
	WaitFor   []string `json:"wait_for,omitempty"`
	Parent    string   `json:"parent_session_id,omitempty"`
	ToolWait  float64  `json:"tool_wait_ms,omitempty"`
}

func (r *reader) mooncake(data []byte) error {
	r.w.BlockSize = mooncakeBlock
	return each(r, data, func(line int, v *mooncakeRow) error {
		if v.Input < 1 || v.Input > maxLength || v.Output < 0 || v.Output > maxLength {
			return r.fail(line, "input_length", "and output_length are %d and %d, want 1 and 0 to %d", v.Input, v.Output, maxLength)
		}
		q := workload.Request{ID: v.RequestID, Conversation: name(v.Session), Parent: v.Parent, Input: v.Input, Output: v.Output}
		if q.ID == "" {
			q.ID = fmt.Sprintf("m%d", len(r.w.Requests))
		}
		at := v.Timestamp
		if at == nil {
			at = v.Created
		}
		delay := v.DelayMs
		if delay == nil {
			delay = v.Delay
		}
		if delay == nil {
			delay = new(float64)
		}
		if err := r.times(line, &q, at, *delay, v.ToolWait); err != nil {
			return err
		}
		prompt, err := r.hashes(line, v.HashIDs, mooncakeBlock, v.Input, workload.Name("hash"), true)
		if err != nil {
			return err
		}
		q.Prompt = prompt
		if v.Delta {
			r.delta(&q)
		}
		if c := r.conversation(q.Conversation); at == nil && len(v.WaitFor) == 0 && c.last >= 0 {
			q.After = []int{c.last}
		}
		if len(v.WaitFor) > 0 {
			r.links = append(r.links, link{len(r.w.Requests), v.WaitFor})
		}
		r.add(line, q)
		return nil
	})
}

// name is an id that may be a text or a number.
func name(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	if s = strings.TrimSpace(string(raw)); s == "null" {
		return ""
	}
	return s
}
