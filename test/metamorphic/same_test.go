package metamorphic

import (
	"errors"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/scheduler"
	"tandem/test/tinymodel"
)

// load is how much is asked for.
type load struct {
	requests int // at least 8
	tokens   int // of an answer
	prompt   int // tokens of the longest prompt
	pool     int // tokens of an ample KV pool
	tight    int // tokens of a pool that has room for a few of the requests only
	vocab    int
}

// variant is a way to do the same work.
type variant struct {
	name      string
	change    func(*runner.LoadOptions, load)
	alone     bool                      // one request at a time
	single    bool                      // of the choices only the first
	staggered bool                      // each comes when the one before has a few tokens
	split     bool                      // prefilled by one engine, decoded by another
	twice     bool                      // and once more, when the cache has it all
	ask       func() []*request.Request // nil = what requests has
	// happened says whether the run has shown what it is for.
	happened func(st runner.Stats) bool
	share    bool // runs with the default model outside of soaks, too
}

func chunk(tokens int) func(*runner.LoadOptions, load) {
	return func(o *runner.LoadOptions, _ load) { o.Core.MaxBatch, o.Core.MaxNumTokens = 8, tokens+8 }
}

func block(tokens int) func(*runner.LoadOptions, load) {
	return func(o *runner.LoadOptions, l load) { reuse(o, l); o.Core.BlockTokens = tokens }
}

// blocks gives each side of a split its own.
func blocks(ctx, gen int) func(*runner.LoadOptions, load) {
	return func(o *runner.LoadOptions, l load) {
		size := ctx
		if o.Core.Role == executor.Gen {
			size = gen
		}
		block(size)(o, l)
	}
}

func reuse(o *runner.LoadOptions, _ load) {
	o.Core.BlockReuse, o.Core.PartialReuse, o.Core.ShareInPass = true, true, true
}

func overlap(o *runner.LoadOptions, _ load) { on := true; o.Overlap = &on }

func squeeze(o *runner.LoadOptions, l load) {
	o.Core.Policy, o.PoolTokens, o.Core.MaxSeqLen = scheduler.MaxUtilization, l.tight, l.tight
}

func hits(st runner.Stats) bool   { return st.PrefixHitTokens > 0 }
func pauses(st runner.Stats) bool { return st.Paused > 0 }

func all(list ...func(*runner.LoadOptions, load)) func(*runner.LoadOptions, load) {
	return func(o *runner.LoadOptions, l load) {
		for _, change := range list {
			change(o, l)
		}
	}
}

// variants do the same work in other ways. The first is the one to compare with.
var variants = []variant{
	{name: "alone", alone: true, share: true},
	{name: "batch 1", single: true, change: func(o *runner.LoadOptions, _ load) { o.Core.MaxBatch = 1 }},
	{name: "batch 32"},
	{name: "mixed", staggered: true, change: func(o *runner.LoadOptions, _ load) { o.Core.MaxBatch = 6 }},
	{name: "chunk 16", change: chunk(16)},
	{name: "chunk 64", change: chunk(64)},
	{name: "no chunks", change: func(o *runner.LoadOptions, _ load) { o.Core.ChunkPrefill = false }},
	{name: "equal progress", change: func(o *runner.LoadOptions, _ load) {
		o.Core.Chunking, o.Core.MaxNumTokens, o.Core.MaxBatch, o.Core.Queue = scheduler.EqualProgress, 72, 8, scheduler.Priority
	}},
	{name: "block 8", change: block(8), twice: true, happened: hits, share: true},
	{name: "block 16", change: block(16), twice: true, happened: hits},
	{name: "block 32", change: block(32), twice: true, happened: hits, share: true},
	{name: "block 64", change: block(64), twice: true, happened: hits},
	{name: "reuse alone", change: reuse, alone: true, twice: true, happened: hits},
	{name: "overlap", change: overlap},
	{name: "overlap, chunks of 16, reuse", change: all(chunk(16), block(16), overlap), staggered: true, twice: true, happened: hits, share: true},
	{name: "pauses", change: squeeze, happened: pauses},
	{name: "pauses, reuse and overlap", change: all(squeeze, reuse, overlap), twice: true, happened: pauses, share: true},
	{name: "split", split: true},
	{name: "split, blocks of 32, chunks of 64, reuse", change: all(block(32), chunk(64)), split: true, twice: true, happened: hits},
	{name: "split, blocks of 8 from 32", change: blocks(32, 8), split: true, twice: true, happened: hits},
	{name: "split, blocks of 32 from 8", change: blocks(8, 32), split: true, twice: true, happened: hits},
	{name: "split, pauses and overlap", change: all(squeeze, reuse, overlap), split: true, share: true, happened: pauses},
}

// requests are of all lengths, half of them with a common beginning, greedy and
// seeded, some with penalties or several choices.
func requests(l load) (out []*request.Request) {
	for i := range l.requests {
		r := &request.Request{MaxTokens: l.tokens, Sampling: request.DefaultSampling(), DPRank: -1, Priority: float64(i%3) / 2}
		for j := range 1 + (l.prompt-1)*(i%8)/7 {
			salt := i / 8
			if i%2 == 0 && j < l.prompt/2 {
				salt = 0
			}
			r.Prompt = append(r.Prompt, int32((j*j*7+salt*131+j+11)%l.vocab))
		}
		p := &r.Sampling
		p.Logprobs, p.IgnoreEOS = 2, true
		if p.Temperature = 0; i%3 > 0 {
			p.Temperature, p.Seeded, p.Seed, p.TopK = 0.9, true, uint64(i), 40
		}
		if i%5 == 4 {
			p.RepetitionPenalty, p.PresencePenalty = 1.2, 0.5
		}
		if i%8 == 3 {
			r.Choices = 3
		}
		out = append(out, r)
	}
	return out
}

// run does the work of a variant once and returns the answers.
func (v *variant) run(t *testing.T, from, to *runner.Engine, l load, first int64) []answer {
	t.Helper()
	list := requests(l)
	if v.ask != nil {
		list = v.ask()
	}
	out := make([]answer, len(list))
	one := func(i int, seen func(int)) {
		var err error
		if v.single {
			list[i].Choices = 1
		}
		if v.split {
			out[i], err = handOver(t.Context(), from, to, list[i], first+int64(i), seen)
		} else {
			out[i], _, err = ask(t.Context(), to, list[i], nil, seen)
		}
		if err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	var wg sync.WaitGroup
	for i := range list {
		if v.alone {
			one(i, nil)
			continue
		}
		ready := make(chan struct{})
		var once sync.Once
		wg.Go(func() {
			one(i, func(n int) {
				if n >= 3 {
					once.Do(func() { close(ready) })
				}
			})
			once.Do(func() { close(ready) })
		})
		if v.staggered {
			<-ready
		}
	}
	wg.Wait()
	return out
}

// check runs a variant and compares its answers.
func (v *variant) check(t *testing.T, path string, l load, want []answer) []answer {
	t.Helper()
	var from *runner.Engine
	role := executor.Mixed
	if v.split {
		from, role = start(t, path, executor.Ctx, v, l), executor.Gen
	}
	to := start(t, path, role, v, l)
	var got []answer
	passes := 1
	if v.twice {
		passes = 2
	}
	// What a pass shows may depend on when its requests come, which a busy machine
	// delays: then there is another.
	for pass := 0; pass < passes || pass < mostPasses && !t.Failed() && !v.shown(to); pass++ {
		got = v.run(t, from, to, l, int64(1+1000*pass))
		for i := range want {
			w := want[i]
			if v.single {
				w = w[:1]
			}
			if !t.Failed() && !reflect.DeepEqual(got[i], w) {
				t.Errorf("request %d, pass %d: %+v\n\talone %+v", i, pass, got[i], w)
			}
		}
	}
	if !v.shown(to) {
		t.Errorf("the load does not show what it is for: %+v", to.Stats(time.Minute))
	}
	return got
}

// mostPasses is how often the work is done at most.
const mostPasses = 20

// shown reports whether the engine has shown what the variant is for.
func (v *variant) shown(e *runner.Engine) bool {
	return v.happened == nil || v.happened(e.Stats(time.Minute))
}

func compare(t *testing.T, path string, l load, list []variant) {
	var want []answer
	for i := range list {
		v := &list[i]
		t.Run(v.name, func(t *testing.T) {
			got := v.check(t, path, l, want)
			if want == nil {
				want = got
			}
		})
	}
	if len(want) != l.requests || len(want[0][0]) != l.tokens {
		t.Fatalf("%d answers", len(want))
	}
}

func TestTinyModelIsAlwaysTheSame(t *testing.T) {
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 7); err != nil {
		t.Fatal(err)
	}
	compare(t, dir, load{requests: 32, tokens: 40, prompt: 150, pool: 8192, tight: 320, vocab: 512}, variants)
}

// TestSoakDefaultModelIsAlwaysTheSame has only a share of the variants unless
// SOAK is set.
func TestSoakDefaultModelIsAlwaysTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("the tiny model does for the race detector")
	}
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		t.Skip("the default model is not in the cache; `make test` fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	list, l := variants, load{requests: 32, tokens: 40, prompt: 150, pool: 8192, tight: 320, vocab: 49152}
	if os.Getenv("SOAK") == "" {
		// The three choices of one request need 7 blocks at a time; tight are 5.
		list, l.requests, l.tokens, l.prompt, l.tight = nil, 8, 10, 55, 80
		for _, v := range variants {
			if v.share {
				list = append(list, v)
			}
		}
	}
	compare(t, path, l, list)
}
