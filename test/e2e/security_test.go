//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The keys of two tenants.
const aliceKey, bobKey = "the key of alice, 0123", "the key of bob, 012345"

const tenantsYAML = kvYAML + `
api_keys:
- {name: alice, key: "` + aliceKey + `"}
- {name: bob, key: "` + bobKey + `"}
internal_request_auth_key: a key for tests only
`

// tenants is a cluster of real workers whose clients have keys.
type tenants struct {
	*process
	t       *testing.T
	workers []string // URLs
}

func startTenants(t *testing.T, yaml string) tenants {
	t.Helper()
	c := tenants{process: start(t, "up", frontendBin, "up", "--model", modelName, "--port", "0", "-c", writeFile(t, "up.yaml", tenantsYAML+yaml)), t: t}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/cluster_info", nil)
	req.Header.Set("Authorization", "Bearer "+aliceKey)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var info clusterInfo
	if err := json.NewDecoder(resp.Body).Decode(&info); err != nil {
		t.Fatal(err)
	}
	for _, w := range append(info.Workers.Context, info.Workers.Generation...) {
		c.workers = append(c.workers, "http://"+w.Host+":"+strconv.Itoa(w.Port))
	}
	return c
}

// seen is all that a tenant can learn of a prompt, counted and not timed.
type seen struct {
	cached   int     // as usage says
	path     string  // gen_only would tell that gen has the prompt
	computed float64 // prompt tokens that the workers computed for it
	matched  float64 // tokens that routers went by
	attracts float64 // placements because of a cache
}

// ask sends the prompt with a tenant's key; it is as much as one could time.
func (c tenants) ask(key string) (s seen) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	sum := func() (computed, matched, attracts float64) {
		for _, w := range c.workers {
			n, _ := strconv.ParseFloat(metric(get(c.t, w+"/metrics"), `tandem_batch_tokens_total{kind="prefill"}`), 64)
			computed += n
		}
		for line := range strings.Lines(get(c.t, c.url+"/metrics")) {
			name, val, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, _ := strconv.ParseFloat(val, 64)
			switch {
			case name == "tandem_kv_router_matched_tokens":
				matched += n
			case strings.HasPrefix(name, "tandem_router_decisions_total{") && strings.Contains(name, `outcome="cache"`):
				attracts += n
			}
		}
		return computed, matched, attracts
	}
	computed, matched, attracts := sum()
	r, err := ask(ctx, c.url, textPath, object{"prompt": prose(5, 120), "max_tokens": 4, "temperature": 0}, "Authorization", "Bearer "+key)
	if err != nil {
		c.t.Fatal(err)
	}
	s.cached, s.path = r.cached, r.header.Get("X-Disagg-Path")
	s.computed, s.matched, s.attracts = sum()
	s.computed, s.matched, s.attracts = s.computed-computed, s.matched-matched, s.attracts-attracts
	return s
}

// askTwice asks, and again until the frontend has heard of the tenant's own blocks.
func (c tenants) askTwice(key string) (first seen) {
	c.t.Helper()
	first = c.ask(key)
	var again seen
	if !eventually(settleLimit, func() bool {
		again = c.ask(key)
		return again.cached >= 100 && again.computed <= first.computed-100 && again.path == "gen_only" && again.attracts > 0
	}) {
		c.t.Errorf("again: %+v after %+v; a tenant's own cache serves it", again, first)
	}
	return first
}

// TestTenantsLearnNothingFromCaches: whether alice has asked something before changes nothing that bob can see when he asks
// the same, neither the cached tokens, nor the path, nor the work that his request costs, nor where it goes. Without the
// option it does, so the test would see it.
func TestTenantsLearnNothingFromCaches(t *testing.T) {
	needModel(t)
	t.Setenv("TMPDIR", t.TempDir())
	c := startTenants(t, "isolate_tenant_caches: true\n")
	first := c.askTwice(aliceKey)
	if bob := c.ask(bobKey); bob != first || bob.cached != 0 || bob.matched != 0 {
		t.Errorf("bob sees %+v; alice, when nobody had asked, saw %+v", bob, first)
	}
	c.stop(t)

	c = startTenants(t, "")
	first = c.askTwice(aliceKey)
	if bob := c.ask(bobKey); bob.cached < 100 || bob.computed > first.computed-100 {
		t.Errorf("caches are shared: bob sees %+v, alice saw %+v", bob, first)
	}
}

// TestBigBodiesHoldLittle: many clients with bodies near the limit do not take the frontend's memory; who finds no room is
// told to come again.
func TestBigBodiesHoldLittle(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOf{yaml: "max_body_memory_mb: 64\n"})
	body := []byte(`{"model":"tiny","prompt":"` + strings.Repeat("a", 6<<20) + `"}`)
	var mu sync.Mutex
	answers := map[int]int{}
	var wg sync.WaitGroup
	for range 48 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+textPath, bytes.NewReader(body))
			resp, err := client.Do(req)
			status := 0
			if err == nil {
				status = resp.StatusCode
				resp.Body.Close()
			}
			mu.Lock()
			answers[status]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if answers[503] == 0 || answers[200] == 0 || answers[0]+answers[200]+answers[503] != 48 {
		t.Errorf("answers %v", answers)
	}
	t.Logf("answers %v", answers)
	if peak := peakMemory(t, r.pid()); peak > 512<<20 {
		t.Errorf("the frontend took %d MiB for 48 bodies of 6 MiB, of which 64 MiB may be held", peak>>20)
	}
	r.ask(t, textPath, helloText).wantOK(t, "ABC")
}

// peakMemory is the most memory that a process has had, in bytes.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestTemplatesOfRequests: where it is allowed a chat brings its own template, and one that never ends costs its sender two
// seconds and nobody else anything.
func TestTemplatesOfRequests(t *testing.T) {
	needModel(t)
	t.Setenv("TMPDIR", t.TempDir())
	up := start(t, "up", frontendBin, "up", "--model", modelName, "--port", "0", "-c", writeFile(t, "up.yaml",
		"allow_request_chat_template: true\nmax_num_tokens: 512\nkv_cache_config: {max_tokens: 4096}\n"))
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	chat := func(template string) object {
		return object{"messages": []object{{"role": "user", "content": "The sky is"}}, "chat_template": template, "max_tokens": 4, "temperature": 0}
	}
	r, err := ask(ctx, up.url, chatPath, chat("{{ messages[0].content }}"))
	if err != nil {
		t.Fatal(err)
	}
	bare, err := ask(ctx, up.url, textPath, object{"prompt": "The sky is", "max_tokens": 4, "temperature": 0})
	if err != nil || r.Text != bare.Text || r.Prompt != bare.Prompt {
		t.Errorf("by its own template %q of %d tokens, the same as a text %q of %d, %v", r.Text, r.Prompt, bare.Text, bare.Prompt, err)
	}
	begun := time.Now()
	a := (&rig{process: up}).ask(t, chatPath, `{"messages":[{"role":"user","content":"hi"}],"chat_template":"{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"}`)
	a.wantParam(t, "chat_template")
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("refused after %v", took)
	}
	if _, err := ask(ctx, up.url, chatPath, chat("{{ messages[0].content }}")); err != nil {
		t.Errorf("after it: %v", err)
	}
}
