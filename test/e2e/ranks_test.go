//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tandem/test/ports"
)

// ranksYAML is a worker of two attention-DP ranks whose pools hold a few conversations.
const ranksYAML = `
tensor_parallel_size: 2
enable_attention_dp: true
attention_dp_config: {kv_cache_routing_conversation_affinity: true}
max_num_tokens: 512
max_seq_len: 1024
kv_cache_config: {max_tokens: 4096}
expose_routing_headers: true
shutdown_grace_sec: 5
`

// awaitReady waits for the ready line of a launched process.
func awaitReady(t *testing.T, p *process, ready <-chan string) {
	t.Helper()
	select {
	case line, ok := <-ready:
		if !ok {
			<-p.done
			t.Fatalf("%s ended before it was ready: %v\n%s", p.name, p.err, p.log.String())
		}
		p.readReady(line)
	case <-time.After(startLimit):
		t.Fatalf("%s is not ready after %v\n%s", p.name, startLimit, p.log.String())
	}
}

// startGroup starts the two ranks of an instance as a process each, rank 1 first.
func startGroup(t *testing.T, role, yaml string) (leader, other *process) {
	t.Helper()
	needModel(t)
	addr := ports.Address(t)
	file := writeFile(t, "ranks.yaml", yaml)
	one := func(rank string) (*process, chan string) {
		return launch(t, "rank "+rank, engineBin, "serve", modelName, "--role", role, "--port", "0", "-c", file, "--threads", "1", "--rank-group", addr, "--ranks", rank)
	}
	other, otherReady := one("1")
	leader, leaderReady := one("0")
	awaitReady(t, leader, leaderReady)
	awaitReady(t, other, otherReady)
	return leader, other
}

// turn is what one answer tells of a conversation.
type turn struct{ ctx, gen, why string }

var receiptForm = regexp.MustCompile(`^ctx;rank=([01]);reason=(\w+), gen;rank=([01]);reason=(\w+)$`)

func turnOf(r *result) (turn, error) {
	m := receiptForm.FindStringSubmatch(r.header.Get("X-Tandem-Route"))
	if m == nil {
		return turn{}, fmt.Errorf("the receipt is %q", r.header.Get("X-Tandem-Route"))
	}
	return turn{m[1], m[3], m[2] + " " + m[4]}, nil
}

// talk is one conversation.
type talk struct {
	id     string
	said   []string
	turns  []turn
	prompt int // tokens of all turns after the first
	cached int // of them
}

// say asks for the next answer.
func (k *talk) say(ctx context.Context, url, text string) error {
	k.said = append(k.said, text)
	body := sampleOf("", chatPath, user(k.said...), "max_tokens", 12, "ignore_eos", true).streamed(len(k.turns)%2 == 1)
	r, err := ask(ctx, url, chatPath, body, "X-Session-ID", k.id)
	if err != nil {
		return fmt.Errorf("%s, turn %d: %w", k.id, len(k.turns), err)
	}
	at, err := turnOf(r)
	if err != nil {
		return fmt.Errorf("%s, turn %d: %w", k.id, len(k.turns), err)
	}
	if len(k.turns) > 0 {
		k.prompt, k.cached = k.prompt+r.Prompt, k.cached+r.cached
	}
	k.said, k.turns = append(k.said, r.Text), append(k.turns, at)
	return nil
}

// checkHome fails unless all turns ran where the first one did.
func (k *talk) checkHome(t *testing.T) {
	t.Helper()
	for i, at := range k.turns {
		want := "sticky sticky"
		if i == 0 {
			want = "new new"
		}
		if at.ctx != k.turns[0].ctx || at.gen != k.turns[0].gen || at.why != want {
			t.Errorf("%s, turn %d: %+v after %+v", k.id, i, at, k.turns[0])
		}
	}
}

// TestConversationsKeepTheirRank holds eight chats of six turns over ctx and gen workers of two ranks each, and goes on
// with them after other prompts have taken their blocks.
func TestConversationsKeepTheirRank(t *testing.T) {
	needModel(t)
	file := writeFile(t, "ranks.yaml", ranksYAML)
	worker := func(role string) *process {
		return start(t, role, engineBin, "serve", modelName, "--role", role, "--port", "0", "-c", file)
	}
	ctxWorker, genWorker := worker("ctx"), worker("gen")
	f := startFrontend(t, []*process{ctxWorker}, []*process{genWorker}, "engine_conv_affinity: true")
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()

	talks := make([]*talk, 8)
	each := func(turns func(k *talk, i int) error) {
		var wg sync.WaitGroup
		for i, k := range talks {
			wg.Go(func() {
				if err := turns(k, i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for i := range talks {
		talks[i] = &talk{id: fmt.Sprintf("chat-%d", i)}
	}
	each(func(k *talk, i int) error {
		err := k.say(ctx, f.url, prose(uint64(i), 280))
		for turn := 1; turn < 6 && err == nil; turn++ {
			err = k.say(ctx, f.url, "Go on.")
		}
		return err
	})
	if t.Failed() {
		return
	}
	homes, prompt, cached := map[turn]int{}, 0, 0
	for _, k := range talks {
		k.checkHome(t)
		homes[turn{ctx: k.turns[0].ctx}]++
		homes[turn{gen: k.turns[0].gen}]++
		prompt, cached = prompt+k.prompt, cached+k.cached
	}
	if len(homes) != 4 {
		t.Errorf("not all ranks are somebody's home: %v", homes)
	}
	if cached*10 < prompt*9 {
		t.Errorf("%d of %d prompt tokens were reused", cached, prompt)
	}

	// Other prompts push the blocks out; the homes stay.
	for i := range 18 {
		if _, err := ask(ctx, f.url, textPath, object{"prompt": prose(uint64(100+i), 600), "max_tokens": 1}); err != nil {
			t.Fatal(err)
		}
	}
	for i, k := range talks {
		before := k.cached
		if err := k.say(ctx, f.url, "And then?"); err != nil {
			t.Fatal(err)
		}
		if again := k.cached - before; again > 128 {
			t.Errorf("chat %d: %d tokens are still cached: the test evicts too little", i, again)
		}
		k.prompt, k.cached = 0, 0
	}
	each(func(k *talk, _ int) error { return k.say(ctx, f.url, "Go on.") })
	for _, k := range talks {
		k.checkHome(t)
		if k.cached*10 < k.prompt*9 {
			t.Errorf("%s: %d of %d prompt tokens were reused on the rank that computed them again", k.id, k.cached, k.prompt)
		}
	}
	waitClean(t, settleLimit, ctxWorker, genWorker)
	text := get(t, ctxWorker.url+"/metrics")
	for _, name := range []string{
		`tandem_adp_routed_total{rank="0",reason="sticky"}`, `tandem_adp_routed_total{rank="1",reason="sticky"}`,
		`tandem_adp_router_info{router="conversation_aware"}`, `tandem_adp_steps_total{rank="1"}`,
	} {
		if v := metric(text, name); v == "" || v == "0" {
			t.Errorf("%s is %q", name, v)
		}
	}
}

// TestRanksOverProcesses gives an instance a process for each rank: the answers are those of one rank, the process of
// rank 1 takes no requests, and both end when the one of rank 0 is told to.
func TestRanksOverProcesses(t *testing.T) {
	samples := []sample{
		sampleOf("chat", chatPath, user("What is the capital of France?")),
		sampleOf("text", textPath, "The quick brown fox"),
		sampleOf("seeded", textPath, prose(3, 40), "temperature", 0.9, "seed", 7),
		sampleOf("long", textPath, prose(4, 550), "logprobs", 2),
		sampleOf("stop", chatPath, user("Count from one to ten."), "stop", []string{"five", "5"}),
	}
	answers := func(url string) []*result {
		ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
		defer cancel()
		out := make([]*result, 2*len(samples))
		var wg sync.WaitGroup
		for i := range out {
			wg.Go(func() {
				s := samples[i/2]
				r, err := ask(ctx, url, s.path, s.streamed(i%2 == 1))
				if err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
				out[i] = r
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
		return out
	}
	want := answers(startWorker(t, "mixed", workerConfig{threads: 1}).url)
	for name, yaml := range map[string]string{
		"attention DP":    ranksYAML,
		"tensor parallel": "tensor_parallel_size: 2\nmax_num_tokens: 512\nmax_seq_len: 1024\nkv_cache_config: {max_tokens: 4096}\n",
	} {
		t.Run(name, func(t *testing.T) {
			leader, other := startGroup(t, "mixed", yaml)
			var on []string
			for i, r := range answers(leader.url) {
				if !same(r, want[i]) {
					t.Errorf("%s: %s, one rank gives %s", samples[i/2].name, show(r), show(want[i]))
				}
				on = append(on, r.header.Get("X-Tandem-Route"))
			}
			placed := slices.ContainsFunc(on, func(s string) bool { return strings.HasPrefix(s, "gen;rank=1;") })
			if adp := yaml == ranksYAML; placed != adp {
				t.Errorf("requests ran on %q", on)
			}
			if !strings.Contains(get(t, other.url+"/server_info"), `"remote":true`) || get(t, other.url+"/health") == "" {
				t.Error("the process of rank 1 does not show its state")
			}
			var refused *statusError
			if _, err := post(t.Context(), other.url+textPath, object{"prompt": "x"}); !errors.As(err, &refused) || refused.status != http.StatusNotFound {
				t.Errorf("the process of rank 1 answered %v", err)
			}
			waitClean(t, settleLimit, leader)
			leader.signal(t, syscall.SIGTERM)
			if a, b := leader.wait(t, settleLimit), other.wait(t, settleLimit); a != 0 || b != 0 {
				t.Errorf("exit codes %d and %d", a, b)
			}
		})
	}
}

// TestHandOverBetweenRankProcesses splits chats over ctx and gen instances whose ranks are processes: each gen rank fetches
// from each ctx rank, and computes nothing anew.
func TestHandOverBetweenRankProcesses(t *testing.T) {
	ctx0, ctx1 := startGroup(t, "ctx", ranksYAML)
	gen0, gen1 := startGroup(t, "gen", ranksYAML)
	f := startFrontend(t, []*process{ctx0}, []*process{gen0}, "")
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()
	pairs := map[string]bool{}
	for i := range 8 { // ctx homes alternate; gen homes are the same for two in turn
		k := &talk{id: fmt.Sprintf("chat-%d", i)}
		for _, text := range []string{prose(uint64(i), 60), "Go on.", "And then?"} {
			if err := k.say(ctx, f.url, text); err != nil {
				t.Fatal(err)
			}
		}
		k.checkHome(t)
		pairs[k.turns[0].ctx+k.turns[0].gen] = true
		if i%2 == 1 {
			// One whole request shifts the turn of the gen ranks against that of the ctx ranks.
			s := sampleOf("", textPath, prose(uint64(50+i), 20))
			if _, err := ask(ctx, gen0.url, textPath, s.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(pairs) != 4 {
		t.Errorf("hand-overs went between %v only", pairs)
	}
	waitClean(t, settleLimit, ctx0, gen0)
	for _, p := range []*process{ctx0, ctx1, gen0, gen1} {
		if n := metric(get(t, p.url+"/metrics"), "tandem_recompute_fallback_total"); n != "0" {
			t.Errorf("%s computed %q prompts anew", p.name, n)
		}
	}
}

// TestRankProcessDies kills the process of a rank under a stream: its client and the other process learn of it at once.
func TestRankProcessDies(t *testing.T) {
	leader, other := startGroup(t, "mixed", ranksYAML)
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()
	begun := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		s := endless(true)
		s["max_tokens"] = 900
		resp, err := post(ctx, leader.url+chatPath, s)
		if err != nil {
			ended <- err
			return
		}
		defer resp.Body.Close()
		first := true
		ended <- streamOf(resp, func(*reply) error {
			if first {
				close(begun)
				first = false
			}
			return nil
		})
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the stream did not begin: %v", err)
	}
	other.signal(t, syscall.SIGKILL)
	if code := leader.wait(t, settleLimit); code == 0 {
		t.Error("the process of rank 0 ended well")
	}
	if err := <-ended; err == nil {
		t.Errorf("the stream ended with %v", err)
	}
	if log := leader.log.String(); !strings.Contains(log, "rank 1") { // it has ended
		t.Errorf("the log does not name the rank:\n%s", log)
	}
}

// TestRankProcessStalls stops the process of a rank for 20 s under a stream: the other warns, reports itself as not ready, and goes
// on where it was.
func TestRankProcessStalls(t *testing.T) {
	t.Parallel() // mostly waits
	leader, other := startGroup(t, "mixed", ranksYAML)
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("Count to a thousand."), "max_tokens", 200, "ignore_eos", true, "temperature", 0).streamed(true)
	begun := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		resp, err := post(ctx, leader.url+chatPath, s)
		if err != nil {
			ended <- err
			return
		}
		defer resp.Body.Close()
		var once sync.Once
		ended <- streamOf(resp, func(*reply) error {
			once.Do(func() { close(begun) })
			return nil
		})
	}()
	select {
	case <-begun:
	case err := <-ended:
		t.Fatalf("the stream did not begin: %v", err)
	}
	other.signal(t, syscall.SIGSTOP)
	defer other.signal(t, syscall.SIGCONT)
	longEnough := time.After(20 * time.Second)
	if !eventually(settleLimit, func() bool { return health(t, leader) == http.StatusServiceUnavailable }) {
		t.Error("the process of rank 0 never reported a stall")
	}
	within(t, "the log names the rank", func() bool {
		log := leader.log.String()
		return strings.Contains(log, "ranks keep the others waiting") && strings.Contains(log, "missing=[1]")
	})
	<-longEnough
	other.signal(t, syscall.SIGCONT)
	if err := <-ended; err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	if !eventually(settleLimit, func() bool { return health(t, leader) == http.StatusOK }) {
		t.Error("the process of rank 0 stays stalled")
	}
}
