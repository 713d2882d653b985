//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

func TestScenario18(t *testing.T) {
	scenario(t)
	near, far, last := promptIDs(1000, 1), promptIDs(1000, 5000), promptIDs(1000, 7000)
	r := newRig(t, rigOf{
		gen: 2, genRouter: "{type: kv_cache_aware, backfill_block_hashes_on_finish: false}", yaml: "conditional_disagg_config: {max_local_prefill_length: 64}",
		before: func(r *rig) {
			for i, s := range r.gen {
				s.cacheEvent(object{"type": "created", "hash_algo": "tandem-kv1", "num_blocks_per_cache_level": []int{1000}})
				if i == 0 {
					s.holds(blocksOf(near)[:30]) // 960 ids
					s.holds(blocksOf(far)[:28])  // 896 ids
					s.holds(blocksOf(last)[:30])
				}
			}
		},
	})
	ask := func(ids []int32) answer {
		return r.ask(t, textPath, fmt.Sprintf(`{"model":"tiny","max_tokens":3,"prompt":%s}`, strings.ReplaceAll(fmt.Sprint(ids), " ", ",")))
	}
	within(t, "the last event is there", func() bool { return ask(last).header.Get("X-Disagg-Path") == "gen_only" })
	for _, c := range []struct {
		name string
		ids  []int32
		path string
	}{
		{"960 of 1000", near, "gen_only"},
		{"896 of 1000", far, "ctx_gen"},
		{"none of 40", promptIDs(40, 9000), "ctx_gen"},
	} {
		before, legs := len(r.ctx[0].legs()), len(r.gen[0].legs())
		a := ask(c.ids)
		a.wantOK(t, "ABC")
		if got := a.header.Get("X-Disagg-Path"); got != c.path {
			t.Errorf("%s: path %s, want %s", c.name, got, c.path)
		}
		if n := len(r.ctx[0].legs()) - before; (n == 0) != (c.path == "gen_only") {
			t.Errorf("%s: %d ctx legs", c.name, n)
		}
		if c.ids[0] == 9000 {
			continue
		}
		if got := nameOf(r.gen, a.header.Get("X-Disagg-Gen-Server")); got != "gen0" || len(r.gen[0].legs()) != legs+1 {
			t.Errorf("%s: the gen leg went to %s, the blocks are at gen0", c.name, got)
			continue
		}
		if _, split := r.gen[0].legs()[legs].body["disaggregated_params"]; split != (c.path == "ctx_gen") {
			t.Errorf("%s: disaggregated_params present: %t", c.name, split)
		}
	}
}

func TestScenario19(t *testing.T) {
	scenario(t)
	line := refused(t, twoURLs+"conditional_disagg_config: {max_local_prefill_length: 64}\n")
	for _, part := range []string{"conditional_disagg_config", "generation_servers.router.type"} {
		if !strings.Contains(line, part) {
			t.Errorf("%q is missing in %q", part, line)
		}
	}
}
