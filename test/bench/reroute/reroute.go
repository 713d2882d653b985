// Package reroute replays what routers of a frontend decided: a captured trace has
// all that they went by, in order, so the same routers, which the simulator uses
// too, must decide the same again. With other routers it tells what those would
// have done.
package reroute

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"tandem/serve/discovery"
	"tandem/serve/router"
	"tandem/serve/trace"
	"tandem/test/bench/traces"
	"tandem/test/bench/workload"
)

// Leg is what came out for the routers of one leg.
type Leg struct {
	Router    string // in the replay
	Decisions int
	Same      int            // at the same worker as in the trace
	Reasons   int            // of those, for the same reason
	Then, Now map[string]int // decisions by worker
	First     string         // the first that differs, "" = none
}

// Result is a replay.
type Result struct {
	Ctx, Gen Leg
	Missing  int // decisions that the trace lacks: those after them may differ
}

// Replay replays the files of a trace, in order. kind is the type of the routers, "" = as recorded.
func Replay(parts []traces.Part, kind string) (*Result, error) {
	p := replay{kind: kind, open: map[uint64]*router.Reservation{}, workers: map[string]*discovery.ServerInfo{}}
	for _, part := range parts {
		if err := p.file(part); err != nil {
			return nil, fmt.Errorf("%s: %w", part.Name, err)
		}
	}
	if p.res.Ctx.Decisions+p.res.Gen.Decisions == 0 {
		return nil, errors.New("the trace has no decisions of routers: capture it with trace_capture.routes: true")
	}
	return &p.res, nil
}

// replay is a Replay under way.
type replay struct {
	kind     string
	ctx, gen router.Router
	open     map[uint64]*router.Reservation
	last     uint64 // number of the newest decision
	workers  map[string]*discovery.ServerInfo
	res      Result
}

func (p *replay) file(part traces.Part) error {
	data, err := traces.Content(part.In)
	if err != nil {
		return err //nolint:wrapcheck // the caller names the file
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if err := p.line(line); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return nil
}

// follow takes the number of a decision, by which it is known whether the trace has all of them.
func (p *replay) follow(number uint64) {
	if number <= p.last { // the frontend started anew, and its routers knew nothing
		p.ctx, p.gen, p.last = nil, nil, 0
		clear(p.open)
	}
	if number > p.last+1 {
		p.res.Missing += int(number - p.last - 1)
	}
	p.last = number
}

func (p *replay) line(data []byte) error {
	var kind struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	switch kind.Kind {
	case trace.RouteKind:
		var c trace.Chosen
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("decision: %w", err)
		}
		return p.decide(&c)
	case trace.ReleaseKind:
		var r trace.Released
		if err := json.Unmarshal(data, &r); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		p.open[r.Number].Release(r.Success)
		delete(p.open, r.Number)
	}
	return nil
}

// decide asks the router again.
func (p *replay) decide(c *trace.Chosen) error {
	p.follow(c.Number)
	r, leg := &p.ctx, &p.res.Ctx
	if c.Generation {
		r, leg = &p.gen, &p.res.Gen
	}
	if *r == nil {
		if leg.Router = c.Router; leg.Then == nil {
			leg.Then, leg.Now = map[string]int{}, map[string]int{}
		}
		if p.kind != "" {
			leg.Router = p.kind
		}
		var err error
		if *r, err = router.NewRouter(router.Config{Type: leg.Router}); err != nil {
			return err //nolint:wrapcheck // it names the type
		}
	}
	server, outcome := "", ""
	sel, err := (*r).Select(p.request(c))
	if err == nil {
		server, outcome = sel.Instance.ID, string(sel.Outcome)
		p.open[c.Number] = sel.Reservation
		leg.Now[server]++
	}
	leg.Decisions++
	if c.Server != "" {
		leg.Then[c.Server]++
	}
	switch {
	case server == c.Server:
		leg.Same++
		if outcome == c.Outcome {
			leg.Reasons++
		}
	case leg.First == "":
		leg.First = fmt.Sprintf("decision %d went to %q (%s), now to %q (%s)", c.Number, c.Server, c.Outcome, server, outcome)
	}
	return nil
}

// request is what the router was asked, with texts and tokens that are equal where the recorded ones were.
func (p *replay) request(c *trace.Chosen) router.Request {
	req := router.Request{
		RoutingID: c.RoutingID, ConversationID: c.Conversation, Salt: c.Salt, MaxTokens: c.MaxTokens, Generation: c.Generation,
		Exclude: c.Exclude, Learned: c.Tokens > 0 && c.Text > 0,
		Candidates: func() []discovery.Instance { return p.candidates(c) },
	}
	if c.Tokens > 0 {
		req.Tokens = content(c.HashIDs, c.BlockSize, c.Tokens, c.Number)
	}
	if c.Text > 0 {
		req.Text = text(content(c.TextIDs, trace.TextBlock, c.Text, c.Number), c.TextBytes)
	}
	return req
}

func (p *replay) candidates(c *trace.Chosen) []discovery.Instance {
	out := make([]discovery.Instance, len(c.Candidates))
	for i, id := range c.Candidates {
		info := p.workers[id]
		if info == nil {
			info = &discovery.ServerInfo{Namespace: "replayed", Incarnation: id}
			p.workers[id] = info
		}
		if info.TokensPerBlock = c.BlockSize; i < len(c.Capacity) {
			info.MaxBatchSize = c.Capacity[i]
		}
		out[i].ID, out[i].Info = id, info
	}
	return out
}

// content makes n numbers whose full blocks depend on their ids alone; what is behind them is like nothing else.
func content(ids []int64, block, n int, number uint64) []int32 {
	const vocab = 1 << 15
	out := make([]int32, n)
	for i := range out {
		seed := workload.Mix(workload.Name("rest"), number)
		if block > 0 && i/block < len(ids) {
			seed = workload.Mix(workload.Name("block"), uint64(ids[i/block]))
		}
		out[i] = int32(workload.Mix(seed, uint64(i)) % vocab)
	}
	return out
}

// text makes a text of one code point for each number, and as many bytes as the recorded one: no code point has more than the
// others need, so that the first ones are wide and the rest one byte each.
func text(numbers []int32, size int) string {
	runes := make([]rune, len(numbers))
	wide := min(max(size-len(numbers), 0)/2, len(numbers)) // of three bytes
	for i, n := range numbers {
		if runes[i] = 'a' + n%26; i < wide {
			runes[i] = 0x4e00 + n%0x5000
		}
	}
	return string(runes)
}
