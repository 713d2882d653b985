package conversation

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestResolve(t *testing.T) {
	long := strings.Repeat("x", MaxIDBytes+1)
	cases := []struct {
		name, params, nvext string
		header              http.Header
		want                string
		rejected            int
	}{
		{name: "nothing"},
		{name: "body", params: `{"conversation_id":" b1 "}`, want: "b1"},
		{name: "body wins over header", params: `{"conversation_id":"b1"}`, header: header("X-Session-ID", "h1"), want: "b1"},
		{name: "number", params: `{"conversation_id":9007199254740993}`, want: "9007199254740993"},
		{name: "null object is absent", params: `null`, header: header("X-Session-ID", "h1"), want: "h1"},
		{name: "nvext", nvext: `{"session_control":{"session_id":"n1","x":1},"other":[]}`, header: header("X-Session-ID", "h"), want: "n1"},
		{name: "nvext blank falls to header", nvext: `{"session_control":{"session_id":"  "}}`, header: header("x-session-id", "h"), want: "h"},
		{name: "nvext without control", nvext: `{"a":1}`},
		{name: "equal in both", params: `{"conversation_id":"a "}`, nvext: `{"session_control":{"session_id":" a"}}`, want: "a"},
		{name: "blank header skipped", header: header("X-Session-ID", "  ", "X-Correlation-ID", "c1"), want: "c1"},
		{name: "first of a repeated header", header: header("X-Session-ID", "one", "X-Session-ID", "two"), want: "one"},
		{name: "too long header", header: header("X-Session-ID", long, "X-Correlation-ID", "c"), want: "c", rejected: 1},
		{name: "unprintable headers", header: header("X-Session-ID", "a\x01b", "X-Correlation-ID", "\xff"), rejected: 2},
		{name: "longest id", params: `{"conversation_id":"` + long[1:] + `"}`, want: long[1:]},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := Resolve(Source{raw(c.params), raw(c.nvext), c.header})
			if err != nil || got.ID != c.want || got.Rejected != c.rejected {
				t.Errorf("got %+v, %v; want id %q, rejected %d", got, err, c.want, c.rejected)
			}
		})
	}
}

func raw(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

func TestResolveHeaderOrder(t *testing.T) {
	all := []string{
		"x-claude-code-session-id", "x-claude-session-id", "x-session-id",
		"x-correlation-id", "x-session-affinity", "x-multi-turn-session-id",
	}
	for i := range all {
		h := http.Header{}
		for _, name := range slices.Backward(all[i:]) {
			h.Set(name, "from "+name)
		}
		if got, _ := Resolve(Source{Header: h}); got.ID != "from "+all[i] {
			t.Errorf("got %q, want the value of %s", got.ID, all[i])
		}
	}
}

func TestResolveErrors(t *testing.T) {
	cases := []struct{ name, params, nvext, param string }{
		{"blank", `{"conversation_id":"  "}`, "", ParamID},
		{"null id", `{"conversation_id":null}`, "", ParamID},
		{"no id", `{}`, "", ParamID},
		{"boolean", `{"conversation_id":true}`, "", ParamID},
		{"list", `[1]`, "", ParamConversation},
		{"extra key", `{"conversation_id":"x","subagent_affinity_id":"M"}`, "", ParamConversation},
		{"too long", `{"conversation_id":"` + strings.Repeat("x", MaxIDBytes+1) + `"}`, "", ParamID},
		{"different", `{"conversation_id":"a"}`, `{"session_control":{"session_id":"b"}}`, ParamID},
		{"nvext type", "", `{"session_control":{"session_id":{}}}`, ParamSession},
		{"nvext list", "", `[]`, "nvext"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Resolve(Source{raw(c.params), raw(c.nvext), header("X-Session-ID", "h")})
			var fe *FieldError
			if !errors.As(err, &fe) || fe.Param != c.param {
				t.Errorf("got %v, want an error at %s", err, c.param)
			}
		})
	}
}

func TestViews(t *testing.T) {
	ctx, gen := Rules{}.Views(Resolved{ID: "k1"})
	if ctx != gen || ctx.RoutingID() != "k1" || ctx.AffinityKey != "" {
		t.Errorf("ctx %+v, gen %+v", ctx, gen)
	}
	if got := (View{ConversationID: "k1", AffinityKey: "M"}).RoutingID(); got != "M" {
		t.Errorf("the affinity key routes: got %q", got)
	}
}

func FuzzResolve(f *testing.F) {
	f.Add([]byte(`{"conversation_id":"a"}`), []byte(`{"session_control":{"session_id":"b"}}`), "h")
	f.Fuzz(func(t *testing.T, params, nvext []byte, head string) {
		got, err := Resolve(Source{params, nvext, http.Header{"X-Session-Id": {head}}})
		if err != nil && got.ID != "" {
			t.Errorf("an id with an error: %q", got.ID)
		}
		if len(got.ID) > MaxIDBytes || strings.TrimSpace(got.ID) != got.ID {
			t.Errorf("bad id %q", got.ID)
		}
	})
}
