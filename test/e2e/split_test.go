//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
)

// pass is one way to put the corpus to a deployment.
type pass struct {
	name       string
	url        string
	concurrent bool
	stream     func(i int) bool
}

func whole(int) bool      { return false }
func streams(int) bool    { return true }
func both(i int) bool     { return i%2 == 0 }
func theOther(i int) bool { return i%2 == 1 }

// TestSplitIsInvisible puts the same prompts to workers that compute them alone
// and to ctx+gen pairs, one at a time and all at once, streamed and not, with
// prefix reuse on and off. Ids, text, finish reasons, usage and
// log-probabilities must be equal to the last digit.
func TestSplitIsInvisible(t *testing.T) {
	samples := corpus()
	if len(samples) < 60 {
		t.Fatalf("the corpus has %d prompts", len(samples))
	}
	want := corpusAnswers(t)
	for i, r := range want {
		check(t, samples[i], r)
		if r.cached != 0 {
			t.Errorf("%s: %d cached tokens without reuse", samples[i].name, r.cached)
		}
	}
	compare := func(t *testing.T, p pass) []*result {
		t.Helper()
		got := run(t, samples, p)
		for i := range got {
			if got[i] != nil && !same(got[i], want[i]) {
				t.Errorf("%s: %s differs\n got %s\nwant %s", p.name, samples[i].name, show(got[i]), show(want[i]))
			}
		}
		return got
	}

	mixed := startWorker(t, "mixed", workerConfig{threads: 1})
	compare(t, pass{"mixed, all at once", mixed.url, true, both})
	compare(t, pass{"mixed, warm, all at once", mixed.url, true, theOther})
	waitClean(t, settleLimit, mixed)
	mixed.stop(t)

	c := startCluster(t, workerConfig{}, "")
	got := compare(t, pass{"split, one at a time", c.url, false, both})
	paths(t, samples, got)
	compare(t, pass{"split, warm, all at once", c.url, true, theOther})
	waitClean(t, settleLimit, c.ctx, c.gen)
	c.process.stop(t)
	c.ctx.stop(t)
	c.gen.stop(t)

	c = startCluster(t, workerConfig{noReuse: true}, "early_first_token: false\ngen_tokids_ctxbytes: true\n")
	compare(t, pass{"split, all at once, no reuse, no early token", c.url, true, theOther})
	waitClean(t, settleLimit, c.ctx, c.gen)
}

// answered are the corpus' answers, of the first test that needs them.
var answered struct {
	sync.Mutex
	list []*result
}

// corpusAnswers are the answers of a worker that computes the corpus alone, one at a time and whole, and keeps nothing.
func corpusAnswers(t *testing.T) []*result {
	t.Helper()
	answered.Lock()
	defer answered.Unlock()
	if answered.list == nil {
		w := startWorker(t, "mixed", workerConfig{noReuse: true})
		list := run(t, corpus(), pass{"mixed, one at a time, no reuse", w.url, false, whole})
		w.stop(t)
		if t.Failed() {
			t.FailNow()
		}
		answered.list = list
	}
	return answered.list
}

// run puts every sample to a deployment. A sample that fails is nil.
func run(t *testing.T, samples []sample, p pass) []*result {
	t.Helper()
	out := make([]*result, len(samples))
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	one := func(i int) {
		s := samples[i]
		r, err := ask(ctx, p.url, s.path, s.streamed(p.stream(i)))
		if err != nil {
			t.Errorf("%s: %s: %v", p.name, s.name, err)
			return
		}
		out[i] = r
	}
	var wg sync.WaitGroup
	for i := range samples {
		if p.concurrent {
			wg.Go(func() { one(i) })
		} else {
			one(i)
		}
	}
	wg.Wait()
	return out
}

// same compares all that must not depend on the deployment.
func same(a, b *result) bool {
	if !a.streamed && !b.streamed && !reflect.DeepEqual(a.promptIDs, b.promptIDs) {
		return false
	}
	return a.Text == b.Text && a.Finish == b.Finish && reflect.DeepEqual(a.IDs, b.IDs) && reflect.DeepEqual(a.Logprobs, b.Logprobs) &&
		a.Prompt == b.Prompt && a.Completion == b.Completion && a.Total == b.Total
}

func show(r *result) string {
	return fmt.Sprintf("%q %v %s %d (%d ids)+%d=%d %v", r.Text, r.IDs, r.Finish, r.Prompt, len(r.promptIDs), r.Completion, r.Total, r.Logprobs)
}

// check looks at an answer by itself.
func check(t *testing.T, s sample, r *result) {
	t.Helper()
	if len(r.promptIDs) != r.Prompt || len(r.IDs) != r.Completion || r.Completion == 0 || r.Prompt == 0 || r.Total != r.Prompt+r.Completion {
		t.Errorf("%s: %d ids, usage %d+%d=%d", s.name, len(r.IDs), r.Prompt, r.Completion, r.Total)
	}
	if r.Finish != "stop" && r.Finish != "length" {
		t.Errorf("%s: finish_reason %q", s.name, r.Finish)
	}
	if on := s.body["logprobs"]; on != nil && len(r.Logprobs) != r.Completion || on == nil && r.Logprobs != nil {
		t.Errorf("%s: %d log-probabilities for %d tokens", s.name, len(r.Logprobs), r.Completion)
	}
	if n, ok := s.body["max_tokens"].(int); ok && (r.Completion > n || r.Finish == "length" && r.Completion != n) {
		t.Errorf("%s: %d tokens of %d, %s", s.name, r.Completion, n, r.Finish)
	}
}

// paths checks that the answers really came from two processes.
func paths(t *testing.T, samples []sample, got []*result) {
	t.Helper()
	split := 0
	for i, r := range got {
		if r == nil {
			continue
		}
		path, ctx, gen := r.header.Get("X-Disagg-Path"), r.header.Get("X-Disagg-Ctx-Server"), r.header.Get("X-Disagg-Gen-Server")
		switch {
		case path == "ctx_gen" && ctx != "" && gen != "" && ctx != gen && gen != "-":
			split++
		case path == "ctx_only" && r.Completion == 1 && gen == "-":
		default:
			t.Errorf("%s: path %q over ctx %q and gen %q, %d tokens", samples[i].name, path, ctx, gen, r.Completion)
		}
	}
	if split < 50 {
		t.Errorf("only %d answers went over both workers", split)
	}
}

// TestParis is the first thing that a newcomer tries.
func TestParis(t *testing.T) {
	c := startCluster(t, workerConfig{}, "")
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	s := sampleOf("", chatPath, user("What is the capital of France?"))
	for _, stream := range []bool{false, true} {
		r, err := ask(ctx, c.url, s.path, s.streamed(stream))
		if err != nil {
			t.Fatal(err)
		}
		if r.Text != "The capital of France is Paris." || r.Finish != "stop" {
			t.Errorf("stream %v: %s", stream, show(r))
		}
		paths := []string{r.header.Get("X-Disagg-Path"), "http://" + r.header.Get("X-Disagg-Ctx-Server"), "http://" + r.header.Get("X-Disagg-Gen-Server")}
		if want := []string{"ctx_gen", c.ctx.url, c.gen.url}; !reflect.DeepEqual(paths, want) {
			t.Errorf("routing headers %q, want %q", paths, want)
		}
	}
	waitClean(t, settleLimit, c.ctx, c.gen)
}

// TestCachedTokens compares what a mixed worker and a pair report as cached for
// the same history: new, repeated, extended, and under another salt.
func TestCachedTokens(t *testing.T) {
	history := []struct {
		name string
		body object
	}{
		{"new", object{"prompt": prose(5, 100), "max_tokens": 1}},
		{"again", object{"prompt": prose(5, 100), "max_tokens": 4}},
		{"extended", object{"prompt": prose(5, 100) + prose(6, 50), "max_tokens": 4}},
		{"salted", object{"prompt": prose(5, 100), "max_tokens": 4, "cache_salt": "x"}},
		{"other", object{"prompt": prose(7, 100), "max_tokens": 4}},
	}
	cached := func(url string) (out []int) {
		ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
		defer cancel()
		for _, h := range history {
			r, err := ask(ctx, url, textPath, h.body)
			if err != nil {
				t.Fatalf("%s: %v", h.name, err)
			}
			out = append(out, r.cached)
		}
		return out
	}
	want := cached(startWorker(t, "mixed", workerConfig{}).url)
	c := startCluster(t, workerConfig{}, "")
	got := cached(c.url)
	for i := range want {
		// A mixed worker also keeps the block that its answer filled up; ctx never computes it.
		if got[i] > want[i] || want[i]-got[i] >= 16 || history[i].name != "extended" && got[i] != want[i] {
			t.Errorf("%s: cached tokens: split %d, mixed %d", history[i].name, got[i], want[i])
		}
	}
	if want[0] != 0 || want[1] < 96 || want[2] < 96 || want[3] != 0 || want[4] >= 16 {
		t.Errorf("cached tokens of a mixed worker: %v", want)
	}
	waitClean(t, settleLimit, c.ctx, c.gen)
}
