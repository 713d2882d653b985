//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"tandem/serve/openai"
)

const (
	affinityKey  = "0123456789abcdef"
	affinityYAML = "conversation_affinity_header_for_subagents: X-Parent\ninternal_request_auth_key: " + affinityKey + "\n"
	convRouter   = "{type: conversation}"
)

// affinityOf returns a leg's affinity key; its signature must fit the leg.
func affinityOf(t *testing.T, l *leg, role string) string {
	t.Helper()
	key := l.header.Get("X-Disagg-Affinity-Key")
	if key == "" {
		return ""
	}
	a := openai.Affinity{Role: role, Model: "tiny", AffinityKey: &key, RequestType: l.params.Type, DisaggID: &l.params.ID}
	if l.conversation != "" {
		a.ConversationID = &l.conversation
	}
	if want := openai.Key(affinityKey).SignAffinity(a); l.header.Get("X-Disagg-Affinity-Auth") != want {
		t.Errorf("the signature of %s's affinity key does not fit", role)
	}
	return key
}

// family sends a parent's turn and then four children at once.
func family(t *testing.T, scope, style string) (r *rig, ctx, gen string) {
	t.Helper()
	r = newRig(t, rigOf{ctx: 2, gen: 2, ctxRouter: convRouter, genRouter: convRouter, yaml: affinityYAML + "subagent_affinity_scope: " + scope + "\nschedule_style: " + style + "\n"})
	r.ask(t, textPath, helloText, "X-Session-ID", "other").wantOK(t, "ABC") // so that the parent is not on the first ones
	a := r.ask(t, textPath, helloText, "X-Session-ID", "M")
	a.wantOK(t, "ABC")
	for _, s := range append(append([]*stub{}, r.ctx...), r.gen...) {
		was := s.script
		s.setScript(func(c *call) {
			if c.wait(500 * time.Millisecond) {
				was(c)
			}
		})
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if a := r.ask(t, textPath, helloText, "X-Session-ID", fmt.Sprintf("k%d", i+1), "X-Parent", "M"); a.status != http.StatusOK {
				t.Errorf("child %d: %d %s", i+1, a.status, a.raw)
			}
		})
	}
	wg.Wait()
	return r, nameOf(r.ctx, a.header.Get("X-Disagg-Ctx-Server")), nameOf(r.gen, a.header.Get("X-Disagg-Gen-Server"))
}

// children maps the conversations k1 … k4 of all stubs to where they ran and
// the affinity key they came with.
func children(t *testing.T, stubs []*stub, role string) (at, key map[string]string) {
	t.Helper()
	at, key = map[string]string{}, map[string]string{}
	for _, s := range stubs {
		for _, l := range s.legs() {
			if strings.HasPrefix(l.conversation, "k") {
				at[l.conversation], key[l.conversation] = s.name, affinityOf(t, &l, role)
			}
		}
	}
	if len(at) != 4 {
		t.Fatalf("%s legs of %v, want those of k1 to k4", role, at)
	}
	return at, key
}

func TestScenario40(t *testing.T) {
	scenario(t)
	for _, style := range []string{"context_first", "generation_first"} {
		r, ctx, _ := family(t, "context", style)
		at, key := children(t, r.ctx, "context")
		for id := range at {
			if at[id] != ctx || key[id] != "M" {
				t.Errorf("%s: ctx leg of %s: on %s with key %q, the parent is on %s", style, id, at[id], key[id], ctx)
			}
		}
		at, key = children(t, r.gen, "generation")
		used := map[string]int{}
		for id := range at {
			used[at[id]]++
			if key[id] != "" {
				t.Errorf("%s: gen leg of %s has the key %q", style, id, key[id])
			}
		}
		if len(used) != 2 {
			t.Errorf("%s: gen legs are on %v", style, used)
		}
	}
}

func TestScenario41(t *testing.T) {
	scenario(t)
	for _, style := range []string{"context_first", "generation_first"} {
		siblings(t, style)
	}
}

// siblings checks that the children are where their parent is, on both sides.
func siblings(t *testing.T, style string) {
	t.Helper()
	r, ctx, gen := family(t, "both", style)
	for _, side := range []struct {
		stubs      []*stub
		role, home string
	}{{r.ctx, "context", ctx}, {r.gen, "generation", gen}} {
		at, key := children(t, side.stubs, side.role)
		for id := range at {
			if at[id] != side.home || key[id] != "M" {
				t.Errorf("%s leg of %s: on %s with key %q, the parent is on %s", side.role, id, at[id], key[id], side.home)
			}
		}
	}
}

func TestScenario42(t *testing.T) {
	scenario(t)
	body := func(id string) string {
		return strings.Replace(helloText, "}", `,"conversation_params":{"conversation_id":"`+id+`"}}`, 1)
	}
	type want struct{ conv, ctxKey, genKey string }
	off := affinityYAML[strings.Index(affinityYAML, "internal"):]
	for scope, rows := range map[string][]struct {
		name, body, parent, session string
		want
	}{
		"": {
			{"off, no id", helloText, "P", "", want{"", "", ""}},
			{"off, id in a header", helloText, "P", "O", want{"O", "", ""}},
			{"off, id in the body", body("B"), "P", "O", want{"B", "", ""}},
		},
		"context": {
			{"no parent, no id", helloText, " ", "", want{"", "", ""}},
			{"no parent", helloText, "", "O", want{"O", "", ""}},
			{"parent, no id", helloText, "P", "", want{"", "P", ""}},
			{"parent, id in a header", helloText, "P", "O", want{"O", "P", ""}},
			{"parent, id in the body", body("B"), "P", "", want{"B", "P", ""}},
			{"parent is the id", body("P"), "P", "", want{"P", "", ""}},
		},
		"both": {
			{"no parent, no id", helloText, " ", "", want{"", "", ""}},
			{"no parent", helloText, "", "O", want{"O", "", ""}},
			{"parent, no id", helloText, "P", "", want{"", "P", "P"}},
			{"parent, id in a header", helloText, "P", "O", want{"O", "P", "P"}},
			{"parent, id in the body", body("B"), "P", "", want{"B", "P", "P"}},
			{"parent is the id", body("P"), "P", "", want{"P", "", ""}},
		},
	} {
		yaml := off
		if scope != "" {
			yaml = affinityYAML + "subagent_affinity_scope: " + scope + "\n"
		}
		r := newRig(t, rigOf{ctxRouter: convRouter, genRouter: convRouter, yaml: yaml})
		for i, row := range rows {
			var headers []string
			if row.parent != "" {
				headers = append(headers, "X-Parent", row.parent)
			}
			if row.session != "" {
				headers = append(headers, "X-Session-ID", row.session)
			}
			r.ask(t, textPath, row.body, headers...).wantOK(t, "ABC")
			c, g := wantLegs(t, r.ctx[0], i+1)[i], wantLegs(t, r.gen[0], i+1)[i]
			if c.conversation != row.conv || g.conversation != row.conv {
				t.Errorf("%s, %s: conversation ids %q and %q, want %q", scope, row.name, c.conversation, g.conversation, row.conv)
			}
			if ck, gk := affinityOf(t, &c, "context"), affinityOf(t, &g, "generation"); ck != row.ctxKey || gk != row.genKey {
				t.Errorf("%s, %s: keys %q and %q, want %q and %q", scope, row.name, ck, gk, row.ctxKey, row.genKey)
			}
		}
	}
}

func TestScenario43(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{ctxRouter: convRouter, genRouter: convRouter})
	extra := strings.Replace(helloText, "}", `,"conversation_params":{"conversation_id":"x","subagent_affinity_id":"M"}}`, 1)
	r.ask(t, textPath, extra).wantError(t, http.StatusBadRequest, "subagent_affinity_id")
	r.ask(t, textPath, helloText, "X-Disagg-Affinity-Key", "M", "X-Parent", "M").wantOK(t, "ABC")
	for _, s := range []*stub{r.ctx[0], r.gen[0]} {
		l := wantLegs(t, s, 1)[0]
		if v := l.header.Get("X-Disagg-Affinity-Key"); v != "" || l.conversation != "" {
			t.Errorf("%s got the affinity key %q, conversation %q", s.name, v, l.conversation)
		}
	}
}

func TestScenario44(t *testing.T) {
	scenario(t)
	for _, c := range []struct {
		yaml string
		want []string
	}{
		{affinityYAML, []string{"W_AFFINITY_INERT_CTX"}},
		{affinityYAML + "subagent_affinity_scope: both\n", []string{"W_AFFINITY_INERT_CTX", "W_AFFINITY_INERT_GEN"}},
	} {
		r := newRig(t, rigOf{yaml: c.yaml})
		for _, code := range c.want {
			if !r.warned(t, code) || !strings.Contains(r.log.String(), code) {
				t.Errorf("%s is missing in /cluster_info or the log", code)
			}
		}
		if len(c.want) == 1 && r.warned(t, "W_AFFINITY_INERT_GEN") {
			t.Error("W_AFFINITY_INERT_GEN without scope both")
		}
	}
}

// TestScenario45 asks a real worker, which has a key.
func TestScenario45(t *testing.T) {
	scenario(t)
	needModel(t)
	file := writeFile(t, "worker.yaml", "internal_request_auth_key: "+affinityKey+"\nkv_cache_config: {max_tokens: 4096}\nthreads: 1\n")
	w := start(t, "ctx", engineBin, "serve", modelName, "--role", "ctx", "--port", "0", "-c", file)
	const id = int64(687865856000134148)
	key, conv, other := "parent-9", "child-1", "child-2"
	body := fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":4,"conversation_params":{"conversation_id":%q},`+
		`"disaggregated_params":{"request_type":"context_only","schedule_style":"context_first","disagg_request_id":%d}}`, modelName, conv, id)
	good := openai.Affinity{Role: "context", Model: modelName, ConversationID: &conv, AffinityKey: &key, RequestType: "context_only"}
	r := &rig{process: w}
	ask := func(a openai.Affinity, signed bool, id int64) answer {
		a.DisaggID = &id
		headers := []string{"X-Disagg-Affinity-Key", key}
		if signed {
			headers = append(headers, "X-Disagg-Affinity-Auth", openai.Key(affinityKey).SignAffinity(a))
		}
		return r.ask(t, textPath, body, headers...)
	}
	ask(good, false, id).wantError(t, http.StatusUnauthorized)
	for _, change := range []func(*openai.Affinity){
		func(a *openai.Affinity) { a.ConversationID = &other },
		func(a *openai.Affinity) { a.Role = "generation" },
		func(a *openai.Affinity) { a.Model = "another" },
		func(a *openai.Affinity) { a.AffinityKey = &other },
		func(a *openai.Affinity) { a.RequestType = "generation_only" },
	} {
		bad := good
		change(&bad)
		ask(bad, true, id).wantError(t, http.StatusUnauthorized)
	}
	ask(good, true, id+1).wantError(t, http.StatusUnauthorized)
	if a := ask(good, true, id); a.status != http.StatusOK {
		t.Errorf("the right signature: %d %s", a.status, a.raw)
	}
}
