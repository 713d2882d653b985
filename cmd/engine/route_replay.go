package main

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"strconv"

	"tandem/engine/adprouter"
	"tandem/engine/request"
)

// The results.
type (
	routeResult struct {
		ID      jsontext.Value `json:"id"`
		Batches []batchResult  `json:"batches"`

		title         string
		conversations bool
	}
	batchResult struct {
		Assignment object[[]request.ID] `json:"assignment"`
		Target     int                  `json:"expected_num_active_requests"`
		Active     []int                `json:"final_active_requests"`
		Bindings   []boundTo            `json:"bindings"`
		Cursor     int                  `json:"cursor"`
		Reasons    object[string]       `json:"reasons"`
		From       object[int]          `json:"from,omitempty"`   // of requests that moved
		Moving     []boundTo            `json:"moving,omitempty"` // and where to
		Unplaced   []request.ID         `json:"unplaced,omitempty"`
		Rejected   object[string]       `json:"rejected,omitempty"`
		Warmup     *[]int               `json:"warmup_pending,omitzero"`

		before  []int
		reasons map[request.ID]string // for people
	}
	admissionResult struct {
		ID       jsontext.Value `json:"id"`
		Capacity int            `json:"capacity"`
		Popped   []request.ID   `json:"popped"`
		After    []request.ID   `json:"queue_after"`
		Rejected object[string] `json:"rejected,omitempty"`
	}
)

// object is a JSON object that keeps the order of its members.
type object[T any] []member[T]

type member[T any] struct {
	name  string
	value T
}

func (o *object[T]) add(name string, value T) { *o = append(*o, member[T]{name, value}) }

// MarshalJSONTo implements json.MarshalerTo.
func (o object[T]) MarshalJSONTo(e *jsontext.Encoder) error {
	if err := e.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, m := range o {
		if err := e.WriteToken(jsontext.String(m.name)); err != nil {
			return err
		}
		if err := json.MarshalEncode(e, m.value); err != nil {
			return err
		}
	}
	return e.WriteToken(jsontext.EndObject)
}

// boundTo is a conversation and its rank, in JSON a pair.
type boundTo struct {
	key  string
	rank int
}

// MarshalJSONTo implements json.MarshalerTo.
func (b boundTo) MarshalJSONTo(e *jsontext.Encoder) error {
	return json.MarshalEncode(e, []any{b.key, b.rank})
}

func replayRoute(raw jsontext.Value, path string) (any, error) {
	var c routeCase
	if err := decode(raw, path, &c); err != nil {
		return nil, err
	}
	ranks := 1
	if len(c.Batches) > 0 {
		ranks = max(len(c.Batches[0].States), 1)
	}
	cfg, err := c.Config.router(path+".config", ranks)
	if err != nil {
		return nil, err
	}
	r, err := adprouter.New(cfg)
	if err != nil {
		return nil, err
	}
	out := routeResult{ID: c.ID, Batches: []batchResult{}, conversations: cfg.Kind == adprouter.ConversationAware}
	out.title = fmt.Sprintf("%s router, %d ranks of at most %d requests", cfg.Kind, cfg.Ranks, cfg.Cap)
	if out.conversations {
		out.title += ", placement " + string(r.Config().Placement)
	}
	if r.FellBack() {
		out.title += fmt.Sprintf(" (%q is unknown)", cfg.Placement)
	}
	for i := range c.Batches {
		batch, err := c.Batches[i].replay(r, fmt.Sprintf("%s.batches[%d]", path, i))
		if err != nil {
			return nil, err
		}
		out.Batches = append(out.Batches, batch)
	}
	return out, nil
}

func (b *routeBatch) replay(r *adprouter.Router, path string) (batchResult, error) {
	var out batchResult
	ranks := r.Config().Ranks
	states, err := b.states(path, ranks)
	if err != nil {
		return out, err
	}
	batch, seen := make([]adprouter.Item, 0, len(b.Requests)), map[uint64]bool{}
	for i := range b.Requests {
		it, refused, err := b.Requests[i].item(fmt.Sprintf("%s.requests[%d]", path, i), ranks, seen)
		switch {
		case err != nil:
			return out, err
		case refused != nil:
			out.Rejected.add(idText(it.ID), refused.Error())
		default:
			batch = append(batch, it)
		}
	}
	if err := b.endMoves(r, path); err != nil {
		return out, err
	}
	res := r.Route(states, batch)
	if err := r.Check(); err != nil {
		return out, fmt.Errorf("%s: broken invariant: %w", path, err)
	}
	out.fill(r, states, batch, res)
	return out, nil
}

// fill copies what belongs to the router.
func (out *batchResult) fill(r *adprouter.Router, states []adprouter.RankState, batch []adprouter.Item, res *adprouter.Result) {
	out.Target, out.Active, out.Cursor = res.Target, append([]int{}, res.Active...), r.Cursor()
	for rank := range states {
		out.Assignment.add(strconv.Itoa(rank), []request.ID{})
		out.before = append(out.before, states[rank].Active)
	}
	out.reasons = map[request.ID]string{}
	places := make([]*adprouter.Placed, len(batch))
	for i := range res.Placed {
		p := &res.Placed[i]
		ids := &out.Assignment[p.Rank].value
		*ids = append(*ids, p.ID)
		out.reasons[p.ID] = p.Reason.String()
		if p.From >= 0 {
			out.reasons[p.ID] += fmt.Sprint(" from ", p.From)
		}
		places[p.Index] = p
	}
	for _, p := range places {
		if p == nil {
			continue
		}
		out.Reasons.add(idText(p.ID), p.Reason.String())
		if p.From >= 0 {
			out.From.add(idText(p.ID), p.From)
		}
	}
	for _, i := range res.Unplaced {
		out.Unplaced = append(out.Unplaced, batch[i].ID)
	}
	out.Bindings = []boundTo{}
	for _, key := range r.Keys() {
		rank, _ := r.Home(key)
		out.Bindings = append(out.Bindings, boundTo{key, rank})
		if to, ok := r.Moving(key); ok {
			out.Moving = append(out.Moving, boundTo{key, to})
		}
	}
	if cfg := r.Config(); cfg.Warmup && cfg.Kind == adprouter.KVCacheAware {
		pending := r.Pending()
		out.Warmup = &pending
	}
}

func replayAdmission(raw jsontext.Value, path string) (any, error) {
	var c admissionCase
	if err := decode(raw, path, &c); err != nil {
		return nil, err
	}
	cfg, err := (&routeConfig{Ranks: c.Ranks, Cap: c.Cap}).router(path, max(len(c.Active), 1))
	if err != nil {
		return nil, err
	}
	if len(c.Active) != cfg.Ranks {
		return nil, fmt.Errorf("%s.active_requests: has %d entries for %d ranks", path, len(c.Active), cfg.Ranks)
	}
	states := make([]adprouter.RankState, cfg.Ranks)
	for rank, n := range c.Active {
		if err := count(fmt.Sprintf("%s.active_requests[%d]", path, rank), int64(n), 1<<30); err != nil {
			return nil, err
		}
		states[rank].Active = n
	}
	out := admissionResult{ID: c.ID, Capacity: adprouter.Room(cfg.Cap, states), Popped: []request.ID{}, After: []request.ID{}}
	q, seen := adprouter.NewQueue(cfg.Ranks, cfg.Cap), map[uint64]bool{}
	for i := range c.Queue {
		it, refused, err := c.Queue[i].item(fmt.Sprintf("%s.queue[%d]", path, i), cfg.Ranks, seen)
		if err != nil {
			return nil, err
		}
		if refused == nil {
			refused = q.Push(it)
		}
		if refused != nil {
			out.Rejected.add(idText(it.ID), refused.Error())
		}
	}
	for _, it := range q.Admit(states, false) {
		out.Popped = append(out.Popped, it.ID)
	}
	for i := range q.Len() {
		out.After = append(out.After, q.At(i).ID)
	}
	return out, nil
}

func idText(id request.ID) string { return strconv.FormatUint(uint64(id), 10) }
