//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"testing"
)

// kvYAML is a cluster whose routers go by what real workers tell of their caches, and whose gen worker runs alone what it
// has nearly all of.
const kvYAML = `
expose_routing_headers: true
max_num_tokens: 512
kv_cache_config: {max_tokens: 16384}
context_servers: {num_instances: 2, router: {type: kv_cache_aware, backfill_block_hashes_on_finish: false}}
generation_servers: {num_instances: 1, router: {type: hybrid, backfill_block_hashes_on_finish: false}}
conditional_disagg_config: {max_local_prefill_length: 32}
`

// The tokens that the frontend makes, the blocks that the workers tell of and the blocks that they find are the same ones:
// chats go where their beginnings are, and what comes out does not depend on it.
func TestRealCachesAttractChats(t *testing.T) {
	needModel(t)
	t.Setenv("TMPDIR", t.TempDir())
	up := start(t, "up", frontendBin, "up", "--model", modelName, "--port", "0", "-c", writeFile(t, "up.yaml", kvYAML))
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	say := func(n uint64, more ...object) *result {
		t.Helper()
		messages := append([]object{{"role": "user", "content": prose(n, 120)}}, more...)
		r, err := ask(ctx, up.url, chatPath, object{"messages": messages, "max_tokens": 4, "temperature": 0})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := say(11)
	home := first.header.Get("X-Disagg-Ctx-Server")
	if got := first.header.Get("X-Disagg-Path"); got != "ctx_gen" {
		t.Fatalf("nothing is cached, and the path is %s", got)
	}
	var again *result
	within(t, "the frontend hears that gen has all but the last tokens", func() bool {
		again = say(11)
		return again.header.Get("X-Disagg-Path") == "gen_only"
	})
	if again.Text != first.Text || again.cached < 100 {
		t.Errorf("by both workers %q, by gen alone %q with %d tokens cached", first.Text, again.Text, again.cached)
	}
	placed := func(router, role string) float64 {
		n, _ := strconv.ParseFloat(metric(get(t, up.url+"/metrics"), fmt.Sprintf(`tandem_router_decisions_total{kind=%q,outcome="cache",role=%q}`, router, role)), 64)
		return n
	}
	ctxBefore, genBefore := placed("kv_cache_aware", "context"), placed("hybrid", "generation")
	if genBefore < 1 {
		t.Error("the router of gen workers did not go by their caches")
	}
	long := say(11, object{"role": "assistant", "content": "Well."}, object{"role": "user", "content": prose(12, 80)})
	if at := long.header.Get("X-Disagg-Ctx-Server"); at != home || long.cached < 100 {
		t.Errorf("a longer chat went to %q with %d tokens cached, its beginning is at %s", at, long.cached, home)
	}
	if c, g := placed("kv_cache_aware", "context"), placed("hybrid", "generation"); c != ctxBefore+1 || g != genBefore+1 {
		t.Errorf("by caches were placed %v and %v, then %v and %v", ctxBefore, genBefore, c, g)
	}
}
