package worker

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
)

// The pages for people who look for what is slow, stuck or dying. They are for the
// admin listener: they tell nothing of what users wrote, but who asks how much.
// An engine that hangs answers them too, with what it published last.

// debugWait is how long a page waits for fresh figures.
const debugWait = 250 * time.Millisecond

// maxHolders bounds the requests in /debug/blocks.
const maxHolders = 50

// resetWait is how long the ranks may take to hear of a reset: a step, at most.
const resetWait = 30 * time.Second

// Debug returns the handler of GET /debug/requests, /debug/blocks and
// /debug/flight, and of POST /reset_prefix_cache.
func (s *Server) Debug() http.Handler {
	mux := http.NewServeMux()
	page := func(path string, body func(*Backend, *http.Request) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			if b := s.needBackend(w); b != nil {
				writeJSON(w, body(b, r))
			}
		})
	}
	page("/debug/requests", s.debugRequests)
	page("/debug/blocks", s.debugBlocks)
	page("/debug/flight", s.debugFlight)
	mux.HandleFunc("POST /reset_prefix_cache", s.resetCache)
	return mux
}

func (s *Server) resetCache(w http.ResponseWriter, r *http.Request) {
	b := s.needBackend(w)
	if b == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), resetWait)
	defer cancel()
	n, err := b.Engine.ResetCache(ctx)
	switch {
	case err != nil:
		openai.WriteError(w, openai.NewError(http.StatusServiceUnavailable, "engine_busy", "%d ranks have reset their caches, then: %v", n, err))
	case n == 0:
		openai.WriteError(w, openai.NewError(http.StatusConflict, "not_here", "this process keeps no cache of its own: ask that of rank 0"))
	default:
		writeJSON(w, map[string]int{"ranks": n})
	}
}

func viewsOf(b *Backend, r *http.Request) []runner.View {
	ctx, cancel := context.WithTimeout(r.Context(), debugWait)
	defer cancel()
	return b.Engine.Views(ctx)
}

// known is what the server knows of a request that the engine does not.
type known struct {
	requestID string
	route     *runner.Route
	stream    bool
}

// live are the requests being answered, by the engine's id.
type live struct {
	mu sync.Mutex
	of map[request.ID]known
}

func (l *live) add(j *job, k known) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[request.ID]known{}
	}
	for _, id := range j.ids() {
		l.of[id] = k
	}
}

func (l *live) drop(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range j.ids() {
		delete(l.of, id)
	}
}

func (l *live) get(id request.ID) known {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[id]
}

// track makes a request findable for the debug pages.
func (s *Server) track(j *job, r *http.Request, stream Stream) {
	k := known{requestID: r.Header.Get(openai.HeaderRequestID), stream: j.wire.Stream}
	if route, ok := stream.Route(); ok {
		k.route = &route
	}
	s.live.add(j, k)
}

// ids are the engine's ids of a job.
func (j *job) ids() (ids []request.ID) {
	for _, r := range j.parts {
		ids = append(ids, r.ID)
	}
	if j.parts == nil {
		ids = append(ids, j.req.ID)
	}
	return ids
}

// DebugRequests is /debug/requests.
type DebugRequests struct {
	Health string              `json:"health"`
	Reason string              `json:"reason,omitempty"`
	Ranks  []DebugRankRequests `json:"ranks"`
}

// DebugRankRequests are the requests of a rank, in order of arrival.
type DebugRankRequests struct {
	Rank     int            `json:"rank"`
	AgeMs    float64        `json:"age_ms"` // of these figures
	Requests []DebugRequest `json:"requests"`
}

// DebugRequest is one choice of a request, or blocks under a lease.
type DebugRequest struct {
	ID        request.ID  `json:"id"` // the engine's
	Choice    int         `json:"choice,omitempty"`
	RequestID string      `json:"request_id,omitempty"`        // X-Request-ID; of a lease whose answer went out there is none
	DisaggID  string      `json:"disagg_request_id,omitempty"` // as text: it does not fit a double
	Kind      string      `json:"kind"`
	State     string      `json:"state"`
	InStateMs float64     `json:"in_state_ms"`
	AgeMs     float64     `json:"age_ms"`
	Holds     []DebugHold `json:"holds"`
	Prompt    int         `json:"prompt_tokens"`
	Cached    int         `json:"cached_tokens"`
	Computed  int         `json:"computed_tokens"`
	Output    int         `json:"output_tokens"`
	MaxTokens int         `json:"max_tokens"`
	Blocks    int         `json:"blocks"`
	Shared    int         `json:"shared_blocks"` // of Blocks: shared, or in the index
	Pauses    int         `json:"pauses"`
	Failures  int         `json:"failed_steps"`
	Priority  float64     `json:"priority"`
	DueMs     *float64    `json:"deadline_in_ms,omitempty"` // the next of its deadlines
	Stream    bool        `json:"stream,omitempty"`
	Attached  bool        `json:"attached,omitempty"` // somebody fetches its blocks
	Peer      string      `json:"peer,omitempty"`     // whom its blocks come from
	Route     *DebugRoute `json:"route,omitempty"`
}

// DebugHold is a reason to keep a request's blocks: step, lease, recv or offload.
type DebugHold struct {
	Kind  string  `json:"kind"`
	AgeMs float64 `json:"age_ms"`
}

// DebugRoute is the place of a request among several ranks, and why.
type DebugRoute struct {
	Rank   int    `json:"rank"`
	Reason string `json:"reason"`
}

func (s *Server) debugRequests(b *Backend, r *http.Request) any {
	st := b.Engine.Stats(s.cfg.Stall)
	out := DebugRequests{Health: string(st.Health), Reason: st.Reason}
	for _, v := range viewsOf(b, r) {
		rank := DebugRankRequests{Rank: v.Rank, AgeMs: ms(v.Now - v.At), Requests: []DebugRequest{}}
		for i := range v.Requests {
			rank.Requests = append(rank.Requests, s.debugRequest(&v, &v.Requests[i]))
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}

func (s *Server) debugRequest(v *runner.View, q *executor.RequestReport) DebugRequest {
	out := DebugRequest{
		ID: q.ID, Choice: q.Choice, Kind: kindName(q.Kind), State: q.State.String(), InStateMs: ms(v.Now - q.Entered), AgeMs: ms(v.Now - q.Arrived),
		Holds: []DebugHold{}, Prompt: q.Prompt, Cached: q.Cached, Computed: q.Computed, Output: q.Output, MaxTokens: q.MaxTokens,
		Blocks: q.Blocks, Shared: q.Committed, Pauses: q.Pauses, Failures: q.Failures, Priority: q.Priority, Attached: q.Attached, Peer: q.Peer,
	}
	if q.Lent {
		out.Kind = "loan"
	}
	if q.Transfer != 0 {
		out.DisaggID = strconv.FormatInt(int64(q.Transfer), 10)
	}
	for k, since := range q.Held {
		if since > 0 {
			out.Holds = append(out.Holds, DebugHold{Kind: executor.HoldKind(k).String(), AgeMs: ms(v.Now - since)})
		}
	}
	if q.Due > 0 {
		due := ms(q.Due - v.Now)
		out.DueMs = &due
	}
	k := s.live.get(q.ID)
	out.RequestID, out.Stream = k.requestID, k.stream
	if k.route != nil {
		out.Route = &DebugRoute{Rank: k.route.Rank, Reason: k.route.Reason}
	}
	return out
}

// DebugBlocks is /debug/blocks.
type DebugBlocks struct {
	Ranks []DebugRankBlocks `json:"ranks"`
}

// DebugRankBlocks is the pool of one rank. Total is the sum of the five states.
type DebugRankBlocks struct {
	Rank        int           `json:"rank"`
	AgeMs       float64       `json:"age_ms"`
	BlockTokens int           `json:"tokens_per_block"`
	Total       int           `json:"total"`
	Free        int           `json:"free"`
	Active      int           `json:"active"`
	Reusable    int           `json:"reusable"`
	Leased      int           `json:"leased"`
	Receiving   int           `json:"receiving"`
	Fenced      int           `json:"fenced"` // of Active: free when the running step ends
	FullMs      float64       `json:"full_ms"`
	Evicted     uint64        `json:"evicted_total"`
	Buckets     []DebugBucket `json:"priorities"` // of Reusable, those that go first at the front
	Holders     []DebugHolder `json:"holders"`    // those with the most blocks
	More        int           `json:"more_holders,omitempty"`
}

// DebugBucket are the reusable blocks of one retention priority.
type DebugBucket struct {
	Priority int `json:"priority"`
	Blocks   int `json:"blocks"`
}

// DebugHolder is a request that has blocks.
type DebugHolder struct {
	ID        request.ID  `json:"id"`
	RequestID string      `json:"request_id,omitempty"`
	State     string      `json:"state"`
	Blocks    int         `json:"blocks"`
	Shared    int         `json:"shared_blocks"`
	AgeMs     float64     `json:"age_ms"`
	Holds     []DebugHold `json:"holds"`
}

func (s *Server) debugBlocks(b *Backend, r *http.Request) any {
	var out DebugBlocks
	for _, v := range viewsOf(b, r) {
		p := &v.Stats
		rank := DebugRankBlocks{
			Rank: v.Rank, AgeMs: ms(v.Now - v.At), BlockTokens: b.Engine.Info().Layout.BlockTokens, Total: p.BlocksTotal, Free: p.BlocksFree,
			Active: p.BlocksActive, Reusable: p.BlocksReusable, Leased: p.BlocksLeased, Receiving: p.BlocksReceiving, Fenced: p.BlocksFenced,
			FullMs: ms(p.PoolFull), Evicted: p.EvictedBlocks, Buckets: []DebugBucket{}, Holders: []DebugHolder{},
		}
		for i, n := range v.Buckets {
			if n > 0 {
				rank.Buckets = append(rank.Buckets, DebugBucket{i, n})
			}
		}
		held := slices.DeleteFunc(v.Requests, func(q executor.RequestReport) bool { return q.Blocks == 0 })
		slices.SortStableFunc(held, func(a, b executor.RequestReport) int { return b.Blocks - a.Blocks })
		rank.More = max(0, len(held)-maxHolders)
		for i := range held[:len(held)-rank.More] {
			q := s.debugRequest(&v, &held[i])
			rank.Holders = append(rank.Holders, DebugHolder{q.ID, q.RequestID, q.State, q.Blocks, q.Shared, q.AgeMs, q.Holds})
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}

// DebugFlight is /debug/flight.
type DebugFlight struct {
	Ranks []DebugRankFlight `json:"ranks"`
}

// DebugRankFlight is the flight recorder of one rank, the oldest entries first.
type DebugRankFlight struct {
	Rank   int          `json:"rank"`
	Steps  []DebugStep  `json:"steps"`
	Events []DebugEvent `json:"events"`
}

// DebugStep is one step. AgoMs is since it was planned.
type DebugStep struct {
	Iter      uint64       `json:"iter"`
	AgoMs     float64      `json:"ago_ms"`
	Outcome   string       `json:"outcome"` // running, ok, failed, void, held
	CtxRows   int          `json:"ctx_rows"`
	CtxTokens int          `json:"ctx_tokens"`
	CtxPrior  int          `json:"ctx_attention"` // sum over prefill rows of their tokens times the positions before them
	GenRows   int          `json:"gen_rows"`
	GenDepth  int          `json:"gen_context"` // sum of the context lengths of decode rows
	Copies    int          `json:"copies"`
	Arrived   int          `json:"arrived"` // since the step before
	Admitted  int          `json:"admitted"`
	Paused    int          `json:"paused"`
	Finished  int          `json:"finished"`
	Failed    int          `json:"failed"`
	Cancelled int          `json:"cancelled"`
	Running   int          `json:"running"` // when it was planned
	Waiting   int          `json:"waiting"`
	Receiving int          `json:"receiving"`
	Leases    int          `json:"leases"`
	Free      int          `json:"free_blocks"`
	Reusable  int          `json:"reusable_blocks"`
	SchedMs   float64      `json:"sched_ms"`
	RunMs     float64      `json:"run_ms"`
	ApplyMs   float64      `json:"apply_ms"`
	First     []request.ID `json:"first_requests"` // of its rows, at most 8
}

// DebugEvent is something out of the ordinary.
type DebugEvent struct {
	AgoMs float64    `json:"ago_ms"`
	Iter  uint64     `json:"iter"`
	Kind  string     `json:"kind"`
	ID    request.ID `json:"id,omitempty"`
	Code  string     `json:"code,omitempty"`
	Text  string     `json:"text,omitempty"`
}

func (s *Server) debugFlight(b *Backend, r *http.Request) any {
	var out DebugFlight
	for _, v := range viewsOf(b, r) {
		rank := DebugRankFlight{Rank: v.Rank, Steps: []DebugStep{}, Events: []DebugEvent{}}
		for i := range v.Steps {
			rank.Steps = append(rank.Steps, debugStep(&v.Steps[i], v.Now))
		}
		for _, e := range v.Events {
			rank.Events = append(rank.Events, DebugEvent{ms(v.Now - e.At), e.Iter, string(e.Kind), e.ID, string(e.Code), openai.Cut(e.Text, openai.MaxErrorText)})
		}
		out.Ranks = append(out.Ranks, rank)
	}
	return out
}

func debugStep(p *executor.StepRecord, now time.Duration) DebugStep {
	first := []request.ID{}
	for _, id := range p.IDs {
		if id != 0 {
			first = append(first, id)
		}
	}
	return DebugStep{
		Iter: p.Iter, AgoMs: ms(now - p.Planned), Outcome: string(p.Outcome), CtxRows: p.CtxRequests, CtxTokens: p.CtxTokens, CtxPrior: p.CtxPrior, GenRows: p.GenRequests,
		GenDepth: p.GenContext, Copies: p.Copies, Arrived: p.Arrived, Admitted: p.Admitted, Paused: p.Paused, Finished: p.Finished, Failed: p.Failed, Cancelled: p.Cancelled,
		Running: p.Running, Waiting: p.Waiting, Receiving: p.Receiving, Leases: p.Leases, Free: p.Free, Reusable: p.Reusable,
		SchedMs: ms(p.Sched), RunMs: ms(p.Run), ApplyMs: ms(p.Apply), First: first,
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
