package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"
)

// Words of disaggregated_params.request_type and schedule_style.
const (
	ContextOnly     = "context_only"
	GenerationOnly  = "generation_only"
	ContextFirst    = "context_first"
	GenerationFirst = "generation_first"
)

// Finish reasons on the wire. NotFinished ends a ctx leg whose decode goes on
// elsewhere; no client ever sees it.
const (
	FinishStop        = "stop"
	FinishLength      = "length"
	FinishToolCalls   = "tool_calls"
	FinishFilter      = "content_filter"
	FinishCancelled   = "cancelled"
	FinishError       = "error"
	FinishNotFinished = "not_finished"
)

// Worker roles on the wire.
const (
	RoleContext    = "context"
	RoleGeneration = "generation"
	RoleMixed      = "mixed"
)

// DisaggParams is disaggregated_params: what a frontend tells a worker about a
// leg, and what a ctx worker answers inside choices[0]. Ids are int64 and are
// never decoded through a float. A null member is nil.
type DisaggParams struct {
	RequestType        string       `json:"request_type,omitempty"`
	ScheduleStyle      string       `json:"schedule_style,omitempty"`
	DisaggRequestID    *int64       `json:"disagg_request_id,omitempty"`
	CtxRequestID       *int64       `json:"ctx_request_id,omitempty"`
	CtxDPRank          *int         `json:"ctx_dp_rank,omitempty"`
	CtxInfoEndpoint    *string      `json:"ctx_info_endpoint,omitempty"`
	EncodedOpaqueState *string      `json:"encoded_opaque_state,omitempty"` // base64, relayed byte for byte
	FirstGenTokens     []int32      `json:"first_gen_tokens,omitempty"`
	FirstGenLogProbs   [][]TokenLog `json:"first_gen_log_probs,omitzero"` // nil = null; empty stays empty
	DraftTokens        []int32      `json:"draft_tokens,omitempty"`
	CtxUsage           *Usage       `json:"ctx_usage,omitempty"`
	ReturnPromptIDsB64 bool         `json:"return_prompt_token_ids_b64,omitempty"`
	ResolvedThinking   *bool        `json:"resolved_thinking,omitempty"`
	FirstTokenEmitted  bool         `json:"first_token_emitted,omitempty"`
	// ChoiceTokens are the tokens that the client has of each choice of a stream that
	// goes on at another worker; with one choice FirstGenTokens has them.
	ChoiceTokens [][]int32 `json:"choice_tokens,omitempty"`

	// LegacyConversationID is read from older frontends and never sent.
	LegacyConversationID *string `json:"-"`
	// Ignored names the members that were present and not understood.
	Ignored []string `json:"-"`
}

// TokenLog is one alternative of one position of first_gen_log_probs.
type TokenLog struct {
	TokenID int32   `json:"token_id"`
	Logprob float64 `json:"logprob"`
	Rank    *int    `json:"rank"`
}

// UnmarshalJSON reads the object as DecodeDisaggParams does.
func (p *DisaggParams) UnmarshalJSON(data []byte) error {
	q, err := DecodeDisaggParams(data)
	if q != nil {
		*p = *q
	}
	return err
}

// LegRole returns the role a leg's affinity signature names: that of the phase
// it runs, whatever the worker's own role.
func LegRole(requestType string) string {
	if requestType == ContextOnly {
		return RoleContext
	}
	return RoleGeneration
}

// Protected tells whether the params hold a field that needs X-Disagg-Auth.
func (p *DisaggParams) Protected() bool {
	return p != nil && (p.CtxInfoEndpoint != nil || p.EncodedOpaqueState != nil)
}

// DecodeDisaggParams reads disaggregated_params out of a request or of a ctx
// worker's choice. null gives nil. Errors are *Error 400 naming the member.
func DecodeDisaggParams(raw json.RawMessage) (*DisaggParams, error) {
	const param = "disaggregated_params"
	if isNull(raw) {
		return nil, nil
	}
	body, err := objectOf(param, raw)
	if err != nil {
		return nil, err
	}
	p := &DisaggParams{}
	for _, m := range body.members {
		if isNull(m.raw) {
			continue
		}
		if err := p.set(param+"."+m.name, m); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *DisaggParams) set(param string, m member) (err error) {
	switch m.name {
	case "request_type":
		p.RequestType, err = wordOf(param, m.raw, ContextOnly, GenerationOnly)
	case "schedule_style":
		p.ScheduleStyle, err = wordOf(param, m.raw, ContextFirst, GenerationFirst)
	case "disagg_request_id":
		p.DisaggRequestID, err = int64Ptr(param, m.raw)
	case "ctx_request_id":
		p.CtxRequestID, err = int64Ptr(param, m.raw)
	case "ctx_dp_rank":
		p.CtxDPRank, err = ptr(intOf(param, m.raw, 0, 1<<15))
	case "ctx_info_endpoint":
		p.CtxInfoEndpoint, err = ptr(endpointOf(param, m.raw))
	case "encoded_opaque_state":
		p.EncodedOpaqueState, err = ptr(stringOf(param, m.raw))
	case "first_gen_tokens":
		p.FirstGenTokens, err = idsOf(param, m.raw)
	case "first_gen_log_probs":
		p.FirstGenLogProbs, err = tokenLogsOf(param, m.raw)
	case "choice_tokens":
		p.ChoiceTokens, err = idListsOf(param, m.raw)
	case "draft_tokens":
		p.DraftTokens, err = idsOf(param, m.raw)
	case "ctx_usage":
		p.CtxUsage, err = usageOf(param, m.raw)
	case "return_prompt_token_ids_b64":
		p.ReturnPromptIDsB64, err = boolOf(param, m.raw)
	case "resolved_thinking":
		p.ResolvedThinking, err = ptr(boolOf(param, m.raw))
	case "first_token_emitted":
		p.FirstTokenEmitted, err = boolOf(param, m.raw)
	case "conversation_id":
		p.LegacyConversationID, err = conversationID(param, m.raw)
	default:
		p.Ignored = append(p.Ignored, m.name)
	}
	return err
}

// endpointOf accepts a string or a list whose first element is used.
func endpointOf(param string, raw json.RawMessage) (string, error) {
	if raw[0] != '[' {
		return stringOf(param, raw)
	}
	list, err := listOf(param, raw)
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", Invalid(param, "%s is an empty list: send one endpoint", param)
	}
	return stringOf(param, list[0])
}

func idListsOf(param string, raw json.RawMessage) ([][]int32, error) {
	list, err := listOf(param, raw)
	if err != nil {
		return nil, err
	}
	out := make([][]int32, len(list))
	for i := range list {
		if out[i], err = idsOf(fmt.Sprintf("%s[%d]", param, i), list[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func tokenLogsOf(param string, raw json.RawMessage) ([][]TokenLog, error) {
	list, err := listOf(param, raw)
	if err != nil {
		return nil, err
	}
	out := make([][]TokenLog, len(list))
	for i, pos := range list {
		at := fmt.Sprintf("%s[%d]", param, i)
		entries, err := listOf(at, pos)
		if err != nil {
			return nil, err
		}
		out[i] = make([]TokenLog, len(entries))
		for j, e := range entries {
			if out[i][j], err = tokenLogOf(fmt.Sprintf("%s[%d]", at, j), e); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func tokenLogOf(param string, raw json.RawMessage) (t TokenLog, err error) {
	body, err := objectOf(param, raw)
	if err != nil {
		return t, err
	}
	id, okID := body.Get("token_id")
	lp, okLP := body.Get("logprob")
	if !okID || !okLP {
		return t, Invalid(param, "%s needs token_id and logprob", param)
	}
	if t.TokenID, err = idOf(param+".token_id", id); err != nil {
		return t, err
	}
	if t.Logprob, err = floatOf(param+".logprob", lp); err != nil {
		return t, err
	}
	if rank, ok := body.Get("rank"); ok && !isNull(rank) {
		t.Rank, err = ptr(intOf(param+".rank", rank, 0, 1<<31-1))
	}
	return t, err
}

// EncodeIDs packs token ids as base64 of little-endian int32 (prompt_token_ids_b64).
func EncodeIDs(ids []int32) string {
	b := make([]byte, 4*len(ids))
	for i, id := range ids {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(id))
	}
	return base64.StdEncoding.EncodeToString(b)
}

// DecodeIDs is the inverse of EncodeIDs. Negative ids are errors.
func DecodeIDs(s string) ([]int32, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("not base64: %w", err)
	}
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("%d bytes are no whole number of int32", len(b))
	}
	ids := make([]int32, len(b)/4)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
		if ids[i] < 0 {
			return nil, fmt.Errorf("token id %d at index %d is negative", ids[i], i)
		}
	}
	return ids, nil
}

// idEpoch is where the time in a disagg_request_id starts.
var idEpoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// Created returns the `created` stamp of a reply in unix seconds. Both workers
// of a split request and the frontend derive it from the attempt's id, so that
// all chunks carry the same one whoever writes them; an id that holds no recent
// time (0, or made by someone else's rule) gives now.
func Created(disaggID int64, now time.Time) int64 {
	if disaggID > 0 {
		t := idEpoch.Add(time.Duration(disaggID>>24) * time.Millisecond)
		if d := now.Sub(t); d > -24*time.Hour && d < 24*time.Hour {
			return t.Unix()
		}
	}
	return now.Unix()
}

// ReplyID returns the `id` of a reply. It is a function of the request id
// (X-Request-ID), so that frontend and both workers name one reply alike.
func ReplyID(e Endpoint, requestID string) string {
	if e == Chat {
		return "chatcmpl-" + requestID
	}
	return "cmpl-" + requestID
}
