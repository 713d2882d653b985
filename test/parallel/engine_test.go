package parallel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/hub"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/transfer/wire"
	"tandem/test/ports"
	"tandem/test/tinymodel"
)

// division is how an engine's ranks share a model, and how many processes they
// are spread over.
type division struct {
	name        string
	ranks       int
	attentionDP bool
	splitMLP    bool
	processes   int
	adp         func(*adprouter.Settings)
	role        executor.Role // empty = mixed, without hand-overs
	threads     int           // of all ranks of a process, 0 = 1
	batch       int           // max_num_tokens, 0 = 64
	backend     string        // empty = cpu
	pool        int           // tokens of the KV pool, 0 = 2048
	overlap     *bool         // nil = as the backend likes it
	core        func(*executor.Config)
}

func divisions() []division {
	kv := func(s *adprouter.Settings) { s.KVCacheAware = true }
	talk := func(s *adprouter.Settings) { s.Conversations = true }
	balance := func(s *adprouter.Settings) { s.EnableBalance, s.BatchingWaitIters, s.TimeoutIters = true, 2, 3 }
	return []division{
		{name: "TP 2", ranks: 2},
		{name: "TP 4", ranks: 4},
		{name: "TP 2 in two processes", ranks: 2, processes: 2},
		{name: "ADP 2", ranks: 2, attentionDP: true, adp: talk},
		{name: "ADP 2, KV-cache-aware", ranks: 2, attentionDP: true, adp: kv},
		{name: "ADP 4, balanced", ranks: 4, attentionDP: true, adp: balance},
		{name: "ADP 4, split MLPs", ranks: 4, attentionDP: true, splitMLP: true, adp: talk},
		{name: "ADP 4 in two processes", ranks: 4, attentionDP: true, splitMLP: true, processes: 2, adp: talk},
	}
}

// start runs an engine, or the engines of all its processes, and returns the one
// that takes requests.
func (d division) start(t testing.TB, path string) *runner.Engine {
	t.Helper()
	d.processes = max(d.processes, 1)
	addr := ""
	if d.processes > 1 {
		addr = ports.Address(t)
	}
	loaded := make([]*runner.Loaded, d.processes)
	var wg sync.WaitGroup
	for p := range d.processes {
		core := executor.DefaultConfig()
		core.MaxBatch, core.MaxNumTokens, core.MaxSeqLen = 8, cmp.Or(d.batch, 64), 256
		o := runner.LoadOptions{
			Path: path, Core: core, Threads: cmp.Or(d.threads, 1), Incarnation: fmt.Sprint(d.role, p), PoolTokens: cmp.Or(d.pool, 2048), HangTimeout: 3 * time.Minute,
			Idle:    time.Minute, // so that a wake that is lost shows
			Backend: cmp.Or(d.backend, "cpu"), TokensOnly: true, Ranks: d.ranks, AttentionDP: d.attentionDP, SplitMLP: d.splitMLP, ADP: adprouter.DefaultSettings(),
			Overlap: d.overlap,
		}
		if d.core != nil {
			d.core(&o.Core)
		}
		if d.adp != nil {
			d.adp(&o.ADP)
		}
		if d.role != "" {
			o.Core.Role, o.Core.LocalRecompute, o.Wire = d.role, false, &wire.Config{}
		}
		if d.processes > 1 {
			per := d.ranks / d.processes
			o.Group = &runner.GroupOptions{Addr: addr, First: p * per, Last: (p+1)*per - 1, Key: []byte("secret")}
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if loaded[p], err = runner.Load(t.Context(), o); err != nil {
				t.Errorf("process %d: %v", p, err)
			}
		}()
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	ended := make(chan error, d.processes)
	for _, l := range loaded {
		go func() { ended <- l.Engine.Run(context.Background()) }()
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		loaded[0].Engine.Shutdown(ctx)
		for range loaded {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		for _, l := range loaded {
			l.Close()
		}
	})
	return loaded[0].Engine
}

// answers are what an engine makes of some requests that come all at once:
// greedy and seeded ones, with log-probabilities.
func answers(t *testing.T, e *runner.Engine, vocab, n, tokens int) [][]request.Token {
	t.Helper()
	out := make([][]request.Token, n)
	var wg sync.WaitGroup
	for i, r := range requests(vocab, n, tokens) {
		r.ID = e.NewID()
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if out[i], err = answer(t.Context(), e, r); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	return out
}

func requests(vocab, n, tokens int) (out []*request.Request) {
	for i := range n {
		r := &request.Request{MaxTokens: tokens, Sampling: request.DefaultSampling(), DPRank: -1}
		for j := range 3 + 17*(i%5) {
			r.Prompt = append(r.Prompt, int32((j*j*7+i%3*31+j)%vocab))
		}
		r.ConversationID = fmt.Sprint("c", i%4)
		r.Sampling.Logprobs, r.Sampling.IgnoreEOS = 2, true
		if i%2 == 0 {
			r.Sampling.Temperature = 0
		} else {
			r.Sampling.Seeded, r.Sampling.Seed, r.Sampling.TopK = true, uint64(i), 20
		}
		out = append(out, r)
	}
	return out
}

func compare(t *testing.T, path string, vocab, n, tokens int, all []division) {
	var want [][]request.Token
	t.Run("alone", func(t *testing.T) {
		want = answers(t, division{ranks: 1}.start(t, path), vocab, n, tokens)
	})
	for _, d := range all {
		t.Run(d.name, func(t *testing.T) {
			got := answers(t, d.start(t, path), vocab, n, tokens)
			for i := range want {
				if len(want[i]) != tokens || !reflect.DeepEqual(got[i], want[i]) {
					t.Fatalf("request %d: %+v\n\talone %+v", i, got[i], want[i])
				}
			}
		})
	}
}

// Whole engines give the same tokens and log-probabilities, greedy and seeded, to
// the last bit, however the ranks divide the model and the requests.
func TestEnginesGiveTheSameTokens(t *testing.T) {
	for _, name := range []string{"qwen3moe-mixed", "qwen2-odd", "gguf-qwen3moe-quant"} {
		t.Run(name, func(t *testing.T) {
			m, err := tinymodel.Get(name)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, m.Path, m.Vocab, 20, 8, divisions())
		})
	}
}

// A request that ctx prefills and gen goes on with says the same as one engine
// alone, whatever the ranks of either side are.
func TestHandOversBetweenDivisions(t *testing.T) {
	m, err := tinymodel.Get("qwen3moe-mixed")
	if err != nil {
		t.Fatal(err)
	}
	one, tp2, tp4 := division{ranks: 1}, division{ranks: 2}, division{ranks: 4}
	adp2 := division{ranks: 2, attentionDP: true, adp: func(s *adprouter.Settings) { s.Conversations = true }}
	spread := adp2
	spread.processes = 2
	large, large2 := one, tp2
	large.core = func(c *executor.Config) { c.BlockTokens = 32 }
	large2.core = large.core
	want := answers(t, one.start(t, m.Path), m.Vocab, 12, 8)
	for _, c := range []struct {
		name     string
		ctx, gen division
	}{
		{"TP 2 to one rank", tp2, one},
		{"one rank to TP 2", one, tp2},
		{"TP 4 to TP 2", tp4, tp2},
		{"ADP 2 to ADP 2", adp2, adp2},
		{"ADP 2 to TP 4", adp2, tp4},
		{"TP 2 to ADP 2", tp2, adp2},
		{"ADP over processes to ADP over processes", spread, spread},
		{"blocks of 16 to blocks of 32", one, large},
		{"TP 2 with blocks of 32 to TP 4 with blocks of 16", large2, tp4},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.ctx.role, c.gen.role = executor.Ctx, executor.Gen
			ctx, gen := c.ctx.start(t, m.Path), c.gen.start(t, m.Path)
			for i, r := range requests(m.Vocab, 12, 8) {
				got, err := handOver(t.Context(), ctx, gen, r, int64(i+1))
				if err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
				if !reflect.DeepEqual(got, want[i]) {
					t.Fatalf("request %d: %+v\n\talone %+v", i, got, want[i])
				}
			}
		})
	}
}

func handOver(ctx context.Context, from, to *runner.Engine, r *request.Request, id int64) ([]request.Token, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	first := *r
	first.ID, first.Kind, first.TransferID = from.NewID(), request.ContextOnly, id
	s, err := from.Submit(ctx, &first, nil)
	if err != nil {
		return nil, fmt.Errorf("ctx: %w", err)
	}
	o, err := s.Next(ctx)
	if err != nil {
		return nil, fmt.Errorf("ctx: %w", err)
	}
	if o.Err != nil || o.Finish != request.FinishNotFinished {
		return nil, fmt.Errorf("ctx ended %q: %w", o.Finish, o.Err)
	}
	rest := *r
	rest.ID, rest.Kind, rest.TransferID, rest.FirstTokens = to.NewID(), request.GenerationOnly, id, o.Tokens
	if s, err = to.Submit(ctx, &rest, o.Opaque); err != nil {
		return nil, fmt.Errorf("gen: %w", err)
	}
	return read(ctx, s)
}

func TestDefaultModelEngines(t *testing.T) {
	if testing.Short() {
		t.Skip("tiny models do for the race detector")
	}
	path, err := hub.Locate(hub.DefaultModel)
	if errors.Is(err, hub.ErrNotPulled) {
		t.Skip("the default model is not in the cache; `make test` fetches it")
	}
	if err != nil {
		t.Fatal(err)
	}
	compare(t, path, 49152, 6, 6, divisions()[:5])
}

// Conversations move to another rank with their blocks when their home is busy,
// and nothing of what they say changes.
func TestMovedConversationsGiveTheSameTokens(t *testing.T) {
	m, err := tinymodel.Get("qwen3moe-mixed")
	if err != nil {
		t.Fatal(err)
	}
	eager := func(s *adprouter.Settings) {
		s.Conversations, s.Rehome, s.RehomeGain, s.RehomeMinGain, s.RehomeCooldown, s.RehomeCopyCost = true, true, 0, 1, 0, 0
	}
	var want [][]request.Token
	for _, d := range []division{
		{name: "alone", ranks: 1},
		{name: "in one process", ranks: 2, attentionDP: true, adp: eager},
		{name: "between processes", ranks: 2, attentionDP: true, processes: 2, adp: eager},
	} {
		t.Run(d.name, func(t *testing.T) {
			e := d.start(t, m.Path)
			got := history(t, e, m.Vocab)
			if want == nil {
				want = got
				return
			}
			for i := range want {
				if !reflect.DeepEqual(got[i], want[i]) {
					t.Fatalf("answer %d: %+v\n\talone %+v", i, got[i], want[i])
				}
			}
			moved, borrowed := uint64(0), uint64(0)
			st := e.Stats(time.Minute)
			for _, r := range st.Ranks {
				moved, borrowed = moved+r.Placed["moved"], borrowed+r.Borrowed
			}
			t.Logf("%d requests moved, %d with their blocks", moved, borrowed)
			if moved == 0 || borrowed == 0 {
				t.Errorf("%d requests moved, %d with their blocks: %+v", moved, borrowed, st.Ranks)
			}
		})
	}
}

// history is the answers of conversations of which, after the first turn, only
// those of one rank go on, all together.
func history(t *testing.T, e *runner.Engine, vocab int) (out [][]request.Token) {
	const conversations, turns = 6, 4
	for turn := range turns {
		answers := make([][]request.Token, conversations)
		var wg sync.WaitGroup
		for c := 0; c < conversations; c++ {
			if turn > 0 && c%2 > 0 {
				continue
			}
			r := &request.Request{ID: e.NewID(), MaxTokens: 4, Sampling: request.DefaultSampling(), DPRank: -1, ConversationID: fmt.Sprint(c)}
			r.Sampling.Temperature, r.Sampling.Logprobs, r.Sampling.IgnoreEOS = 0, 1, true
			for j := range 100 + 20*turn {
				r.Prompt = append(r.Prompt, int32((j*j*3+c*11+j)%vocab))
			}
			run := func() {
				defer wg.Done()
				var err error
				if answers[c], err = answer(t.Context(), e, r); err != nil {
					t.Errorf("conversation %d, turn %d: %v", c, turn, err)
				}
			}
			wg.Add(1)
			if turn == 0 {
				run() // one after another, so that each is on the next rank
			} else {
				go run()
			}
		}
		wg.Wait()
		out = append(out, answers...)
	}
	return out
}

func answer(ctx context.Context, e *runner.Engine, r *request.Request) (out []request.Token, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s, err := e.Submit(ctx, r, nil)
	if err != nil {
		return nil, err
	}
	return read(ctx, s)
}

func read(ctx context.Context, s *runner.Stream) (out []request.Token, err error) {
	for {
		o, err := s.Next(ctx)
		if err != nil {
			return out, err
		}
		out = append(out, o.Tokens...)
		if o.Err != nil {
			return out, o.Err
		}
		if o.Finish != request.Running {
			return out, nil
		}
	}
}
