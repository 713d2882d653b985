package executor

import (
	"math"
	"strings"
	"testing"
	"time"

	"tandem/engine/request"
	"tandem/engine/transfer"
)

func testConfig(role Role) Config {
	c := DefaultConfig()
	c.Role, c.Vocab, c.MaxSeqLen, c.Blocks, c.Namespace = role, 100, 64, 3, "m0"
	return c
}

func validRequest() *request.Request {
	return &request.Request{ID: 1, Prompt: []int32{1, 2, 3}, MaxTokens: 4, Sampling: request.DefaultSampling()}
}

func TestBadRequestsAreRefusedAtArrival(t *testing.T) {
	nan := math.NaN()
	for _, tc := range []struct {
		name   string
		role   Role
		change func(*request.Request)
		handle *transfer.Handle
		code   request.Code
		param  string
	}{
		{"empty prompt", Mixed, func(r *request.Request) { r.Prompt = nil }, nil, request.InvalidRequest, "prompt"},
		{"prompt fills context", Mixed, func(r *request.Request) { r.Prompt = make([]int32, 64) }, nil, request.InvalidRequest, "prompt"},
		{"negative token", Mixed, func(r *request.Request) { r.Prompt[1] = -1 }, nil, request.InvalidRequest, "prompt"},
		{"token beyond vocab", Mixed, func(r *request.Request) { r.Prompt[1] = 100 }, nil, request.InvalidRequest, "prompt"},
		{"no budget", Mixed, func(r *request.Request) { r.MaxTokens = 0 }, nil, request.InvalidRequest, "max_tokens"},
		{"never fits", Mixed, func(r *request.Request) { r.MaxTokens = 60 }, nil, request.CapacityNever, ""},
		{"temperature", Mixed, func(r *request.Request) { r.Sampling.Temperature = -1 }, nil, request.InvalidRequest, "temperature"},
		{"temperature NaN", Mixed, func(r *request.Request) { r.Sampling.Temperature = nan }, nil, request.InvalidRequest, "temperature"},
		{"top_k", Mixed, func(r *request.Request) { r.Sampling.TopK = -1 }, nil, request.InvalidRequest, "top_k"},
		{"top_p", Mixed, func(r *request.Request) { r.Sampling.TopP = 0 }, nil, request.InvalidRequest, "top_p"},
		{"top_p NaN", Mixed, func(r *request.Request) { r.Sampling.TopP = nan }, nil, request.InvalidRequest, "top_p"},
		{"min_p", Mixed, func(r *request.Request) { r.Sampling.MinP = 1.5 }, nil, request.InvalidRequest, "min_p"},
		{"repetition", Mixed, func(r *request.Request) { r.Sampling.RepetitionPenalty = 0 }, nil, request.InvalidRequest, "repetition_penalty"},
		{"presence", Mixed, func(r *request.Request) { r.Sampling.PresencePenalty = 3 }, nil, request.InvalidRequest, "presence_penalty"},
		{"frequency", Mixed, func(r *request.Request) { r.Sampling.FrequencyPenalty = nan }, nil, request.InvalidRequest, "frequency_penalty"},
		{"logprobs", Mixed, func(r *request.Request) { r.Sampling.Logprobs = 21 }, nil, request.InvalidRequest, "top_logprobs"},
		{"min_tokens", Mixed, func(r *request.Request) { r.Sampling.MinTokens = -1 }, nil, request.InvalidRequest, "min_tokens"},
		{"bias token", Mixed, func(r *request.Request) { r.Sampling.LogitBias = []request.Bias{{Token: 100}} }, nil, request.InvalidRequest, "logit_bias"},
		{"stop id", Mixed, func(r *request.Request) { r.Sampling.StopTokenIDs = []int32{100} }, nil, request.InvalidRequest, "stop_token_ids"},
		{"bad word", Mixed, func(r *request.Request) { r.Sampling.BadWords = [][]int32{{1, 100}} }, nil, request.InvalidRequest, "bad_words"},
		{"empty bad word", Mixed, func(r *request.Request) { r.Sampling.BadWords = [][]int32{{}} }, nil, request.InvalidRequest, "bad_words"},
		{"priority", Mixed, func(r *request.Request) { r.Priority = nan }, nil, request.InvalidRequest, "priority"},
		{"unknown kind", Mixed, func(r *request.Request) { r.Kind = 9 }, nil, request.InvalidRequest, "disaggregated_params.request_type"},
		{"first token of a context request", Ctx, func(r *request.Request) {
			r.Kind, r.TransferID, r.FirstTokens = request.ContextOnly, 5, []request.Token{{ID: 1}}
		}, nil, request.InvalidRequest, "disaggregated_params.first_gen_tokens"},
		{"full on ctx", Ctx, func(*request.Request) {}, nil, request.InvalidRequest, "disaggregated_params.request_type"},
		{"ctx leg on gen", Gen, func(r *request.Request) { r.Kind, r.TransferID = request.ContextOnly, 1 }, nil, request.InvalidRequest, "disaggregated_params.request_type"},
		{"no transfer id", Ctx, func(r *request.Request) { r.Kind = request.ContextOnly }, nil, request.InvalidRequest, "disaggregated_params.disagg_request_id"},
		{"no handle", Gen, gen, nil, request.InvalidRequest, "disaggregated_params.encoded_opaque_state"},
		{"no first token", Gen, func(r *request.Request) { gen(r); r.FirstTokens = nil }, &transfer.Handle{ID: 5, PromptTokens: 3}, request.InvalidRequest, "disaggregated_params.first_gen_tokens"},
		{"bad first token", Gen, func(r *request.Request) { gen(r); r.FirstTokens[0].ID = 100 }, &transfer.Handle{ID: 5, PromptTokens: 3}, request.InvalidRequest, "disaggregated_params.first_gen_tokens"},
		{"handle of another prompt", Gen, gen, &transfer.Handle{ID: 5, PromptTokens: 4}, request.InvalidRequest, "disaggregated_params"},
		{"handle of another id", Gen, gen, &transfer.Handle{ID: 6, PromptTokens: 3}, request.InvalidRequest, "disaggregated_params"},
	} {
		c, err := New(testConfig(tc.role))
		if err != nil {
			t.Fatal(err)
		}
		r := validRequest()
		tc.change(r)
		if pre := c.Precheck(r, tc.handle); pre == nil || pre.Code != tc.code || pre.Param != tc.param {
			t.Errorf("%s: precheck says %v", tc.name, pre)
		}
		c.Submit(0, r, tc.handle)
		e := c.Effects()
		if len(e.Outputs) != 1 || e.Outputs[0].Finish != request.FinishError || len(e.Retired) != 1 {
			t.Errorf("%s: %+v", tc.name, e)
			continue
		}
		if got := e.Outputs[0].Err; got.Code != tc.code || got.Param != tc.param {
			t.Errorf("%s: %v, want %s for %q", tc.name, got, tc.code, tc.param)
		}
		if err := c.Check(); err != nil || c.Plan(0) != nil {
			t.Errorf("%s: something was queued (%v)", tc.name, err)
		}
	}
}

func gen(r *request.Request) {
	r.Kind, r.TransferID = request.GenerationOnly, 5
	r.FirstTokens = []request.Token{{ID: 9}}
}

func TestDuplicateIDLeavesTheOlderAlone(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	older, newer := validRequest(), validRequest()
	c.Submit(0, older, nil)
	c.Submit(0, newer, nil)
	e := c.Effects()
	if len(e.Outputs) != 1 || e.Outputs[0].Request != newer || len(e.Retired) != 0 {
		t.Fatalf("%+v", e)
	}
	if b := c.Plan(0); b == nil || b.Rows[0].Request != older {
		t.Error("the older request does not run")
	}
}

// A gen leg that is tried again at a worker that still has its first attempt, or was told to give it up, is told that only a
// new hand-over helps: the request itself is fine.
func TestRepeatedGenLeg(t *testing.T) {
	c, err := New(testConfig(Gen))
	if err != nil {
		t.Fatal(err)
	}
	h := &transfer.Handle{ID: 5, PromptTokens: 3, Lease: time.Minute, Layout: c.cfg.Layout}
	first, again := validRequest(), validRequest()
	gen(first)
	gen(again)
	again.ID = 2
	c.Submit(0, first, h)
	for _, o := range c.Effects().Outputs {
		if o.Err != nil {
			t.Fatalf("the first attempt is refused: %v", o.Err)
		}
	}
	for _, abort := range []bool{false, true} {
		if abort {
			c.Abort(0, 6)
			again.TransferID, h.ID = 6, 6
		}
		if pre := c.Precheck(again, h); pre == nil || pre.Code != request.UnknownTransfer {
			t.Errorf("aborted %t: %v", abort, pre)
		}
	}
}

func TestFullQueueRefuses(t *testing.T) {
	cfg := testConfig(Mixed)
	cfg.MaxQueued = 2
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r := validRequest()
		r.ID = request.ID(i)
		c.Submit(0, r, nil)
	}
	if o := c.Effects().Outputs; len(o) != 1 || o[0].Err.Code != request.QueueFull {
		t.Errorf("%+v", o)
	}
}

func TestPrecheckTakesNothing(t *testing.T) {
	cfg := testConfig(Mixed)
	cfg.MaxQueued = 1
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Abort(0, 5)
	aborted := validRequest()
	aborted.Kind, aborted.TransferID = request.ContextOnly, 5
	if pre := c.Precheck(aborted, nil); pre == nil || pre.Code != request.Cancelled {
		t.Errorf("aborted before it came: %v", pre)
	}
	r := validRequest()
	for range 3 {
		if pre := c.Precheck(r, nil); pre != nil || c.Load() != (Load{FreeBlocks: 3}) {
			t.Fatalf("%v, load %+v", pre, c.Load())
		}
	}
	c.Submit(0, r, nil)
	if pre := c.Precheck(r, nil); pre == nil || pre.Param != "request_id" {
		t.Errorf("id in use: %v", pre)
	}
	next := validRequest()
	next.ID = 2
	if pre := c.Precheck(next, nil); pre != nil {
		t.Errorf("the queue is full, but that is not asked: %v", pre)
	}
	c.Drain(0)
	if pre := c.Precheck(next, nil); pre == nil || pre.Code != request.EngineDead {
		t.Errorf("draining: %v", pre)
	}
}

func TestCancelOfUnknownIDIsCounted(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	c.Cancel(0, 99)
	c.Detach(0, transfer.Detach{ID: 4})
	c.KeepAlive(0, transfer.KeepAlive{ID: 4})
	c.PullEvent(0, transfer.PullEvent{ID: 4, Done: true})
	c.Done(0, transfer.Done{ID: 4})
	st := c.Stats()
	if st.UnknownCancels != 1 || st.UnknownMessages != 3 || st.StalePulls != 1 || len(c.Effects().Outputs) != 0 {
		t.Errorf("%+v", st)
	}
}

func TestBadLogitsAndBadSamplesEndOneRequest(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r := validRequest()
		r.ID, r.Prompt = request.ID(i), []int32{int32(i), 1, 2}
		c.Submit(0, r, nil)
	}
	b := c.Plan(0)
	if len(b.Rows) != 3 {
		t.Fatalf("%d rows", len(b.Rows))
	}
	c.Effects()
	c.Apply(0, Result{Sampled: []Sampled{
		{Err: request.Errorf(request.BadLogits, "all logits are -inf")}, {Token: request.Token{ID: 100}}, {Token: request.Token{ID: 5}},
	}})
	codes := ""
	for _, o := range c.Effects().Outputs {
		if o.Err != nil {
			codes += string(o.Err.Code) + " "
		}
	}
	if codes != "bad_logits internal " || c.Stats().Running != 1 {
		t.Errorf("codes %q, %d running", codes, c.Stats().Running)
	}
}

func TestIllegalTransitionFailsTheRequest(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	c.Submit(0, validRequest(), nil)
	s := c.byID[1]
	if c.enter(s, request.GenReady) {
		t.Error("entered")
	}
	o := c.fx().Outputs // Effects may check the invariants, and this is a broken one
	if len(o) != 1 || o[0].Err.Code != request.Internal || c.Stats().IllegalTransition != 1 || len(c.byID) != 0 {
		t.Errorf("%+v", o)
	}
}

func TestDeadlockDetectorEndsTheHead(t *testing.T) {
	c, err := New(testConfig(Mixed))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		r := validRequest()
		r.ID = request.ID(i)
		c.Submit(0, r, nil)
	}
	leaked, _ := c.kv.Take(nil, 3)
	if c.Plan(0) != nil || c.Fatal() == nil {
		t.Fatal("three rounds without progress must be fatal")
	}
	c.kv.Release(leaked) // for those who check the books
	codes := ""
	for _, o := range c.Effects().Outputs {
		codes += string(o.Err.Code) + " "
	}
	if codes != "internal internal engine_dead engine_dead " {
		t.Errorf("codes %q", codes)
	}
	c.Submit(0, validRequest(), nil)
	if o := c.Effects().Outputs; o[0].Err.Code != request.EngineDead {
		t.Errorf("%+v", o[0])
	}
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	_, err := New(Config{Role: "x", BlockTokens: 3, MaxLeasedFraction: 2})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, word := range []string{"role", "vocab", "tokens_per_block", "KV pool", "max_batch_size", "max_num_tokens", "max_seq_len", "lease_ms", "max_leased_fraction", "capacity_scheduler_policy"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not named in %v", word, err)
		}
	}
	cfg := testConfig(Mixed)
	cfg.MaxBatch, cfg.MaxNumTokens = 64, 50
	c, err := New(cfg)
	if err != nil || c.Config().MaxBatch != 34 {
		t.Errorf("effective batch: %v, %v", c, err)
	}
}

func TestRecentIsBounded(t *testing.T) {
	r := newRecent(time.Minute)
	for i := range transfer.ID(3 * maxRecent) {
		r.add(i%(2*maxRecent), i%2 == 0, 0)
	}
	if len(r.order) != maxRecent || len(r.marks) > maxRecent {
		t.Errorf("%d in the ring, %d marks", len(r.order), len(r.marks))
	}
	last := transfer.ID(3*maxRecent-1) % (2 * maxRecent)
	if !r.ended(last, time.Minute) || r.ended(last, time.Minute+1) || r.refused(last, 0) || r.ended(last+1, 0) {
		t.Error("wrong memory")
	}
}
