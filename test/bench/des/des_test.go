package des

import (
	"fmt"
	"hash/fnv"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/transfer"
	"tandem/serve/router"
	"tandem/test/bench/profile"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// small is a group of instances with small pools and cheap tokens.
func small(role executor.Role, instances, ranks int) Group {
	core := executor.DefaultConfig()
	core.Role, core.Namespace, core.Vocab, core.EventBuffer = role, "m", Vocab, 0
	core.Blocks, core.MaxSeqLen, core.MaxBatch, core.MaxQueued = 2000, 8192, 32, 1<<20
	core.Layout = transfer.Layout{Layers: 4, KVHeads: 2, HeadDim: 32, DType: "F16", BlockTokens: core.BlockTokens}
	adp := adprouter.DefaultSettings()
	adp.Conversations = true
	return Group{
		Instances: instances, Ranks: ranks, Core: core, ADP: adp, Router: router.Config{Type: router.KindConversation},
		Cost:       profile.Coefficients{Iteration: 2e-3, CtxToken: 1e-5, GenRequest: 1e-4, GenContext: 1e-8},
		Collective: 50 * time.Microsecond,
	}
}

func smallNet() Net {
	return Net{Hop: 200 * time.Microsecond, Setup: time.Millisecond, Bandwidth: 1e9, RankSetup: time.Millisecond, RankBand: 1e10}
}

// chats is a cluster with conversations.
func chats(seed uint64, live int) Config {
	w := workload.MultiTurn(workload.MultiTurnOptions{
		Conversations: 4000, Turns: workload.Geometric(6), First: workload.LogNormal(200, 0.7), Next: workload.LogNormal(60, 0.7),
		Output: workload.LogNormal(20, 0.5), Think: workload.Exponential(0.2), Seed: seed,
	})
	return Config{
		Seed: seed, Ctx: small(executor.Ctx, 2, 4), Gen: small(executor.Gen, 1, 2), Net: smallNet(), Frontends: 2, Workload: w,
		Load: schedule.Options{Mode: schedule.Sessions, Concurrency: live, Seed: seed}, Warmup: time.Second, Measure: 4 * time.Second, Retries: 1,
	}
}

func run(t *testing.T, cfg Config) (*Sim, *Result) {
	t.Helper()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, s.Run(0, nil)
}

// digest is a number for all that a run measured.
func digest(r *Result) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%+v %+v %+v", r.Records, r.Ctx, r.Gen)
	return h.Sum64()
}

func TestSameConfigSameRun(t *testing.T) {
	_, a := run(t, chats(1, 60))
	_, b := run(t, chats(1, 60))
	_, c := run(t, chats(2, 60))
	if len(a.Good()) < 500 || digest(a) != digest(b) {
		t.Errorf("%d requests, digests %x and %x", len(a.Good()), digest(a), digest(b))
	}
	if digest(a) == digest(c) {
		t.Error("another seed gives the same run")
	}
}

// Tokens and blocks are conserved, also when clients leave, workers end and
// links are slow.
func TestConservation(t *testing.T) {
	cfg := chats(3, 80)
	cfg.Load.Requests, cfg.Measure = 2500, 2*time.Minute
	for i := range cfg.Workload.Requests {
		if workload.Mix(cfg.Seed, uint64(i))%10 == 0 {
			cfg.Workload.Requests[i].Leave = 15 * time.Millisecond
		}
	}
	cfg.Faults = []Fault{
		{Kind: Kill, Instance: 1, At: 2 * time.Second, For: time.Second},
		{Kind: SlowRank, Instance: 0, Rank: 2, At: 3 * time.Second, For: time.Second, Factor: 4},
		{Kind: SlowLink, Instance: 0, At: 4 * time.Second, For: time.Second, Factor: 0.02},
		{Kind: LostDone, Instance: 0, At: 6 * time.Second, For: 200 * time.Millisecond},
	}
	s, r := run(t, cfg)
	bad := map[string]int{}
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Error != "" {
			bad[rec.Error]++
			continue
		}
		if rec.Out != rec.Asked || rec.First < rec.Send || rec.Last < rec.First || rec.Cached >= rec.In {
			t.Fatalf("%+v", *rec)
		}
	}
	if s.clients.live != 0 || r.Unfinished != 0 || s.clients.sent != 2500 || len(s.pullers) != 0 {
		t.Errorf("%d of %d requests have no end, %d pulls", s.clients.live, s.clients.sent, len(s.pullers))
	}
	if bad["cancelled"] < 50 || len(bad) > 2 {
		t.Errorf("ends: %v", bad)
	}
	var expired, recomputed uint64
	for _, in := range append(s.ctx, s.gen...) {
		for _, k := range in.ranks {
			st := k.core.Stats()
			expired, recomputed = expired+st.LeasesExpired, recomputed+st.Recomputed
			if st.BlocksFree+st.BlocksReusable != st.BlocksTotal || st.Holds+st.Running+st.Waiting+st.HandoffsOpen > 0 {
				t.Errorf("%s rank %d: left over %+v", in.ID, k.id, st)
			}
			if err := k.core.Check(); err != nil {
				t.Error(err)
			}
		}
	}
	if r.Leaked != 0 {
		t.Errorf("%d blocks leaked", r.Leaked)
	}
	if recomputed == 0 || expired > recomputed/3 {
		t.Errorf("%d leases expired although gen workers gave them up: %d prompts were computed there", expired, recomputed)
	}
}

// queueing is one rank that serves one request after the other.
func queueing(rate float64, size workload.Dist, n int) Config {
	g := small(executor.Mixed, 1, 1)
	g.Core.MaxBatch, g.Core.MaxNumTokens, g.Core.BlockReuse, g.Core.PartialReuse = 1, 8192, false, false
	g.Cost = profile.Coefficients{CtxToken: 1e-4}
	net := smallNet()
	net.Hop = 0
	w := workload.Random(workload.RandomOptions{Requests: n, Input: size, Output: workload.Fixed(1), Seed: 1})
	return Config{
		Seed: 1, Ctx: g, Net: net, Frontends: 1, Workload: w,
		Load: schedule.Options{Mode: schedule.Rate, Rate: rate, Seed: 9}, Measure: seconds(float64(n) / rate * 0.98),
	}
}

// The mean wait of a queue with one server follows Pollaczek and Khinchine, and
// Little's law holds.
func TestQueueingTheory(t *testing.T) {
	for _, c := range []struct {
		name string
		rate float64
		size workload.Dist
		n    int
	}{
		{"M/D/1", 300, workload.Fixed(20), 60_000},
		{"M/M/1", 50, workload.Exponential(100), 60_000},
	} {
		cfg := queueing(c.rate, c.size, c.n)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		inside, samples := 0, 0
		r := s.Run(1777*time.Microsecond, func(s *Sim) {
			if s.measuring {
				inside += s.clients.live
				samples++
			}
		})
		var wait, sum, square, stay float64
		for i := range r.Records {
			x := &r.Records[i]
			service := float64(cfg.Ctx.Cost.CtxToken * float64(x.In))
			wait += x.TTFT().Seconds() - service
			stay += x.TTFT().Seconds()
			sum += service
			square += float64(service * service)
		}
		n := float64(len(r.Records))
		rate := n / r.Seconds() // the arrivals that were drawn, not those that were asked for
		want := rate * square / n / 2 / (1 - rate*sum/n)
		if off := wait/n/want - 1; math.Abs(off) > 0.02 {
			t.Errorf("%s: mean wait %.4g s, theory says %.4g (%.1f %%)", c.name, wait/n, want, 100*off)
		}
		little := float64(inside) / float64(samples) / (rate * stay / n)
		if math.Abs(little-1) > 0.01 {
			t.Errorf("%s: Little's law is off by %.2f %%", c.name, 100*(little-1))
		}
	}
}

// Other names of the ranks give the same run under other names.
func TestRankLabelsAreNames(t *testing.T) {
	shape := func(relabel []int) *Result {
		cfg := chats(4, 40)
		cfg.Ctx.Instances, cfg.Frontends = 1, 1
		cfg.Gen, cfg.Ideal = Group{}, Ideal{Step: 5 * time.Millisecond}
		cfg.NoIDs, cfg.ForceRank, cfg.relabel = true, true, relabel
		cfg.Faults = []Fault{{Kind: SlowRank, Rank: relabel[1], At: 2 * time.Second, For: time.Second, Factor: 3}}
		_, r := run(t, cfg)
		return r
	}
	order := []int{2, 0, 3, 1}
	a, b := shape([]int{0, 1, 2, 3}), shape(order)
	if len(a.Records) != len(b.Records) || len(a.Records) < 200 {
		t.Fatalf("%d and %d requests", len(a.Records), len(b.Records))
	}
	for i := range a.Records {
		x, y := a.Records[i], b.Records[i]
		x.CtxRank = order[x.CtxRank]
		if x != y {
			t.Fatalf("%+v\n%+v", x, y)
		}
	}
	for i := range order {
		x, y := a.Ctx[0][i], b.Ctx[0][order[i]]
		if x.Prefill != y.Prefill || x.Padded != y.Padded || x.Waiting != y.Waiting {
			t.Errorf("rank %d: %+v, %+v", i, x, y)
		}
	}
}

// sparse is a load in which hardly two requests meet.
func sparse(ctx, gen Group) Config {
	cfg := chats(5, 1)
	cfg.Ctx, cfg.Gen, cfg.Frontends, cfg.Measure = ctx, gen, 1, 20*time.Second
	cfg.Net.Hop, cfg.Net.Setup, cfg.Net.Bandwidth = 0, 0, 1e15
	return cfg
}

func compare(t *testing.T, a, b Config, slack time.Duration) {
	t.Helper()
	_, x := run(t, a)
	_, y := run(t, b)
	if len(x.Good()) < 50 {
		t.Fatalf("%d requests", len(x.Good()))
	}
	for i := range min(len(x.Records), len(y.Records)) {
		p, q := &x.Records[i], &y.Records[i]
		if d := p.E2E() - q.E2E(); p.ID != q.ID || p.Out != q.Out || p.Cached != q.Cached || d.Abs() > slack {
			t.Fatalf("%v and %v: %+v\n%+v", p.E2E(), q.E2E(), *p, *q)
		}
	}
}

func TestOneRankIsAnEngineAlone(t *testing.T) {
	alone, one := small(executor.Mixed, 1, 1), small(executor.Mixed, 1, 1)
	one.Lockstep, one.Collective = true, 0
	compare(t, sparse(alone, Group{}), sparse(one, Group{}), 3*idlePause)
}

// A hand-over that costs nothing gives what one worker gives that does both.
func TestFreeHandOver(t *testing.T) {
	mixed, ctx, gen := small(executor.Mixed, 1, 1), small(executor.Ctx, 1, 1), small(executor.Gen, 1, 1)
	cfg := sparse(ctx, gen)
	cfg.Load.Requests = 80
	cfg.Workload = workload.Random(workload.RandomOptions{Requests: 200, Input: workload.Uniform(20, 300), Output: workload.Uniform(2, 30), Seed: 2})
	cfg.Load.Mode = schedule.Concurrency
	other := cfg
	other.Ctx, other.Gen = mixed, Group{}
	compare(t, cfg, other, 4*idlePause)
}

// Frontends that go by cached blocks hear of them, and workers without reuse have
// nothing to tell.
func TestFrontendsHearOfBlocks(t *testing.T) {
	cfg := chats(7, 20)
	cfg.NoIDs = true
	cfg.Ctx.Router.Type = router.KindKVAware
	reuse := func(buffer int, on bool) float64 {
		cfg.Ctx.Core.EventBuffer, cfg.Ctx.Core.BlockReuse = buffer, on
		cfg.Ctx.ADP.Conversations, cfg.Ctx.ADP.KVCacheAware = false, on
		_, r := run(t, cfg)
		told := 0
		for i := range r.Records {
			if r.Records[i].CtxWhy == string(router.Cached) {
				told++
			}
		}
		if len(r.Good()) < 100 || on && told == 0 {
			t.Errorf("reuse %v: %d of %d requests go to cached blocks", on, told, len(r.Good()))
		}
		return r.Reuse()
	}
	if on, off := reuse(4096, true), reuse(4096, false); on < 0.4 || off != 0 {
		t.Errorf("reuse %v and %v", on, off)
	}
}

// Sub-agents go where their parents are if frontends read the header, and only then.
func TestSubAgents(t *testing.T) {
	o := workload.C4(60, 3)
	o.System, o.First, o.Growth, o.Output = workload.Fixed(64), workload.Fixed(200), workload.Fixed(40), workload.Fixed(8)
	o.ChildFirst, o.Fanout, o.Turns, o.LongShare = workload.Fixed(60), 0.5, workload.Fixed(6), 0
	for _, header := range []string{"", "X-Parent"} {
		cfg := chats(8, 0)
		cfg.Workload, cfg.Load = workload.Agentic(o), schedule.Options{Mode: schedule.Trees, Concurrency: 20}
		cfg.Rules.ParentHeader, cfg.Frontends, cfg.Ctx.ADP.Rehome, cfg.Measure = header, 1, false, time.Minute
		_, r := run(t, cfg)
		home, apart, children := map[string][2]int{}, 0, 0
		for _, rec := range r.Good() {
			at := [2]int{rec.Ctx, rec.CtxRank}
			if rec.Parent == "" {
				home[rec.Conversation] = at
			} else if parent, ok := home[rec.Parent]; ok {
				if children++; parent != at {
					apart++
				}
			}
		}
		if children < 20 || (apart == 0) != (header != "") {
			t.Errorf("header %q: %d of %d turns of sub-agents run elsewhere", header, apart, children)
		}
	}
}

func TestThousandsOfRanks(t *testing.T) {
	cfg := chats(6, 3000)
	cfg.Ctx = small(executor.Ctx, 20, 64)
	cfg.Ctx.Core.Blocks = 128
	cfg.Ctx.Core.MaxSeqLen = 1024
	cfg.Gen, cfg.Ideal = Group{}, Ideal{Step: 5 * time.Millisecond}
	cfg.Warmup, cfg.Measure = 0, 200*time.Millisecond
	_, r := run(t, cfg)
	if len(r.Ctx) != 20 || len(r.Ctx[19]) != 64 || len(r.Good()) == 0 {
		t.Errorf("%d instances, %d requests", len(r.Ctx), len(r.Good()))
	}
}

func TestBadConfigsAreRefused(t *testing.T) {
	for want, spoil := range map[string]func(*Config){
		"at least one instance": func(c *Config) { c.Ctx.Instances = 0 },
		"frontends":             func(c *Config) { c.Frontends = 0 },
		"workload":              func(c *Config) { c.Workload = nil },
		"duration":              func(c *Config) { c.Measure = 0 },
		"ctx: ranks":            func(c *Config) { c.Ctx.Ranks = 0 },
		"gen: type":             func(c *Config) { c.Gen.Router.Type = "x" },
		"concurrency":           func(c *Config) { c.Load.Concurrency = 0 },
		"bandwidth of hosts":    func(c *Config) { c.Ctx.Core.Tiers.HostBlocks = 1 },
		"disks":                 func(c *Config) { c.Gen.Core.Tiers.DiskBlocks = 1 },
		"net: bandwidths":       func(c *Config) { c.Net.Bandwidth = math.NaN() },
		"to 1e+18 bytes":        func(c *Config) { c.Net.RankBand = math.Inf(1) },
		"1000 to":               func(c *Config) { c.Net.Bandwidth = 1e-21 },
		"hops":                  func(c *Config) { c.Net.Hop = -time.Second },
		"warm-up":               func(c *Config) { c.Warmup = -time.Second },
		"at most":               func(c *Config) { c.Warmup = 2 * longest },
		"a factor is":           func(c *Config) { c.Faults = []Fault{{Kind: SlowRank, Factor: math.NaN()}} },
		"fault 0":               func(c *Config) { c.Faults = []Fault{{Kind: Kill, Instance: 9}} },
	} {
		cfg := chats(1, 1)
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Clusters of ten thousand ranks fit into memory: what a rank costs is its pool's books and little else.
func TestWhatARankCosts(t *testing.T) {
	const instances, ranks, most = 25, 8, 4 << 30 / 10_000
	cfg := chats(6, 20)
	cfg.Ctx = small(executor.Ctx, instances, ranks)
	cfg.Ctx.Core.Blocks, cfg.Ctx.Core.PartialReuse = 1000, false // as Core has it
	cfg.Gen, cfg.Ideal = Group{}, Ideal{Step: 5 * time.Millisecond}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / (instances * ranks)
	if t.Logf("%d bytes a rank of 1000 blocks", each); each > most {
		t.Errorf("a rank takes %d bytes, at most %d are wanted", each, most)
	}
	runtime.KeepAlive(s)
}
