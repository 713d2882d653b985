package traces

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"tandem/test/bench/workload"
)

// Writable are the formats that Write knows.
var Writable = []Format{Native, Mooncake, Weka}

// Write writes a workload in a format. block is the size of its hash ids, 0 = that of the workload, or 16; Mooncake has 512
// and Weka 64 whatever it says. Verbatim texts are not written but in Native messages.
func Write(out io.Writer, w *workload.Workload, f Format, block int) error {
	if block < 0 || block > maxLength {
		return fmt.Errorf("%w: hash ids of %d tokens: want 1 to %d, or 0 for as many as in the trace", ErrTrace, block, maxLength)
	}
	buf := bufio.NewWriter(out)
	x := &writer{enc: json.NewEncoder(buf), w: w, ids: map[uint64]int64{}, block: block}
	var err error
	switch f {
	case Native:
		err = x.native()
	case Mooncake:
		x.block = mooncakeBlock
		err = x.mooncake()
	case Weka:
		x.block = wekaBlock
		err = x.weka()
	default:
		return fmt.Errorf("%w: format %q cannot be written: want one of %v", ErrTrace, f, Writable)
	}
	if err == nil {
		err = buf.Flush()
	}
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// writer numbers blocks in the order in which they appear.
type writer struct {
	enc   *json.Encoder
	w     *workload.Workload
	block int
	ids   map[uint64]int64
	buf   []uint64
}

// hashes are the ids of a prompt's blocks, from 1; all of them or the full ones.
func (x *writer) hashes(q *workload.Request, all bool) []int64 {
	if all {
		x.buf = q.AppendAllBlocks(x.buf[:0], x.block)
	} else {
		x.buf = q.AppendBlocks(x.buf[:0], x.block)
	}
	out := make([]int64, len(x.buf))
	for i, b := range x.buf {
		id, ok := x.ids[b]
		if !ok {
			id = int64(len(x.ids) + 1)
			x.ids[b] = id
		}
		out[i] = id
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (x *writer) native() error {
	if x.block == 0 {
		if x.block = x.w.BlockSize; x.block == 0 {
			x.block = 16
		}
	}
	head := map[string]any{"kind": nativeKind, "version": 1, "block_size": x.block, "source": x.w.Source, "seed": x.w.Seed}
	if err := x.enc.Encode(head); err != nil {
		return err
	}
	for i := range x.w.Requests {
		q := &x.w.Requests[i]
		row := nativeRow{
			RequestID: q.ID, Conversation: q.Conversation, Parent: q.Parent, Agent: q.Kind, Delay: ms(q.Delay), ToolWait: ms(q.ToolWait),
			Input: q.Input, Output: q.Output, HashIDs: x.hashes(q, false), Messages: q.Messages, Tools: q.Tools, Model: q.Model, LoRA: q.LoRA,
			Priority: q.Priority, Temperature: q.Temperature, Final: q.Final, Observed: q.Observed,
		}
		if q.Arrival != workload.NoArrival {
			at := ms(q.Arrival)
			row.Timestamp = &at
		}
		for _, a := range q.After {
			row.WaitFor = append(row.WaitFor, x.w.Requests[a].ID)
		}
		if err := x.enc.Encode(row); err != nil {
			return err
		}
	}
	return nil
}

func (x *writer) mooncake() error {
	for i := range x.w.Requests {
		q := &x.w.Requests[i]
		row := mooncakeRow{Input: q.Input, Output: q.Output, HashIDs: x.hashes(q, true), RequestID: q.ID, Parent: q.Parent, ToolWait: ms(q.ToolWait)}
		if q.Conversation != "" {
			row.Session, _ = json.Marshal(q.Conversation) // a text cannot fail
		}
		switch {
		case q.Arrival != workload.NoArrival:
			at := ms(q.Arrival)
			row.Timestamp = &at
		case len(q.After) == 0:
			row.Timestamp = new(float64)
		}
		if q.Delay > 0 {
			d := ms(q.Delay)
			row.DelayMs = &d
		}
		for _, a := range q.After {
			row.WaitFor = append(row.WaitFor, x.w.Requests[a].ID)
		}
		if err := x.enc.Encode(row); err != nil {
			return err
		}
	}
	return nil
}

// weka writes one conversation a line. Its format has no arrivals of conversations, and sub-agents belong to the turn that
// they follow.
func (x *writer) weka() error {
	turns := map[string][]int{} // requests by conversation
	children := map[string][]string{}
	var roots []string
	for i := range x.w.Requests {
		q := &x.w.Requests[i]
		name := q.Conversation
		if name == "" {
			name = q.ID
		}
		if turns[name] == nil {
			if q.Parent == "" {
				roots = append(roots, name)
			} else {
				children[q.Parent] = append(children[q.Parent], name)
			}
		}
		turns[name] = append(turns[name], i)
	}
	for _, name := range roots {
		x.ids = map[uint64]int64{} // they are the conversation's own
		c := wekaConversation{ID: name, BlockSize: wekaBlock, Requests: x.agent(name, turns, children, 0)}
		if err := x.enc.Encode(c); err != nil {
			return err
		}
	}
	return nil
}

// agent lists the turns of a conversation, each followed by the sub-agents that it spawns.
func (x *writer) agent(name string, turns map[string][]int, children map[string][]string, depth int) (out []wekaRequest) {
	at := 0.0
	for _, i := range turns[name] {
		q := &x.w.Requests[i]
		took := 0.0
		if q.Observed != nil {
			took = q.Observed.E2EMs / 1000
		}
		at += (q.Delay + q.ToolWait).Seconds()
		think := (q.Delay + q.ToolWait).Seconds()
		row := wekaRequest{T: at, Type: "s", Model: q.Model, In: q.Input, Out: q.Output, HashIDs: x.hashes(q, false), APITime: &took}
		if len(out) > 0 {
			row.Think = &think
		}
		at += took
		out = append(out, row)
		for _, c := range children[name] {
			first := &x.w.Requests[turns[c][0]]
			if depth < 16 && slices.Contains(first.After, i) {
				out = append(out, wekaRequest{T: at, Type: "subagent", AgentID: c, Requests: x.agent(c, turns, children, depth+1)})
			}
		}
	}
	return out
}
