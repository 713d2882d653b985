package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/scheduler"
)

// config returns the conditions of engine-core §16: partial reuse and same-pass
// sharing off, reuse on.
func config(b, n int) executor.Config {
	c := executor.DefaultConfig()
	c.Vocab, c.MaxSeqLen, c.Namespace = 50000, 1<<20, "m0"
	c.BlockTokens, c.Blocks = b, n
	c.MaxBatch, c.MaxNumTokens = 64, 2048
	c.PartialReuse, c.ShareInPass = false, false
	c.Incarnation = "w"
	return c
}

func worker(t tb, c executor.Config) *Worker {
	t.Helper()
	w, err := NewWorker(c)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// prompt returns p tokens that differ for different ids.
func prompt(id, p int) []int32 {
	out := make([]int32, p)
	for i := range out {
		out[i] = int32((id*7919 + i*31 + 17) % 50000)
	}
	return out
}

func full(id int, prompt []int32, g int) *request.Request {
	return &request.Request{ID: request.ID(id), Prompt: prompt, MaxTokens: g, Sampling: request.DefaultSampling()}
}

// submit sends n requests with distinct prompts, ids from 0.
func submit(w *Worker, n, p, g int) {
	for i := range n {
		w.Submit(0, full(i, prompt(i, p), g), nil)
	}
}

func mustRun(t tb, w *Worker) {
	t.Helper()
	if err := w.Run(0, 100000); err != nil {
		t.Fatal(err)
	}
}

// verify checks every track against the oracle and that nothing is left.
func verify(t tb, w *Worker) {
	t.Helper()
	for _, id := range w.Order {
		for _, tr := range w.Tracks[id].Choices() {
			want := OracleChoice(w.cfg.Vocab, w.Root(tr.Req), tr.Req.Prompt, tr.Choice, tr.Req.MaxTokens)
			whole := tr.Req.Kind == request.Full && tr.Finish == request.FinishLength
			if whole && !slices.Equal(tr.Tokens, want) {
				t.Fatalf("request %d, choice %d: tokens differ from the oracle", id, tr.Choice)
			}
			if tr.Finish == request.Running || !tr.Retired {
				t.Fatalf("request %d, choice %d: finish %q, retired %v", id, tr.Choice, tr.Finish, tr.Retired)
			}
		}
	}
	st := w.Core.Stats()
	if free := st.BlocksFree + st.BlocksReusable; free != st.BlocksTotal || st.Holds != 0 || st.Deadlocks != 0 {
		t.Fatalf("left over: %+v", st)
	}
}

func each(w *Worker, f func(*Track) uint64) string {
	var out []string
	for _, id := range w.Order {
		out = append(out, fmt.Sprint(f(w.Tracks[id])))
	}
	return strings.Join(out, ",")
}

func firstAt(t *Track) uint64 { return t.FirstAt }
func doneAt(t *Track) uint64  { return t.DoneAt }

func expect[T comparable](t tb, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestScenario01BlockArithmetic(t *testing.T) {
	for _, tc := range []struct{ p, g, n, blocks int }{
		{100, 28, 8, 8}, {100, 29, 8, 8}, {100, 30, 9, 9}, {65, 64, 8, 8}, {65, 65, 8, 9},
	} {
		for _, policy := range []scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization} {
			for n := tc.blocks - 1; n <= tc.blocks; n++ {
				c := config(16, n)
				c.Policy = policy
				w := worker(t, c)
				tr := w.Submit(0, full(0, prompt(0, tc.p), tc.g), nil)
				if n < tc.blocks { // at arrival, before anything runs
					if tr.Err == nil || tr.Err.Code != request.CapacityNever || !tr.Retired {
						t.Errorf("P=%d G=%d N=%d: %v", tc.p, tc.g, n, tr.Err)
					}
					continue
				}
				if _, err := w.Step(0); err != nil {
					t.Fatal(err)
				}
				expect(t, "blocks at admission", w.Core.Stats().BlocksActive, (tc.p+15)/16)
				mustRun(t, w)
				verify(t, w)
				expect(t, "iterations", w.Core.Stats().Iter, uint64(tc.g))
				expect(t, "pauses", w.Core.Stats().Paused, 0)
			}
		}
	}
}

func TestScenario02PoliciesSmall(t *testing.T) {
	for _, tc := range []struct {
		policy      scheduler.Policy
		iters       uint64
		pauses      uint64
		prefill     uint64
		first, done string
	}{
		{scheduler.GuaranteedNoEvict, 18, 0, 24, "1,1,10", "9,9,18"},
		{scheduler.MaxUtilization, 17, 1, 33, "1,1,1", "9,9,17"},
		{scheduler.StaticBatch, 18, 0, 24, "1,1,10", "9,9,18"},
	} {
		c := config(4, 8)
		c.Policy = tc.policy
		c.BlockReuse = tc.policy != scheduler.MaxUtilization
		w := worker(t, c)
		submit(w, 3, 8, 9)
		mustRun(t, w)
		verify(t, w)
		st := w.Core.Stats()
		expect(t, string(tc.policy)+" iterations", st.Iter, tc.iters)
		expect(t, string(tc.policy)+" pauses", st.Paused, tc.pauses)
		expect(t, string(tc.policy)+" prefill", st.PrefillTokens, tc.prefill)
		expect(t, string(tc.policy)+" first", each(w, firstAt), tc.first)
		expect(t, string(tc.policy)+" done", each(w, doneAt), tc.done)
	}
}

func TestScenario03PoliciesLoad(t *testing.T) {
	for _, tc := range []struct {
		policy                 scheduler.Policy
		iters, pauses, prefill uint64
	}{
		{scheduler.GuaranteedNoEvict, 427, 0, 6400},
		{scheduler.MaxUtilization, 368, 17, 8347},
	} {
		c := config(16, 100)
		c.Policy, c.MaxNumTokens, c.MaxBatch = tc.policy, 512, 32
		w := worker(t, c)
		submit(w, 64, 100, 61)
		mustRun(t, w)
		verify(t, w)
		st := w.Core.Stats()
		expect(t, string(tc.policy)+" iterations", st.Iter, tc.iters)
		expect(t, string(tc.policy)+" pauses", st.Paused, tc.pauses)
		expect(t, string(tc.policy)+" prefill", st.PrefillTokens, tc.prefill)
		if tc.policy == scheduler.GuaranteedNoEvict {
			expect(t, "most alive", w.MaxAlive, 10)
		}
	}
}

func TestScenario04LongOutputs(t *testing.T) {
	for _, tc := range []struct {
		policy                 scheduler.Policy
		reuse                  bool
		iters, pauses, prefill uint64
	}{
		{scheduler.GuaranteedNoEvict, true, 316, 0, 800},
		{scheduler.MaxUtilization, true, 238, 8, 1269},
		{scheduler.MaxUtilization, false, 238, 8, 1397},
	} {
		c := config(16, 40)
		c.Policy, c.MaxNumTokens, c.MaxBatch, c.BlockReuse = tc.policy, 256, 16, tc.reuse
		w := worker(t, c)
		submit(w, 16, 50, 79)
		mustRun(t, w)
		verify(t, w)
		st := w.Core.Stats()
		expect(t, fmt.Sprint(tc.policy, tc.reuse, " iterations"), st.Iter, tc.iters)
		expect(t, fmt.Sprint(tc.policy, tc.reuse, " pauses"), st.Paused, tc.pauses)
		expect(t, fmt.Sprint(tc.policy, tc.reuse, " prefill"), st.PrefillTokens, tc.prefill)
	}
}

func TestScenario05ChunkedPrefill(t *testing.T) {
	c := config(16, 64)
	c.MaxNumTokens = 64
	c.MaxBatch = 32
	w := worker(t, c)
	w.KeepLog = true
	submit(w, 3, 100, 4)
	mustRun(t, w)
	verify(t, w)
	// Decode rows come first in a step.
	want := "0:64 | 0:36 1:16 | 0:1 1:48 | 0:1 1:36 2:16 | 0:1 1:1 2:48 | 1:1 2:36 | 1:1 2:1 | 2:1 | 2:1 | "
	expect(t, "rows", w.Log, want)
	expect(t, "first", each(w, firstAt), "2,4,6")
	expect(t, "total rows", w.Rows, 309)
}

func TestScenario06Mixing(t *testing.T) {
	c := config(16, 64)
	c.MaxNumTokens, c.MaxBatch = 64, 32
	w := worker(t, c)
	w.KeepLog = true
	w.Submit(0, full(0, prompt(0, 16), 40), nil)
	w.Submit(0, full(1, prompt(1, 200), 4), nil)
	mustRun(t, w)
	verify(t, w)
	if !strings.HasPrefix(w.Log, "0:16 1:48 | 0:1 1:48 | 0:1 1:48 | 0:1 1:56 | 0:1 1:1 | ") {
		t.Errorf("rows %s", w.Log)
	}
	expect(t, "done", w.Tracks[0].DoneAt, 40)
}

func TestPrefillCapInMixedSteps(t *testing.T) {
	c := config(16, 64)
	c.MaxNumTokens, c.MaxBatch, c.PrefillMixed = 64, 32, 32
	w := worker(t, c)
	w.KeepLog = true
	w.Submit(0, full(0, prompt(0, 16), 6), nil)
	w.Submit(0, full(1, prompt(1, 100), 2), nil)
	mustRun(t, w)
	expect(t, "rows", w.Log, "0:16 1:48 | 0:1 1:32 | 0:1 1:20 | 0:1 1:1 | 0:1 | 0:1 | ")
}

func TestScenario07EqualProgress(t *testing.T) {
	for policy, want := range map[scheduler.Chunking]string{
		scheduler.EqualProgress: "0:64 1:40 2:48 | ", scheduler.FirstCome: "0:100 1:40 2:16 | ",
	} {
		c := config(16, 64)
		c.MaxNumTokens, c.MaxBatch, c.Chunking = 160, 32, policy
		w := worker(t, c)
		w.KeepLog = true
		for i, p := range []int{100, 40, 200} {
			w.Submit(0, full(i, prompt(i, p), 2), nil)
		}
		mustRun(t, w)
		verify(t, w)
		if !strings.HasPrefix(w.Log, want) {
			t.Errorf("%s: %s", policy, w.Log)
		}
	}
}

func TestScenario08SamePassSharing(t *testing.T) {
	for _, share := range []bool{false, true} {
		c := config(16, 128)
		c.MaxNumTokens, c.ShareInPass = 4096, share
		w := worker(t, c)
		common := prompt(99, 96)
		for i := range 8 {
			w.Submit(0, full(i, append(slices.Clone(common), prompt(i, 4)...), 4), nil)
		}
		if _, err := w.Step(0); err != nil {
			t.Fatal(err)
		}
		st := w.Core.Stats()
		want := uint64(800)
		if share {
			want = 128
			expect(t, "blocks in use", st.BlocksActive, 6+8)
		}
		expect(t, "prefill tokens", st.PrefillTokens, want)
		expect(t, "first", each(w, firstAt), "1,1,1,1,1,1,1,1")
		mustRun(t, w)
		verify(t, w)
		expect(t, "indexed", w.Core.Stats().BlocksReusable, 6)
	}
}

func TestSharerOutlivesCancelledLeader(t *testing.T) {
	c := config(16, 64)
	c.ShareInPass = true
	w := worker(t, c)
	common := prompt(99, 64)
	for i := range 2 {
		w.Submit(0, full(i, append(slices.Clone(common), prompt(i, 4)...), 5), nil)
	}
	w.BeforeApply = func(b *executor.Batch) { w.Core.Cancel(0, 0); w.BeforeApply = nil }
	mustRun(t, w)
	verify(t, w)
	expect(t, "leader", w.Tracks[0].Finish, request.FinishCancelled)
	expect(t, "leader's tokens", len(w.Tracks[0].Tokens), 0)
	expect(t, "sharer", w.Tracks[1].Finish, request.FinishLength)
}

func TestScenario09ReuseArithmetic(t *testing.T) {
	for _, tc := range []struct {
		p       int
		partial bool
		cached  int
	}{{64, false, 48}, {64, true, 63}, {65, false, 64}, {65, true, 64}} {
		c := config(16, 64)
		c.PartialReuse = tc.partial
		w := worker(t, c)
		w.Submit(0, full(0, prompt(0, tc.p), 4), nil)
		mustRun(t, w)
		before := w.Core.Stats().PrefillTokens
		w.Submit(0, full(1, prompt(0, tc.p), 4), nil)
		mustRun(t, w)
		verify(t, w)
		expect(t, "computed", w.Core.Stats().PrefillTokens-before, uint64(tc.p-tc.cached))
		expect(t, "cached_tokens", w.Tracks[1].Usage.CachedTokens, tc.cached)
	}
}

// TestScenario10Isolation runs 1,000 random prompts that have beginnings in common
// under four roots. The model reports any slot of another root.
func TestScenario10Isolation(t *testing.T) {
	c := config(4, 512)
	c.PartialReuse, c.ShareInPass = true, true
	w := worker(t, c)
	rng := rand.New(rand.NewPCG(10, 0))
	for i := range 1000 {
		p := make([]int32, 5+rng.IntN(23))
		for j := range p {
			p[j] = rng.Int32N(2)
		}
		r := full(i, p, 3)
		r.CacheSalt = []string{"", "a", "b", "lora"}[rng.IntN(4)]
		w.Submit(0, r, nil)
	}
	mustRun(t, w)
	verify(t, w)
	if st := w.Core.Stats(); st.PrefixHitTokens == 0 || st.PendingShare == 0 {
		t.Errorf("nothing was shared at all: %+v", st)
	}
}

func TestResetCacheSharesNothingOld(t *testing.T) {
	for _, how := range []Overlap{InTurn, Heard, Eager, Lazy} { // with overlap a step runs, which is waited for
		w := worker(t, config(16, 64))
		w.Overlap = how
		w.Submit(0, full(0, prompt(0, 40), 60), nil)
		for range 10 {
			if _, err := w.Step(0); err != nil {
				t.Fatal(err)
			}
		}
		w.Core.ResetCache()
		w.Submit(0, full(1, prompt(0, 40), 4), nil)
		mustRun(t, w)
		verify(t, w)
		expect(t, "cached", w.Tracks[1].Usage.CachedTokens, 0)
		expect(t, "indexed after", w.Core.Stats().BlocksReusable, 2) // of the second request only
	}
}

func TestScenario11EvictionOrder(t *testing.T) {
	w := worker(t, config(4, 4))
	a, b := prompt(0, 9), prompt(1, 9)
	for i, p := range [][]int32{a, b} {
		w.Submit(0, full(i, p, 1), nil)
		mustRun(t, w)
	}
	expect(t, "A's tokens that B left", w.Core.Cached(a, ""), 4) // its tail went first
	expect(t, "B's", w.Core.Cached(b, ""), 8)
	w.Submit(0, full(2, a[:5], 1), nil)
	mustRun(t, w)
	verify(t, w)
	expect(t, "cached of C", w.Tracks[2].Usage.CachedTokens, 4)
}

func TestScenario14LateAbort(t *testing.T) {
	c := config(16, 16)
	c.Role = executor.Ctx
	w := worker(t, c)
	r := full(1, prompt(1, 40), 8)
	r.Kind, r.TransferID = request.ContextOnly, 7
	tr := w.Submit(0, r, nil)
	w.BeforeApply = func(*executor.Batch) { w.Core.Cancel(0, 1) }
	mustRun(t, w)
	expect(t, "finish", tr.Finish, request.FinishCancelled)
	expect(t, "leases", w.Core.Stats().HandoffsOpen, 0)
	verify(t, w)
}

func TestLeaseCapHoldsAdmission(t *testing.T) {
	c := config(16, 16)
	c.Role = executor.Ctx
	w := worker(t, c)
	for i := range 4 {
		r := full(i, prompt(i, 48), 8)
		r.Kind, r.TransferID = request.ContextOnly, int64(i+1)
		w.Submit(0, r, nil)
		mustRun(t, w)
	}
	// 3 blocks each: after three leases 9 of 16 blocks are leased.
	expect(t, "open", w.Core.Stats().HandoffsOpen, 3)
	expect(t, "waiting", w.Core.Stats().Waiting, 1)
	if err := w.Run(time.Minute, 100); err != nil {
		t.Fatal(err)
	}
	expect(t, "fourth", w.Tracks[3].Finish, request.FinishNotFinished)
}

// stopText is a Text that stops when token stop comes and shows one "x" a token.
type stopText struct {
	stop int32
	held string
}

func (s *stopText) Push(t int32) (string, bool) {
	if t == s.stop {
		return "", true
	}
	out := s.held
	s.held = "x"
	return out, false
}

func (s *stopText) Flush() string { out := s.held; s.held = ""; return out }

func TestScenario24StopRules(t *testing.T) {
	oracle := Oracle(50000, worker(t, config(16, 8)).Root(full(0, nil, 1)), prompt(0, 20), 10)
	for _, tc := range []struct {
		name   string
		change func(*request.Request)
		tokens int
		finish request.Finish
		text   string
	}{
		{"length", func(r *request.Request) {}, 10, request.FinishLength, "xxxxxxxxxx"},
		{"eos", func(r *request.Request) { r.Sampling.EOS = oracle[2:3] }, 3, request.FinishStop, "xx"},
		{"eos ignored", func(r *request.Request) {
			r.Sampling.EOS, r.Sampling.IgnoreEOS = oracle[2:3], true
		}, 10, request.FinishLength, "xxxxxxxxxx"},
		{"eos before min_tokens", func(r *request.Request) {
			r.Sampling.EOS, r.Sampling.MinTokens = []int32{oracle[2], oracle[6]}, 5
		}, 7, request.FinishStop, "xxxxxx"},
		{"stop id", func(r *request.Request) { r.Sampling.StopTokenIDs = oracle[4:5] }, 5, request.FinishStop, "xxxx"},
		{"stop string", func(r *request.Request) { r.Text = &stopText{stop: oracle[3]} }, 4, request.FinishStop, "xx"},
		{"eos is the last", func(r *request.Request) { r.Sampling.EOS = oracle[9:] }, 10, request.FinishStop, "xxxxxxxxx"},
	} {
		w := worker(t, config(16, 8))
		r := full(0, prompt(0, 20), 10)
		r.Text = &stopText{stop: -1}
		tc.change(r)
		tr := w.Submit(0, r, nil)
		mustRun(t, w)
		verify(t, w)
		if !slices.Equal(tr.Tokens, oracle[:tc.tokens]) || tr.Finish != tc.finish || tr.Text != tc.text {
			t.Errorf("%s: %d tokens, %s, %q; want %d, %s, %q", tc.name, len(tr.Tokens), tr.Finish, tr.Text, tc.tokens, tc.finish, tc.text)
		}
		expect(t, tc.name+" usage", tr.Usage.CompletionTokens, tc.tokens)
	}
}

func TestScenario26StepFailure(t *testing.T) {
	for _, failures := range []int{1, 2, 3} {
		c := config(16, 256)
		c.MaxBatch, c.MaxNumTokens = 16, 128
		w := worker(t, c)
		submit(w, 100, 20, 8)
		left := failures
		hit := map[request.ID]int{}
		w.FailStep = func(b *executor.Batch) error {
			if b.Iter < 10 || left == 0 {
				return nil
			}
			left--
			for _, r := range b.Rows {
				hit[r.Request.ID]++
			}
			return errors.New("injected")
		}
		mustRun(t, w)
		verify(t, w)
		for _, id := range w.Order {
			want := request.FinishLength
			if hit[id] > 1 {
				want = request.FinishError
			}
			if tr := w.Tracks[id]; tr.Finish != want || want == request.FinishError && tr.Err.Code != request.StepFailed {
				t.Errorf("%d failures: request %d, hit %d times: %s %v", failures, id, hit[id], tr.Finish, tr.Err)
			}
		}
	}
}

func TestTenFailedStepsAreFatal(t *testing.T) {
	w := worker(t, config(16, 64))
	submit(w, 30, 20, 8)
	w.FailStep = func(*executor.Batch) error { return errors.New("injected") }
	for i := 0; w.Core.Fatal() == nil && i < 20; i++ {
		if _, err := w.Step(0); err != nil {
			t.Fatal(err)
		}
		if i%2 == 1 {
			w.Submit(0, full(100+i, prompt(i, 20), 4), nil)
		}
	}
	expect(t, "failed steps", w.Core.Stats().StepErrors, 10)
	verify(t, w)
}

// tb is what *testing.T and *rapid.T share.
type tb interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// A gen worker that may pause starts requests by what they hold: many chats with a large budget run at once where reserving
// their whole life leaves most waiting. Tokens are the same.
func TestPullsFollowThePolicy(t *testing.T) {
	most := map[scheduler.Policy]int{}
	for _, policy := range []scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization} {
		c := pair(t, func(ctx, gen *executor.Config) {
			ctx.Blocks, gen.Blocks, gen.Policy = 256, 64, policy
			ctx.MaxSeqLen, gen.MaxSeqLen = 400, 400
		})
		for i := range 16 {
			c.Start(session(i, prompt(i, 20), 300))
		}
		for tick := 0; ; tick++ {
			more, err := c.Tick()
			if err != nil {
				t.Fatal(err)
			}
			most[policy] = max(most[policy], c.Gen.Core.Stats().Running)
			if !more || tick > 100_000 {
				break
			}
		}
		settle(t, c)
		verifySessions(t, c)
		for _, s := range c.Sessions {
			if len(s.Tokens(0)) != 300 {
				t.Errorf("%s: a request has %d tokens", policy, len(s.Tokens(0)))
			}
		}
		if st := c.Gen.Core.Stats(); (policy == scheduler.MaxUtilization) != (st.Paused > 0) {
			t.Errorf("%s: %d pauses", policy, st.Paused)
		}
	}
	if most[scheduler.GuaranteedNoEvict] > 3 || most[scheduler.MaxUtilization] < 8 {
		t.Errorf("most requests at once: %v", most)
	}
}
