package disagg

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// rankRow says what became of a rank that the router chose for a leg; it is a label of a metric.
type rankRow string

// The rows. A worker obeys a rank before anything but a known conversation, so sending one with each request would undo
// the worker's own affinity, and dropping it where nothing identifies the conversation would undo the router's choice.
const (
	rowForced rankRow = "forced" // engine_conv_affinity is off: sent, strict
	rowNoID   rankRow = "no_id"  // the leg carries neither conversation nor affinity key: sent, strict
	rowUnable rankRow = "unable" // the worker does not place by conversation: sent, strict
	rowEngine rankRow = "engine" // the worker places by conversation: not sent
	rowHint   rankRow = "hint"   // the same, sent for conversations that the worker does not know
)

// rankRule decides what is sent of the router's rank. attached tells that the leg really carries a key.
func (c Config) rankRule(attached bool, worker *discovery.ServerInfo) rankRow {
	switch {
	case !c.EngineConvAffinity:
		return rowForced
	case !attached:
		return rowNoID
	case !worker.ADPConversation:
		return rowUnable
	case c.RankHints:
		return rowHint
	}
	return rowEngine
}

// rankHeader returns the value of X-Disagg-DP-Rank for a leg, "" for none, and counts the decision.
func (s *Server) rankHeader(c *call, affinity string) string {
	if c.rank == nil {
		return ""
	}
	if r := *c.rank; r < 0 || r >= max(1, c.inst.Info.ADPSize) {
		s.obs.Happened(EventRankInvalid)
		s.log.Warn("the router chose a rank that the worker does not have: it is not sent", "server", c.inst.ID, "rank", r, "adp_size", c.inst.Info.ADPSize)
		return ""
	}
	row := s.cfg.rankRule(strings.TrimSpace(c.body.conversation) != "" || affinity != "", c.inst.Info)
	s.obs.Happened(EventForcedRank, string(c.role), string(row))
	if _, told := s.rankTold.LoadOrStore(string(c.role)+" "+c.inst.ID, true); !told {
		s.log.Info("first rank chosen by the router for this worker", "server", c.inst.ID, "leg", c.role, "row", row)
	}
	switch row {
	case rowEngine:
		return ""
	case rowHint:
		return strconv.Itoa(*c.rank) + ";relax"
	}
	return strconv.Itoa(*c.rank)
}

// setPlacement sends what a worker's rank placement needs to know, signed if there is a key.
func (s *Server) setPlacement(h http.Header, p *RoutePlan, c *call) {
	affinity := p.view(c.role).AffinityKey
	rank := s.rankHeader(c, affinity)
	if affinity != "" {
		s.obs.Happened(EventAffinity, string(c.role))
		h.Set(openai.HeaderAffinityKey, affinity)
	}
	if rank != "" {
		h.Set(openai.HeaderDPRank, rank)
	}
	if p.Tenant != "" {
		h.Set(openai.HeaderTenant, p.Tenant)
	}
	if len(s.cfg.AuthKey) == 0 || affinity == "" && rank == "" && p.Tenant == "" {
		return
	}
	a := openai.Affinity{Role: string(c.role), Model: p.Req.Model}
	if c.body.conversation != "" {
		a.ConversationID = &c.body.conversation
	}
	if affinity != "" {
		a.AffinityKey = &affinity
	}
	if d := c.body.params; d != nil {
		a.RequestType, a.DisaggID = d.RequestType, d.DisaggRequestID
	}
	h.Set(openai.HeaderAffinityAuth, openai.Key(s.cfg.AuthKey).SignAffinity(a))
}

// legBody is the request of a leg as it is sent.
type legBody struct {
	data         []byte
	params       *openai.DisaggParams // nil = a whole request
	conversation string               // the id in conversation_params, "" = none
}

// finish encodes a body. Its conversation is read back, so that it is what the worker will see.
func finish(body openai.Body, params *openai.DisaggParams) legBody {
	raw, _ := body.Get("conversation_params")
	var conv struct {
		ID string `json:"conversation_id"`
	}
	if len(raw) > 0 {
		_ = json.Unmarshal(raw, &conv) // base made it
	}
	return legBody{data: body.AppendJSON(nil), params: params, conversation: conv.ID}
}

// WarnConvAffinity is the code of the warning that engine_conv_affinity does nothing.
const WarnConvAffinity = "W_CONV_AFFINITY_INERT"

// convInert warns of an engine_conv_affinity that no worker can follow.
func (s *Server) convInert(st *discovery.Status) []discovery.Warning {
	if !s.cfg.EngineConvAffinity {
		return nil
	}
	known := false
	for _, w := range append(append([]discovery.WorkerStatus{}, st.Context...), st.Gen...) {
		if w.ADPConversation {
			return nil
		}
		known = known || w.LastSeenMs >= 0
	}
	if !known {
		return nil
	}
	return []discovery.Warning{{
		Code: WarnConvAffinity,
		Message: "engine_conv_affinity is on, but no worker places requests by conversation: " +
			"set enable_attention_dp and attention_dp_config.kv_cache_routing_conversation_affinity at workers with several ranks",
	}}
}
