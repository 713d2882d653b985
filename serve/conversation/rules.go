package conversation

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Scope says which legs look for a parent's cache.
type Scope string

// The scopes. Decoding gains nothing from the parent's blocks being near, and siblings would crowd on few decode slots, so
// the ctx leg alone is the default.
const (
	ScopeContext Scope = "context"
	ScopeBoth    Scope = "both"
)

// Rules say where identities come from beyond the body and HeaderNames. The zero value knows no parents.
type Rules struct {
	Agents       []string // presets, see Presets; strongest first
	ParentHeader string   // carries the conversation id of a sub-agent's parent, "" = none
	Scope        Scope    // "" = ScopeContext
}

// preset are the headers of one kind of client.
type preset struct {
	session []string // of the conversation, strongest first
	parent  string   // of the parent's conversation, "" = none
	// agent and agentParent name agents within a session, so that their conversations are session/agent. A request without
	// an agent is the session's own; one without a parent agent has the session as parent.
	agent, agentParent string
}

var presets = map[string]preset{
	"claude_code": {
		session: []string{"X-Claude-Code-Session-Id"}, agent: "X-Claude-Code-Agent-Id", agentParent: "X-Claude-Code-Parent-Agent-Id",
	},
	"codex":    {session: []string{"Thread-Id", "Session-Id"}, parent: "X-Codex-Parent-Thread-Id"},
	"dynamo":   {session: []string{"X-Dynamo-Session-Id"}, parent: "X-Dynamo-Parent-Session-Id"},
	"opencode": {session: []string{"X-Session-Id", "X-Session-Affinity"}, parent: "X-Parent-Session-Id"},
	"sglang":   {session: []string{"X-Smg-Routing-Key"}},
}

// Presets lists the known agents in alphabetical order.
func Presets() []string {
	names := make([]string, 0, len(presets))
	for name := range presets {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Validate checks the rules; errors name the YAML key.
func (r Rules) Validate() error {
	const key = "conversation_affinity_header_for_subagents"
	for i, name := range r.Agents {
		if _, ok := presets[name]; !ok {
			return fmt.Errorf("agent_headers[%d]: unknown agent %q; known: %s", i, name, strings.Join(Presets(), ", "))
		}
		if slices.Contains(r.Agents[:i], name) {
			return fmt.Errorf("agent_headers[%d]: %s is listed twice", i, name)
		}
	}
	if r.Scope != "" && r.Scope != ScopeContext && r.Scope != ScopeBoth {
		return fmt.Errorf("subagent_affinity_scope: %q is neither %s nor %s", r.Scope, ScopeContext, ScopeBoth)
	}
	if r.ParentHeader == "" {
		return nil
	}
	if !isToken(r.ParentHeader) {
		return fmt.Errorf("%s: %q is not the name of a header", key, r.ParentHeader)
	}
	name := http.CanonicalHeaderKey(r.ParentHeader)
	if strings.HasPrefix(name, "X-Disagg-") {
		return fmt.Errorf("%s: %s is internal to the cluster; choose another name", key, name)
	}
	sessions := slices.Clone(headerNames)
	for _, agent := range r.Agents {
		sessions = append(sessions, presets[agent].session...)
	}
	if slices.Contains(sessions, name) {
		return fmt.Errorf("%s: %s carries the request's own conversation id; the parent needs a header of its own", key, name)
	}
	return nil
}

// Parents tells whether requests can have a parent.
func (r Rules) Parents() bool {
	return r.ParentHeader != "" || slices.ContainsFunc(r.Agents, func(name string) bool {
		return presets[name].parent != "" || presets[name].agent != ""
	})
}

// Views returns the ctx view and the gen view of a request. Both schedules and all retries use this one function, so no
// path can route by another identity. The parent is only ever a key to place by: the conversation stays the request's own,
// so that siblings that run at once are not turns of one conversation.
func (r Rules) Views(who Resolved) (ctx, gen View) {
	ctx = View{ConversationID: who.ID}
	gen = ctx
	if who.Parent == "" || who.Parent == who.ID {
		return ctx, gen
	}
	ctx.AffinityKey = who.Parent
	if r.Scope == ScopeBoth {
		gen.AffinityKey = who.Parent
	}
	return ctx, gen
}

// headers reads ids from headers and counts those it had to ignore.
type headers struct {
	h        http.Header
	rejected int
}

// get returns the trimmed value of a header, "" if it is absent, blank or no possible id.
func (h *headers) get(name string) string {
	val := strings.TrimSpace(h.h.Get(name))
	if !printable(val) {
		h.rejected++
		return ""
	}
	return val
}

// within names an agent of a session; what is too long to be an id is rejected.
func (h *headers) within(session, agent string) string {
	id := session + "/" + agent
	if len(id) > MaxIDBytes {
		h.rejected++
		return ""
	}
	return id
}

// first returns the first usable of several headers.
func (h *headers) first(names []string) string {
	for _, name := range names {
		if val := h.get(name); val != "" {
			return val
		}
	}
	return ""
}

// session returns the conversation id that the headers give.
func (r Rules) session(h *headers) string {
	for _, name := range r.Agents {
		p := presets[name]
		id := h.first(p.session)
		if id == "" {
			continue
		}
		if p.agent == "" {
			return id
		}
		if agent := h.get(p.agent); agent != "" {
			return h.within(id, agent)
		}
		return id
	}
	return h.first(headerNames)
}

// parent returns the parent's conversation id: of the configured header, else of the first agent that tells one.
func (r Rules) parent(h *headers) string {
	if r.ParentHeader != "" {
		if val := h.get(r.ParentHeader); val != "" {
			return val
		}
	}
	for _, name := range r.Agents {
		p := presets[name]
		if p.parent != "" {
			if val := h.get(p.parent); val != "" {
				return val
			}
		}
		if p.agent == "" || h.h.Get(p.agent) == "" {
			continue
		}
		session := h.first(p.session)
		if session == "" {
			continue
		}
		if agent := h.get(p.agentParent); agent != "" {
			return h.within(session, agent)
		}
		return session
	}
	return ""
}

// isToken tells whether s may be the name of an HTTP header.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		alnum := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}
