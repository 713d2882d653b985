package conversation

import (
	"strings"
	"testing"
)

// The cases in which a parent is told or not, for each scope.
func TestViewsOfSubAgents(t *testing.T) {
	const parent = "X-Parent"
	off, context, both := Rules{}, Rules{ParentHeader: parent}, Rules{ParentHeader: parent, Scope: ScopeBoth}
	for _, tc := range []struct {
		name     string
		rules    Rules
		body     string
		header   []string
		ctx, gen View
	}{
		{"off, nothing", off, "", []string{parent, "P"}, View{}, View{}},
		{"off, own", off, "O", []string{parent, "P"}, View{"O", ""}, View{"O", ""}},
		{"context, nothing", context, "", nil, View{}, View{}},
		{"context, own", context, "O", []string{parent, "  "}, View{"O", ""}, View{"O", ""}},
		{"context, parent alone", context, "", []string{parent, "P"}, View{"", "P"}, View{}},
		{"context, header", context, "", []string{parent, "P", "X-Session-ID", "O"}, View{"O", "P"}, View{"O", ""}},
		{"context, body", context, "O", []string{parent, "P", "X-Session-ID", "H"}, View{"O", "P"}, View{"O", ""}},
		{"context, itself", context, "P", []string{parent, "P"}, View{"P", ""}, View{"P", ""}},
		{"both, nothing", both, "", nil, View{}, View{}},
		{"both, own", both, "O", []string{parent, ""}, View{"O", ""}, View{"O", ""}},
		{"both, parent alone", both, "", []string{parent, "P"}, View{"", "P"}, View{"", "P"}},
		{"both, header", both, "", []string{parent, "P", "X-Session-ID", "O"}, View{"O", "P"}, View{"O", "P"}},
		{"both, body", both, "O", []string{parent, " P "}, View{"O", "P"}, View{"O", "P"}},
		{"both, itself", both, "P", []string{parent, "P"}, View{"P", ""}, View{"P", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := Source{Header: header(tc.header...)}
			if tc.body != "" {
				src.ConversationParams = raw(`{"conversation_id":"` + tc.body + `"}`)
			}
			who, err := tc.rules.Resolve(src)
			if err != nil || who.Rejected != 0 {
				t.Fatalf("%+v, %v", who, err)
			}
			ctx, gen := tc.rules.Views(who)
			if ctx != tc.ctx || gen != tc.gen {
				t.Errorf("ctx %+v, gen %+v; want %+v, %+v", ctx, gen, tc.ctx, tc.gen)
			}
		})
	}
}

func TestAgentHeaders(t *testing.T) {
	all := Presets()
	for _, tc := range []struct {
		name       string
		agents     []string
		header     []string
		id, parent string
		rejected   int
	}{
		{name: "claude code, main", agents: all, header: []string{"X-Claude-Code-Session-Id", "s"}, id: "s"},
		{
			name: "claude code, agent", agents: all, id: "s/a", parent: "s",
			header: []string{"X-Claude-Code-Session-Id", "s", "X-Claude-Code-Agent-Id", "a"},
		},
		{
			name: "claude code, agent of an agent", agents: all, id: "s/b", parent: "s/a",
			header: []string{"X-Claude-Code-Session-Id", "s", "X-Claude-Code-Agent-Id", "b", "X-Claude-Code-Parent-Agent-Id", "a"},
		},
		{name: "no preset: agents share the session", header: []string{"X-Claude-Code-Session-Id", "s", "X-Claude-Code-Agent-Id", "a"}, id: "s"},
		{name: "agent without a session", agents: all, header: []string{"X-Claude-Code-Agent-Id", "a"}},
		{
			name: "agent that is too long", agents: []string{"claude_code"}, parent: "s", rejected: 1,
			header: []string{"X-Claude-Code-Session-Id", "s", "X-Claude-Code-Agent-Id", strings.Repeat("a", MaxIDBytes)},
		},
		{
			name: "codex", agents: all, id: "t2", parent: "t1",
			header: []string{"Session-Id", "s", "Thread-Id", "t2", "X-Codex-Parent-Thread-Id", "t1"},
		},
		{name: "codex without threads", agents: all, header: []string{"Session-Id", "s"}, id: "s"},
		{name: "codex without its preset", agents: []string{"dynamo"}, header: []string{"Session-Id", "s"}},
		{name: "opencode", agents: all, header: []string{"X-Session-Id", "k", "X-Parent-Session-Id", "m"}, id: "k", parent: "m"},
		{
			name: "dynamo before others", agents: []string{"dynamo"}, id: "d", parent: "p",
			header: []string{"X-Session-Id", "x", "X-Dynamo-Session-Id", "d", "X-Dynamo-Parent-Session-Id", "p"},
		},
		{name: "sglang", agents: all, header: []string{"X-SMG-Routing-Key", "r"}, id: "r"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Rules{Agents: tc.agents}
			if err := r.Validate(); err != nil {
				t.Fatal(err)
			}
			got, err := r.Resolve(Source{Header: header(tc.header...)})
			if want := (Resolved{ID: tc.id, Parent: tc.parent, Rejected: tc.rejected}); err != nil || got != want {
				t.Errorf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
	got, _ := Rules{Agents: []string{"opencode"}, ParentHeader: "X-Mine"}.Resolve(
		Source{Header: header("X-Session-Id", "k", "X-Parent-Session-Id", "m", "X-Mine", "mine")})
	if got.Parent != "mine" {
		t.Errorf("the configured header does not win: %+v", got)
	}
}

func TestRulesValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		r    Rules
		want string
	}{
		{"header", Rules{ParentHeader: "x-parent"}, ""},
		{"space", Rules{ParentHeader: "x parent"}, "not the name of a header"},
		{"session header", Rules{ParentHeader: "x-session-id"}, "own conversation id"},
		{"session header of a preset", Rules{ParentHeader: "thread-id", Agents: []string{"codex"}}, "own conversation id"},
		{"internal", Rules{ParentHeader: "x-disagg-affinity-key"}, "internal"},
		{"scope", Rules{ParentHeader: "x", Scope: "all"}, `subagent_affinity_scope: "all"`},
		{"agent", Rules{Agents: []string{"dynamo", "emacs"}}, "agent_headers[1]: unknown agent"},
		{"twice", Rules{Agents: []string{"dynamo", "dynamo"}}, "listed twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.r.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
