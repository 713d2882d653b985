package traces

import (
	"fmt"
	"math"
	"time"

	"tandem/test/bench/workload"
)

// wekaConversation is one recorded conversation of a coding agent.
type wekaConversation struct {
	ID           string        `json:"id"`
	Models       []string      `json:"models,omitempty"`
	BlockSize    int           `json:"block_size"`
	ToolTokens   int           `json:"tool_tokens"`
	SystemTokens int           `json:"system_tokens"`
	Requests     []wekaRequest `json:"requests"`
}

// wekaRequest is a request, or a sub-agent with requests of its own.
type wekaRequest struct {
	T       float64  `json:"t"` // seconds
	Type    string   `json:"type"`
	Model   string   `json:"model,omitempty"`
	In      int      `json:"in"`
	Out     int      `json:"out"`
	HashIDs []int64  `json:"hash_ids,omitempty"`
	APITime *float64 `json:"api_time,omitempty"`
	TTFT    *float64 `json:"ttft,omitempty"`
	Think   *float64 `json:"think_time,omitempty"`

	AgentID      string        `json:"agent_id,omitempty"`
	DurationMs   float64       `json:"duration_ms,omitempty"`
	ToolTokens   int           `json:"tool_tokens,omitempty"`
	SystemTokens int           `json:"system_tokens,omitempty"`
	Requests     []wekaRequest `json:"requests,omitempty"`
}

// wekaBlock is the block size of conversations that name none.
const wekaBlock = 64

// wekaAgent is one conversation, of a root or a sub-agent, while it is read.
type wekaAgent struct {
	line         int
	field        string // where its requests are
	name, parent string
	salt         uint64
	block        int
	shared       int // tokens of tools and system prompt
	sharedSalt   uint64
	depth        int
}

func (r *reader) weka(data []byte) error {
	return each(r, data, func(line int, v *wekaConversation) error {
		block := v.BlockSize
		if block == 0 {
			block = wekaBlock
		}
		if v.ID == "" || block < 1 || v.ToolTokens < 0 || v.SystemTokens < 0 {
			return r.fail(line, "id", "is missing, or block_size, tool_tokens or system_tokens are negative")
		}
		if r.w.BlockSize != 0 && r.w.BlockSize != block {
			return r.fail(line, "block_size", "is %d, before it was %d", block, r.w.BlockSize)
		}
		r.w.BlockSize = block
		a := wekaAgent{line: line, field: "requests", name: v.ID, salt: workload.Name(v.ID), block: block}
		a.common(v.ToolTokens, v.SystemTokens)
		_, err := r.wekaTurns(&a, v.Requests, -1)
		return err
	})
}

// common sets the prefix that agents with the same tools and system prompt share.
func (a *wekaAgent) common(tool, system int) {
	a.shared = tool + system
	a.sharedSalt = workload.Mix(workload.Mix(workload.Name("tools and system"), uint64(tool)), uint64(system))
}

// wekaTurns adds the turns of one agent. The first waits for the request after; it returns the last.
func (r *reader) wekaTurns(a *wekaAgent, turns []wekaRequest, after int) (last int, err error) {
	last = after
	var joins []int // last requests of sub-agents since the last turn
	end, n := 0.0, 0
	for i := range turns {
		v := &turns[i]
		field := fmt.Sprintf("%s[%d]", a.field, i)
		if !(v.T >= 0) || v.T > 1e9 || v.In < 0 || v.In > maxLength || v.Out < 0 || v.Out > maxLength {
			if err := r.fail(a.line, field, "has t %g, in %d, out %d: want 0 at least", v.T, v.In, v.Out); err != nil {
				return 0, err
			}
			continue
		}
		if v.Type == "subagent" {
			sub, err := r.wekaSub(a, v, field, i, last)
			if err != nil {
				return 0, err
			}
			if sub >= 0 && sub != last {
				joins = append(joins, sub)
			}
			continue
		}
		at, err := r.wekaRequest(a, v, field, n, last, joins, v.T-end)
		if err != nil {
			return 0, err
		}
		if at < 0 {
			continue
		}
		last, joins, n, end = at, nil, n+1, v.T
		if v.APITime != nil {
			end += max(0, *v.APITime)
		}
	}
	return last, nil
}

// wekaSub adds the requests of a sub-agent and returns the last, -1 if it has none.
func (r *reader) wekaSub(a *wekaAgent, v *wekaRequest, field string, i, after int) (int, error) {
	const deepest = 16
	if a.depth == deepest {
		return -1, r.fail(a.line, field, "is nested deeper than %d", deepest)
	}
	id := v.AgentID
	if id == "" {
		id = fmt.Sprint("sub", i)
	}
	b := wekaAgent{
		line: a.line, field: field + ".requests", name: a.name + "/" + id, parent: a.name, salt: a.salt, // ids are those of the whole conversation
		block: a.block, depth: a.depth + 1,
	}
	b.common(v.ToolTokens, v.SystemTokens)
	if r.conversations[b.name] != nil {
		b.name = fmt.Sprintf("%s#%d", b.name, i)
	}
	if len(v.Requests) == 0 {
		return -1, nil
	}
	return r.wekaTurns(&b, v.Requests, after)
}

// wekaRequest adds one request; -1 if it was left out.
func (r *reader) wekaRequest(a *wekaAgent, v *wekaRequest, field string, n, last int, joins []int, gap float64) (int, error) {
	if v.In < 1 {
		return -1, r.fail(a.line, field+".in", "is %d, want 1 at least", v.In)
	}
	q := workload.Request{
		ID: fmt.Sprintf("%s.%d", a.name, n), Arrival: workload.NoArrival, Conversation: a.name, Parent: a.parent, Kind: "root",
		Input: v.In, Output: v.Out, Model: v.Model,
	}
	if a.parent != "" {
		q.Kind = "subagent"
	}
	if last >= 0 {
		q.After = append(append([]int{last}, joins...), q.After...)
		if v.Think != nil {
			gap = *v.Think
		}
		if n == 0 && a.parent != "" && v.Think == nil {
			gap = 0 // its times count from its own beginning
		}
		if gap > 0 && !math.IsInf(gap, 0) && gap < 1e9 {
			q.Delay = time.Duration(gap * float64(time.Second))
		}
	}
	prompt, err := r.hashes(a.line, v.HashIDs, a.block, v.In, a.salt, false)
	if err != nil {
		return -1, err
	}
	for i := range min(len(prompt), a.shared/a.block) {
		prompt[i].ID = workload.ID(a.sharedSalt, uint64(i))
	}
	q.Prompt = prompt
	if v.APITime != nil || v.TTFT != nil {
		q.Observed = &workload.Observed{}
		if v.APITime != nil {
			q.Observed.E2EMs = 1000 * *v.APITime
		}
		if v.TTFT != nil {
			q.Observed.TTFTMs = 1000 * *v.TTFT
		}
	}
	return r.add(a.line, q), nil
}
