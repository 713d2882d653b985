package main

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"

	"tandem/engine/adprouter"
	"tandem/engine/request"
)

// The script. Absent and null members take their defaults, so what has one is a
// pointer.
type (
	routeCase struct {
		ID      jsontext.Value `json:"id"`
		Kind    string         `json:"kind"`
		Config  routeConfig    `json:"config"`
		Batches []routeBatch   `json:"batches"`
	}
	routeConfig struct {
		Router      *string  `json:"router"`
		Ranks       *int     `json:"tp_size"`
		Cap         *int     `json:"max_num_active_requests"`
		Multiplier  *float64 `json:"fair_share_multiplier"`
		Placement   *string  `json:"placement"`
		MaxSessions *int     `json:"max_sessions"`
		StickyCap   *string  `json:"sticky_cap"`
		LoadWeight  *float64 `json:"load_balance_weight"`
		Threshold   *float64 `json:"match_rate_threshold"`
		Warmup      *bool    `json:"cold_start_warmup"`
		Compat      *bool    `json:"compat"`
		DecodeCost  *int     `json:"decode_cost"`
		Rehome      *bool    `json:"rehome"`
		MaxMoves    *int     `json:"rehome_max_moves"`
		Gain        *float64 `json:"rehome_gain"`
		MinGain     *int     `json:"rehome_min_gain"`
		CopyCost    *float64 `json:"rehome_copy_cost"`
		Cooldown    *int     `json:"rehome_cooldown"`
	}
	routeBatch struct {
		// Moves that have ended before the batch.
		Moved    []movedTo      `json:"moved"`
		Failed   []string       `json:"move_failed"`
		States   []rankState    `json:"rank_states"`
		Requests []routeRequest `json:"requests"`
	}
	movedTo struct {
		Conversation string `json:"conversation_id"`
		Rank         int    `json:"rank"`
	}
	rankState struct {
		Rank     *int   `json:"rank"` // default: position
		Active   int    `json:"active_requests"`
		Tokens   int64  `json:"active_tokens"`
		Queued   *int64 `json:"queued_prefill_tokens"` // default: active_tokens
		Decoding int    `json:"gen_requests"`
	}
	queueRequest struct {
		ID       *uint64 `json:"id"`
		Rank     *int    `json:"attention_dp_rank"`
		Relax    *bool   `json:"relax"`
		Children int     `json:"children"`
	}
	routeRequest struct {
		queueRequest `json:",inline"`
		Conversation string  `json:"conversation_id"`
		Tokens       int     `json:"num_tokens"`
		Match        []int32 `json:"prefix_match"`
		Fill         int32   `json:"token_fill"`
	}
	admissionCase struct {
		ID     jsontext.Value `json:"id"`
		Kind   string         `json:"kind"`
		Ranks  *int           `json:"tp_size"`
		Cap    *int           `json:"max_num_active_requests"`
		Active []int          `json:"active_requests"`
		Queue  []queueRequest `json:"queue"`
	}
)

// defaultCap is the max_num_active_requests of a script that names none.
const defaultCap = 64

// replay runs a script and returns the result of each case.
func replay(text []byte) ([]any, error) {
	var script struct {
		Cases []jsontext.Value `json:"cases"`
	}
	if err := decode(text, "", &script); err != nil {
		return nil, err
	}
	out := make([]any, 0, len(script.Cases))
	for i, raw := range script.Cases {
		path := fmt.Sprintf("cases[%d]", i)
		var head struct {
			ID   jsontext.Value `json:"id"`
			Kind string         `json:"kind"`
		}
		if err := explain(path, json.Unmarshal(raw, &head)); err != nil {
			return nil, err
		}
		if k := head.ID.Kind(); k != '"' && k != '0' {
			return nil, fmt.Errorf("%s.id: must be a string or a number", path)
		}
		var result any
		var err error
		switch head.Kind {
		case "route":
			result, err = replayRoute(raw, path)
		case "admission":
			result, err = replayAdmission(raw, path)
		default:
			err = fmt.Errorf("%s.kind: %q is neither route nor admission", path, head.Kind)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}
	return out, nil
}

var pointerIndex = regexp.MustCompile(`/(\d+)`)

// fieldPath turns /batches/0/requests into base.batches[0].requests.
func fieldPath(base string, p jsontext.Pointer) string {
	path := strings.ReplaceAll(pointerIndex.ReplaceAllString(string(p), "[$1]"), "/", ".")
	if base == "" {
		path = strings.TrimPrefix(path, ".")
	}
	if base+path == "" {
		return "script"
	}
	return base + path
}

// decode reads JSON strictly; its errors name the member by its path from base.
func decode(text []byte, base string, to any) error {
	return explain(base, json.Unmarshal(text, to, json.RejectUnknownMembers(true)))
}

func explain(base string, err error) error {
	var syntax *jsontext.SyntacticError
	var meaning *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("%s: byte %d: %w", fieldPath(base, syntax.JSONPointer), syntax.ByteOffset, syntax.Err)
	case errors.As(err, &meaning):
		path := fieldPath(base, meaning.JSONPointer)
		switch {
		case errors.Is(meaning.Err, json.ErrUnknownName):
			return fmt.Errorf("%s: unknown key", path)
		case len(meaning.JSONValue) > 0:
			return fmt.Errorf("%s: %.40s does not fit; it must be %s", path, meaning.JSONValue, wanted(meaning))
		default:
			return fmt.Errorf("%s: must be %s", path, wanted(meaning))
		}
	}
	return err
}

// wanted names what a member has to be.
func wanted(e *json.SemanticError) string {
	typ := strings.TrimLeft(fmt.Sprint(e.GoType), "*")
	switch {
	case strings.HasPrefix(typ, "uint"):
		return "a whole number, 0 or more"
	case strings.HasPrefix(typ, "int"):
		return "a whole number"
	case typ == "float64":
		return "a number"
	case typ == "bool":
		return "true or false"
	case typ == "string":
		return "a string"
	case strings.HasPrefix(typ, "[]"):
		return "a list"
	}
	return "an object"
}

// count refuses a number that is negative or too large.
func count(path string, n, most int64) error {
	if n < 0 || n > most {
		return fmt.Errorf("%s: %d is not between 0 and %d", path, n, most)
	}
	return nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// router makes the configuration; ranks is what tp_size is if absent.
func (c *routeConfig) router(path string, ranks int) (adprouter.Config, error) {
	cfg := adprouter.Defaults(ranks, defaultCap)
	set((*string)(&cfg.Kind), c.Router)
	set(&cfg.Ranks, c.Ranks)
	set(&cfg.Cap, c.Cap)
	set((*string)(&cfg.Placement), c.Placement)
	set((*string)(&cfg.StickyCap), c.StickyCap)
	set(&cfg.MaxSessions, c.MaxSessions)
	set(&cfg.Warmup, c.Warmup)
	set(&cfg.Compat, c.Compat)
	set(&cfg.DecodeCost, c.DecodeCost)
	set(&cfg.Rehome.On, c.Rehome)
	set(&cfg.Rehome.MaxMoves, c.MaxMoves)
	set(&cfg.Rehome.MinGain, c.MinGain)
	set(&cfg.Rehome.Cooldown, c.Cooldown)
	for _, f := range []struct {
		key  string
		to   *adprouter.Milli
		from *float64
	}{
		{"fair_share_multiplier", &cfg.Multiplier, c.Multiplier},
		{"load_balance_weight", &cfg.LoadWeight, c.LoadWeight},
		{"match_rate_threshold", &cfg.MatchThreshold, c.Threshold},
		{"rehome_gain", &cfg.Rehome.Gain, c.Gain},
		{"rehome_copy_cost", &cfg.Rehome.CopyCost, c.CopyCost},
	} {
		if f.from == nil {
			continue
		}
		m, err := adprouter.MilliOf(*f.from)
		if err != nil {
			return cfg, fmt.Errorf("%s.%s: %w", path, f.key, err)
		}
		*f.to = m
	}
	if err := cfg.Validate(); err != nil {
		return cfg, fmt.Errorf("%s.%w", path, err)
	}
	return cfg, nil
}

// states orders a batch's rank states by rank.
func (b *routeBatch) states(path string, ranks int) ([]adprouter.RankState, error) {
	if len(b.States) != ranks {
		return nil, fmt.Errorf("%s.rank_states: has %d entries for %d ranks", path, len(b.States), ranks)
	}
	out, seen := make([]adprouter.RankState, ranks), make([]bool, ranks)
	for i, s := range b.States {
		at := fmt.Sprintf("%s.rank_states[%d]", path, i)
		rank := i
		set(&rank, s.Rank)
		queued := s.Tokens
		set(&queued, s.Queued)
		if err := errors.Join(
			count(at+".rank", int64(rank), int64(ranks-1)),
			count(at+".active_requests", int64(s.Active), 1<<30),
			count(at+".active_tokens", s.Tokens, 1<<50),
			count(at+".queued_prefill_tokens", queued, 1<<50),
			count(at+".gen_requests", int64(s.Decoding), 1<<30),
		); err != nil {
			return nil, err
		}
		if seen[rank] {
			return nil, fmt.Errorf("%s.rank: rank %d is there twice", at, rank)
		}
		seen[rank] = true
		out[rank] = adprouter.RankState{Active: s.Active, Tokens: s.Tokens, QueuedPrefill: queued, Decoding: s.Decoding}
	}
	return out, nil
}

// endMoves tells the router how moves have ended.
func (b *routeBatch) endMoves(r *adprouter.Router, path string) error {
	for i, m := range b.Moved {
		if !r.Move(key(m.Conversation), m.Rank) {
			return fmt.Errorf("%s.moved[%d]: %q is not bound, or there is no rank %d", path, i, m.Conversation, m.Rank)
		}
	}
	for i, c := range b.Failed {
		if !r.MoveFailed(key(c)) {
			return fmt.Errorf("%s.move_failed[%d]: %q is not on the move", path, i, c)
		}
	}
	return nil
}

func key(conversation string) string {
	return adprouter.Key(&request.Request{ConversationID: conversation})
}

// item checks the common members of a request. A rank that the instance does not
// have is no error of the script: it refuses the request.
func (q *queueRequest) item(path string, ranks int, seen map[uint64]bool) (adprouter.Item, *request.Error, error) {
	it := adprouter.Item{Rank: -1, Relax: q.Relax == nil || *q.Relax, Weight: 1 + q.Children}
	switch {
	case q.ID == nil:
		return it, nil, fmt.Errorf("%s.id: is missing", path)
	case seen[*q.ID]:
		return it, nil, fmt.Errorf("%s.id: %d is there twice", path, *q.ID)
	}
	seen[*q.ID] = true
	it.ID = request.ID(*q.ID)
	if err := count(path+".children", int64(q.Children), 1<<20); err != nil {
		return it, nil, err
	}
	if q.Rank == nil {
		return it, nil, nil
	}
	it.Rank = *q.Rank
	return it, adprouter.CheckRank(it.Rank, ranks), nil
}

func (q *routeRequest) item(path string, ranks int, seen map[uint64]bool) (adprouter.Item, *request.Error, error) {
	it, refused, err := q.queueRequest.item(path, ranks, seen)
	if err != nil {
		return it, nil, err
	}
	if err := count(path+".num_tokens", int64(q.Tokens), math.MaxInt32); err != nil {
		return it, nil, err
	}
	if len(q.Match) > ranks {
		return it, nil, fmt.Errorf("%s.prefix_match: has %d entries for %d ranks", path, len(q.Match), ranks)
	}
	for i, m := range q.Match {
		if m < 0 {
			return it, nil, fmt.Errorf("%s.prefix_match[%d]: %d is negative", path, i, m)
		}
	}
	it.Key = key(q.Conversation)
	it.Tokens, it.Match = q.Tokens, q.Match
	it.Head = make([]int32, min(q.Tokens, adprouter.HeadTokens))
	for i := range it.Head {
		it.Head[i] = q.Fill
	}
	return it, refused, nil
}
