package disagg

import (
	"fmt"

	"tandem/serve/conversation"
	"tandem/serve/discovery"
	"tandem/serve/router"
)

// Codes of the warnings that sub-agents do not find their parent's cache.
const (
	WarnAffinityCtx  = "W_AFFINITY_INERT_CTX"
	WarnAffinityGen  = "W_AFFINITY_INERT_GEN"
	WarnAffinityRank = "W_AFFINITY_INERT_RANK"
	WarnScope        = "W_SCOPE_WITHOUT_HEADER"
)

// inert warns of settings that no router or worker can follow.
func (s *Server) inert(st *discovery.Status) []discovery.Warning {
	out := append(append(s.subagentsInert(st), s.convInert(st)...), s.lateOnly()...)
	for _, role := range []discovery.Role{discovery.Context, discovery.Generation} {
		if l, ok := s.routers[role].(router.Listener); ok {
			out = append(out, l.Warnings()...)
		}
	}
	return out
}

// subagentsInert warns where sub-agents are not placed by their parent. Instances and ranks are two separate matters, so
// each has a message of its own.
func (s *Server) subagentsInert(st *discovery.Status) (out []discovery.Warning) {
	rules := s.cfg.Conversations
	if !rules.Parents() {
		if rules.Scope != "" {
			out = append(out, discovery.Warning{
				Code: WarnScope, Message: "subagent_affinity_scope has no effect: set conversation_affinity_header_for_subagents, or agent_headers that tell parents",
			})
		}
		return out
	}
	legs := []struct {
		role    discovery.Role
		section string
		code    string
		workers []discovery.WorkerStatus
	}{{discovery.Context, "context_servers", WarnAffinityCtx, st.Context}}
	if rules.Scope == conversation.ScopeBoth {
		legs = append(legs, legs[0])
		legs[1].role, legs[1].section, legs[1].code, legs[1].workers = discovery.Generation, "generation_servers", WarnAffinityGen, st.Gen
	}
	for _, leg := range legs {
		if kind := s.routers[leg.role].Kind(); !router.KeepsConversations(kind) {
			out = append(out, discovery.Warning{Code: leg.code, Message: fmt.Sprintf(
				"sub-agents do not go to their parent's %s worker: %s.router.type is %s; set it to %s, %s or %s",
				leg.role, leg.section, kind, router.KindConversation, router.KindHybrid, router.KindConsistent)})
		}
	}
	for _, leg := range legs {
		for _, w := range leg.workers {
			if w.ADPSize > 1 && !w.ADPConversation {
				out = append(out, discovery.Warning{Code: WarnAffinityRank, Message: fmt.Sprintf(
					"sub-agents do not go to their parent's rank of %s worker %s: set attention_dp_config.kv_cache_routing_conversation_affinity there",
					leg.role, w.WorkerID)})
			}
		}
	}
	return out
}
