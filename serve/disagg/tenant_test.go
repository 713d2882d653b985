package disagg

import (
	"encoding/json"
	"strings"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

const plain = `{"model":"tiny","prompt":"hello","max_tokens":3}`

// saltsOf returns the cache_salt that the newest legs of a request had.
func saltsOf(t *testing.T, r *rig) (ctx, gen string) {
	t.Helper()
	last := func(s *stub) (salt string) {
		list := s.requests()
		if raw, ok := list[len(list)-1].body["cache_salt"]; ok {
			if err := json.Unmarshal(raw, &salt); err != nil {
				t.Fatal(err)
			}
		}
		return salt
	}
	return last(r.ctx[0]), last(r.gen[0])
}

// With isolate_tenant_caches every key has caches of its own: the salt is there without the client's doing, the same on
// both legs and in every frontend, and neither names nor known salts tell what it is.
func TestTenantsHaveCachesOfTheirOwn(t *testing.T) {
	salted := strings.Replace(plain, "}", `,"cache_salt":"s"}`, 1)
	ask := func(t *testing.T, r *rig, key, body string) string {
		t.Helper()
		r.post(completions, body, bearer(key)...).wantOK(t, "ABC")
		ctx, gen := saltsOf(t, r)
		if ctx != gen {
			t.Errorf("ctx got the salt %q, gen %q", ctx, gen)
		}
		return ctx
	}
	isolated := func(secret string) *rig {
		return one(t, ctxReply{}, genReply{}, withKeys(func(c *Config) { c.IsolateCaches, c.AuthKey = true, []byte(secret) }))
	}
	for _, secret := range []string{"", "a secret of the cluster"} {
		r, twin := isolated(secret), isolated(secret)
		all := map[string]bool{}
		for _, key := range []string{keyA, keyB} {
			for _, body := range []string{plain, salted} {
				salt := ask(t, r, key, body)
				if len(salt) != 43 || strings.Contains(salt, "alice") || all[salt] {
					t.Errorf("salt %q beside %v", salt, all)
				}
				all[salt] = true
				if again := ask(t, twin, key, body); again != salt {
					t.Errorf("another frontend makes %q of %q", again, salt)
				}
			}
		}
		if other := ask(t, isolated("another one, as long"), keyA, plain); all[other] {
			t.Error("the salt does not depend on the secret")
		}
	}
	off := one(t, ctxReply{}, genReply{}, withKeys(nil))
	if got := ask(t, off, keyA, plain); got != "" {
		t.Errorf("without the option: %q", got)
	}
}

// Routers that go by what was asked before must not bring a tenant to where another one's equal prompt lies.
func TestRoutersDoNotTellTenantsOfEachOther(t *testing.T) {
	prompt, _ := json.Marshal(strings.Repeat("the same words again ", 100))
	body := `{"model":"tiny","prompt":` + string(prompt) + `,"max_tokens":3}`
	for kind, place := range map[string]router.Config{
		"conversation":   {Type: router.KindConversation},
		"kv_cache_aware": {Type: router.KindKVAware},
		"hybrid":         {Type: router.KindHybrid},
	} {
		for _, isolate := range []bool{false, true} {
			ctxRouter, err := router.NewRouter(place)
			if err != nil {
				t.Fatal(err)
			}
			ctx := []*stub{newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Context, ctxReply{}.script)}
			r := newRig(t, ctx, []*stub{newStub(t, discovery.Generation, genReply{}.script)},
				withRouters(ctxRouter, router.NewRoundRobin()), withKeys(func(c *Config) { c.IsolateCaches = isolate }))
			r.post(completions, body, bearer(keyA)...).wantOK(t, "ABC")
			r.post(completions, body, bearer(keyB)...).wantOK(t, "ABC")
			d := ctxRouter.Stats().Decisions
			if drawn := d[router.Implicit]+d[router.Cached] > 0; drawn == isolate || isolate && r.s.Snapshot().KVMatched > 0 {
				t.Errorf("%s, isolated %v: decisions %v, %d tokens found", kind, isolate, d, r.s.Snapshot().KVMatched)
			}
			r.post(completions, body, bearer(keyA)...).wantOK(t, "ABC")
			if d := ctxRouter.Stats().Decisions; d[router.Implicit]+d[router.Cached] == 0 {
				t.Errorf("%s, isolated %v: a tenant does not find its own: %v", kind, isolate, d)
			}
		}
	}
}
