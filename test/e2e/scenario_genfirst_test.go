//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

const genFirst = "schedule_style: generation_first\n"

// noWait is far below the minute for which a leg here would be waited for in vain, and far above what a busy machine takes.
const noWait = 25 * time.Second

func TestScenario10(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{yaml: genFirst})
	// The ctx stub does not answer before gen has got its leg: whoever sends that one later waits for ever.
	r.ctx[0].setScript(func(c *call) {
		if eventually(settleLimit, func() bool { return len(r.gen[0].legs()) > c.n }) {
			ctxReply{}.script(c)
		}
	})
	begun := time.Now()
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantRoute(t, "gen_ctx", r.ctx[0].id, r.gen[0].id)
	s := r.ask(t, chatPath, helloChat)
	if s.err != nil || strings.Count(s.raw, `"content":"A"`) != 1 || len(s.events) == 0 || s.events[len(s.events)-1] != "[DONE]" {
		t.Errorf("%v %s", s.err, s.raw)
	}
	if d := time.Since(begun); d > noWait {
		t.Errorf("it took %v", d)
	}
	for i, g := range wantLegs(t, r.gen[0], 2) {
		c := wantLegs(t, r.ctx[0], 2)[i]
		if g.params.ID != c.params.ID || g.params.CtxID != g.params.ID || g.params.Address != "tcp://10.0.0.1:5000" || g.params.First != nil ||
			g.params.Style != "generation_first" || c.params.Style != "generation_first" {
			t.Errorf("gen leg %s of ctx leg %s", g.raw, c.raw)
		}
	}
}

func TestScenario11(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{yaml: genFirst, noRetries: true})
	closed := make(chan struct{}, 2)
	r.ctx[0].setScript(func(c *call) {
		eventually(settleLimit, func() bool { return len(r.gen[0].legs()) > c.n }) // which is not seen if its connection ends at once
		c.status(http.StatusInternalServerError, `{"error":{"message":"prefill broke"}}`)
	})
	r.gen[0].setScript(func(c *call) {
		if !c.wait(time.Minute) {
			closed <- struct{}{}
		}
	})
	for i, ask := range []func() answer{
		func() answer { return r.ask(t, textPath, helloText) },
		func() answer { return r.ask(t, chatPath, helloChat) },
	} {
		begun := time.Now()
		ask().wantError(t, http.StatusBadGateway, "prefill broke")
		if d := time.Since(begun); d > noWait {
			t.Errorf("it took %v", d)
		}
		<-closed
		id := wantLegs(t, r.gen[0], i+1)[i].params.ID
		within(t, "gen got an abort of its leg", func() bool { ids := r.gen[0].aborted(); return len(ids) == i+1 && ids[i] == id })
	}
}

func TestScenario12(t *testing.T) {
	scenario(t)
	r := newRig(t, rigOf{yaml: genFirst + "disagg_no_retry: true\n"})
	r.ctx[0].setScript(func(c *call) { c.wait(time.Minute) })
	r.gen[0].setScript(func(c *call) {
		eventually(settleLimit, func() bool { return len(r.ctx[0].legs()) > c.n })
		c.w.WriteHeader(http.StatusOK)
		c.w.(http.Flusher).Flush()
		c.reset()
	})
	for i, ask := range []func() answer{
		func() answer { return r.ask(t, textPath, helloText) },
		func() answer { return r.ask(t, chatPath, helloChat) },
	} {
		begun := time.Now()
		ask().wantError(t, http.StatusBadGateway)
		if d := time.Since(begun); d > noWait {
			t.Errorf("it took %v", d)
		}
		id := wantLegs(t, r.ctx[0], i+1)[i].params.ID
		within(t, "ctx got an abort of its leg", func() bool { ids := r.ctx[0].aborted(); return len(ids) == i+1 && ids[i] == id })
	}
	wantLegs(t, r.gen[0], 2)
}

func TestScenario13(t *testing.T) {
	scenario(t)
	usage := func(completion, cached int) string {
		return fmt.Sprintf(`{"prompt_tokens":128,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, completion, 128+completion, cached)
	}
	r := newRig(t, rigOf{yaml: genFirst})
	r.ctx[0].setScript(ctxReply{usage: usage(0, 9)}.script)
	gen := genReply{usage: usage(5, 128)}
	var sent string
	r.gen[0].setScript(func(c *call) {
		sent = gen.stream(c.leg)
		at := strings.Index(sent, `"cached_tokens"`)
		c.send(sent, at-20, at+10)
	})
	s := r.ask(t, chatPath, helloChat)
	if want := strings.Replace(sent, usage(5, 128), usage(5, 9), 1); s.raw != want || s.err != nil {
		t.Errorf("the client got (%v)\n%s\nwant\n%s", s.err, s.raw, want)
	}
	r.gen[0].setScript(gen.script)
	a := r.ask(t, textPath, helloText)
	a.wantOK(t, "ABC")
	a.wantUsage(t, 128, 5, 9)
}

// TestGenerationFirst puts the corpus to a pair of real workers that starts both legs together, all at
// once, streamed and not: the answers are those of one worker, and those of the context-first pair that TestSplitIsInvisible
// compares with it.
func TestGenerationFirst(t *testing.T) {
	samples := corpus()
	want := corpusAnswers(t)
	c := startCluster(t, workerConfig{threads: 1}, genFirst)
	for _, p := range []pass{
		{"all at once", c.url, true, theOther}, {"warm, all at once", c.url, true, both},
	} {
		together := 0
		for i, got := range run(t, samples, p) {
			if got == nil {
				continue
			}
			if !same(got, want[i]) {
				t.Errorf("%s: %s differs\n got %s\nwant %s", p.name, samples[i].name, show(got), show(want[i]))
			}
			if got.header.Get("X-Disagg-Path") == "gen_ctx" {
				together++
			}
		}
		if together < 50 {
			t.Errorf("%s: only %d answers came with both legs together", p.name, together)
		}
		waitClean(t, settleLimit, c.ctx, c.gen)
	}
}

// TestGenerationFirstFaults: whatever happens to one of two real workers, the other one keeps nothing.
func TestGenerationFirstFaults(t *testing.T) {
	s := sampleOf("", chatPath, user(prose(9, 600)), "max_tokens", 200)
	for name, strike := range map[string]func(c *cluster, cancel context.CancelFunc) *process{
		"the client leaves": func(_ *cluster, cancel context.CancelFunc) *process { cancel(); return nil },
		"ctx is killed":     func(c *cluster, _ context.CancelFunc) *process { c.ctx.signal(t, syscall.SIGKILL); return c.gen },
		"gen is killed":     func(c *cluster, _ context.CancelFunc) *process { c.gen.signal(t, syscall.SIGKILL); return c.ctx },
	} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, workerConfig{threads: 1, lease: 5 * time.Second}, genFirst+"max_retries: 0\n")
			ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
			defer cancel()
			ended := make(chan error, 8)
			for i := range cap(ended) {
				go func() { _, err := ask(ctx, c.url, s.path, s.streamed(i%2 == 0)); ended <- err }()
			}
			if !eventually(settleLimit, func() bool { return stats(t, c.ctx).Active > 0 }) {
				t.Fatal("no prefill began")
			}
			left := strike(c, cancel)
			for range cap(ended) {
				select {
				case err := <-ended:
					if err == nil {
						t.Error("an answer came")
					}
				case <-time.After(settleLimit):
					t.Fatal("a client still waits")
				}
			}
			for _, w := range []*process{c.ctx, c.gen} {
				if left == nil || w == left {
					waitClean(t, settleLimit, w)
				}
			}
		})
	}
}

// TestGenerationFirstBetweenRanks: gen workers do not know on which rank a prompt will be, and their own ranks are in two
// processes. A ctx worker of several processes cannot be found early: it gets nothing, and that is said.
func TestGenerationFirstBetweenRanks(t *testing.T) {
	needModel(t)
	file := writeFile(t, "ranks.yaml", ranksYAML)
	prefill := start(t, "ctx", engineBin, "serve", modelName, "--role", "ctx", "--port", "0", "-c", file, "--threads", "1")
	gen0, gen1 := startGroup(t, "gen", ranksYAML)
	mixed := startWorker(t, "mixed", workerConfig{threads: 1})
	f := startFrontend(t, []*process{prefill}, []*process{gen0}, genFirst)
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()
	var samples []sample
	for i := range 10 {
		samples = append(samples, sampleOf(fmt.Sprint("prompt ", i), chatPath, user(prose(uint64(i), 20+10*i)), "max_tokens", 10, "ignore_eos", true))
	}
	want := run(t, samples, pass{"mixed", mixed.url, false, whole})
	used := map[string]bool{}
	for i, got := range run(t, samples, pass{"ranks", f.url, true, both}) {
		if got == nil || want[i] == nil {
			continue
		}
		if !same(got, want[i]) {
			t.Errorf("%s differs\n got %s\nwant %s", samples[i].name, show(got), show(want[i]))
		}
		if m := receiptForm.FindStringSubmatch(got.header.Get("X-Tandem-Route")); m != nil {
			used[m[1]+m[3]] = true
		}
	}
	if len(used) < 2 {
		t.Errorf("hand-overs went between %v only", used)
	}
	waitClean(t, settleLimit, prefill, gen0)
	for _, p := range []*process{prefill, gen0, gen1} {
		if n := metric(get(t, p.url+"/metrics"), "tandem_recompute_fallback_total"); n != "0" {
			t.Errorf("%s computed %q prompts anew", p.name, n)
		}
	}
	_, err := ask(ctx, gen0.url, textPath, object{"prompt": "x", "max_tokens": 1})
	if err != nil {
		t.Error(err)
	}
}

// TestGenerationFirstNeedsOneProcess is about ctx workers whose ranks are in several processes.
func TestGenerationFirstNeedsOneProcess(t *testing.T) {
	ctx0, _ := startGroup(t, "ctx", ranksYAML)
	r := &rig{process: startFrontend(t, []*process{ctx0}, []*process{startWorker(t, "gen", workerConfig{threads: 1})}, genFirst)}
	r.ask(t, textPath, fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":3}`, modelName)).wantError(t, http.StatusServiceUnavailable, "generation_first")
	if !r.warned(t, "W_GENERATION_FIRST_INERT") {
		t.Error("no warning")
	}
	direct := &rig{process: ctx0}
	a := direct.ask(t, textPath, fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":3,"disaggregated_params":{"request_type":"context_only","schedule_style":"generation_first","disagg_request_id":%d}}`,
		modelName, int64(687865856000134148)))
	a.wantParam(t, "disaggregated_params.schedule_style")
}
