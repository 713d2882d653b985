package disagg

import (
	"fmt"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/router"
)

// bypassRig has one ctx and two gen workers; gen[1] has the first blocks of a prompt of 101 ids.
func bypassRig(t *testing.T, has, limit int) (*rig, string) {
	t.Helper()
	blocks, prompt := wordBlocks(101)
	gen := []*stub{newStub(t, discovery.Generation, genReply{}.script), newStub(t, discovery.Generation, genReply{}.script)}
	for i, st := range gen {
		st.info.Namespace, st.info.TokensPerBlock, st.info.HashAlgo, st.info.KVEvents = "m@1", 4, router.HashAlgo, true
		c := &cache{stream: true, wake: make(chan struct{}), list: []string{created(0)}}
		if i == 1 {
			c.list = append(c.list, storedEvent(1, blocks[:has/4]))
		}
		st.events = c.serve
	}
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, gen,
		withRouters(router.NewRoundRobin(), router.NewKVAware(router.Config{Type: router.KindKVAware})),
		withConfig(func(c *Config) { c.Conditional, c.MaxLocalPrefill = true, limit }))
	return r, prompt
}

func TestBypass(t *testing.T) {
	for _, tc := range []struct {
		has, limit int
		path       Path
	}{
		{96, 8, PathGenOnly}, // 5 left
		{92, 9, PathGenOnly},
		{92, 8, PathCtxGen},
		{0, 200, PathCtxGen}, // nothing found
		{100, 0, PathCtxGen}, // the last token is always left
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			r, prompt := bypassRig(t, tc.has, tc.limit)
			a := r.post(completions, `{"model":"tiny","max_tokens":3,"prompt":`+prompt+`}`)
			a.wantOK(t, "ABC")
			if got := Path(a.header.Get("X-Disagg-Path")); got != tc.path {
				t.Errorf("path %s, want %s", got, tc.path)
			}
			legs := len(r.ctx[0].requests())
			if (legs == 0) != (tc.path == PathGenOnly) {
				t.Errorf("%d ctx legs", legs)
			}
			if tc.has == 0 {
				return
			}
			if at := a.header.Get("X-Disagg-Gen-Server"); at != r.gen[1].id {
				t.Errorf("the gen leg ran at %s, the blocks are at %s", at, r.gen[1].id)
			}
			params := r.gen[1].requests()[0].body["disaggregated_params"]
			if (params == nil) != (tc.path == PathGenOnly) {
				t.Errorf("disaggregated_params %s", params)
			}
		})
	}
}

// A worker that was kept and fails, or left meanwhile, is no reason to fail; and nothing stays charged.
func TestBypassFallsBack(t *testing.T) {
	for name, has := range map[string]int{"alone": 100, "after ctx": 40} {
		t.Run(name, func(t *testing.T) {
			r, prompt := bypassRig(t, has, 8)
			r.gen[1].CloseClientConnections() // the stream of events, which would never end
			r.gen[1].Close()
			a := r.post(completions, `{"model":"tiny","max_tokens":3,"prompt":`+prompt+`}`)
			a.wantOK(t, "ABC")
			if at := a.header.Get("X-Disagg-Gen-Server"); at != r.gen[0].id {
				t.Errorf("ran at %s", at)
			}
		})
	}
	t.Run("ctx ends it", func(t *testing.T) {
		r, prompt := bypassRig(t, 40, 8)
		r.ctx[0].script = ctxReply{finish: "stop"}.script
		if a := r.post(completions, `{"model":"tiny","max_tokens":3,"prompt":`+prompt+`}`); a.status != 200 {
			t.Errorf("%d %s", a.status, a.raw)
		}
	})
	t.Run("ctx fails", func(t *testing.T) {
		r, prompt := bypassRig(t, 40, 8)
		r.ctx[0].script = ctxReply{finish: "error"}.script
		if a := r.post(completions, `{"model":"tiny","max_tokens":3,"prompt":`+prompt+`}`); a.status != 502 {
			t.Errorf("%d %s", a.status, a.raw)
		}
	})
}

// TestWhatIsToldOfThePromptNeedsOneWorker: no hand-over carries that.
func TestWhatIsToldOfThePromptNeedsOneWorker(t *testing.T) {
	for field, want := range map[string]Path{
		`"echo":true`: PathGenOnly, `"prompt_logprobs":1`: PathGenOnly, `"echo":true,"logprobs":0,"max_tokens":0`: PathGenOnly,
		`"echo":false`: PathCtxGen,
	} {
		r, prompt := bypassRig(t, 0, 0)
		a := r.post(completions, `{"model":"tiny",`+field+`,"prompt":`+prompt+`}`)
		if got := Path(a.header.Get("X-Disagg-Path")); got != want {
			t.Errorf("%s: path %s, want %s", field, got, want)
		}
		if legs := len(r.ctx[0].requests()); (legs == 0) != (want == PathGenOnly) {
			t.Errorf("%s: %d ctx legs", field, legs)
		}
	}
}
