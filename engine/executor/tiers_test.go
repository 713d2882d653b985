package executor

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/blockhash"
	"tandem/engine/kvcache"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// below is what is below the device of a rank: moves wait until a test carries
// them out.
type below struct {
	host  map[int32][]uint64
	files map[blockhash.Hash][]uint64
	queue []Move
	took  time.Duration
}

func withTiers(t fatal, cfg Config) *rank {
	r := newRank(t, cfg)
	r.below = &below{host: map[int32][]uint64{}, files: map[blockhash.Hash][]uint64{}, took: time.Microsecond}
	return r
}

func (r *rank) block(id int32) []uint64 {
	n := r.cfg.BlockTokens
	return r.cache[int(id)*n : (int(id)+1)*n]
}

// take reads what is offloaded at once and keeps the other orders.
func (x *below) take(r *rank, moves []Move) {
	for _, mv := range moves {
		if mv.Kind == kvcache.Offload {
			x.host[mv.Slot] = slices.Clone(r.block(mv.Block))
		}
		x.queue = append(x.queue, mv)
	}
}

// next carries out the oldest order.
func (x *below) next(r *rank, res kvcache.Result) {
	mv := x.queue[0]
	x.queue = x.queue[1:]
	switch mv.Kind {
	case kvcache.Onboard:
		copy(r.block(mv.Block), x.host[mv.Slot])
	case kvcache.Load:
		data, ok := x.files[mv.Hash]
		if copy(r.block(mv.Block), data); !ok {
			res = kvcache.Corrupt
		}
	case kvcache.Spill:
		if res == kvcache.Done {
			x.files[mv.Hash] = slices.Clone(x.host[mv.Slot])
		}
	case kvcache.Erase:
		delete(x.files, mv.Hash)
	case kvcache.EraseAll:
		clear(x.files)
	}
	if res != kvcache.Done && (mv.Kind == kvcache.Onboard || mv.Kind == kvcache.Load) {
		clear(r.block(mv.Block))
	}
	if mv.Job > 0 {
		r.Moved(r.now, MoveDone{Job: mv.Job, Result: res, Took: x.took})
		r.collect()
	}
}

func (x *below) settle(r *rank) {
	for len(x.queue) > 0 {
		x.next(r, kvcache.Done)
	}
}

// finish runs everything to its end, moves too.
func (r *rank) finish(now time.Duration) {
	for range 10000 {
		r.below.settle(r)
		if !r.step(now) && len(r.below.queue) == 0 {
			return
		}
	}
	r.t.Fatalf("still busy")
}

func tierConfig() Config {
	c := holdConfig()
	c.Blocks, c.MaxNumTokens, c.EventBuffer = 14, 64, 0
	c.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 2, DType: "F32"}
	c.Tiers = kvcache.Tiers{HostBlocks: 64, MinPriority: 30}
	return c
}

// evictAll pushes everything off the device.
func evictAll(r *rank, id int) {
	r.submit(ask(id, 1, count(40, 13*4)...), nil)
	r.finish(r.now)
}

func TestHostTierBringsAPromptBack(t *testing.T) {
	r := withTiers(t, tierConfig())
	first := r.submit(ask(1, 4, count(0, 20)...), nil)
	r.finish(0)
	evictAll(r, 2)
	again := append(append(count(0, 20), first.tokens...), 90, 91)
	if got := r.Cached(again, ""); got != 20 {
		t.Fatalf("%d tokens are here", got)
	}
	if got := r.Cached(again, "salt"); got != 0 {
		t.Errorf("INV-13: another salt finds %d tokens", got)
	}
	before := r.prefilled
	second := r.submit(ask(3, 4, again...), nil)
	other := r.submit(ask(4, 2, 1, 2, 3), nil)
	if !r.step(0) || len(other.tokens) != 1 || len(second.tokens) != 0 {
		t.Fatalf("others have to wait for what one request loads: %d, %d tokens", len(other.tokens), len(second.tokens))
	}
	if st := r.Stats(); st.Loading != 1 || st.Running != 2 || st.Holds != 1 {
		t.Errorf("%+v", st)
	}
	r.step(0)
	if r.step(0) {
		t.Error("a step ran for a request whose blocks are on their way")
	}
	r.finish(0)
	if second.usage.CachedTokens != 20 || r.prefilled-before != len(again)-20+3 {
		t.Errorf("%+v, %d tokens prefilled", second.usage, r.prefilled-before)
	}
	r.verifyEnd(true)
	if st := r.Stats(); st.OnboardBytes != 4*uint64(r.cfg.Layout.BlockBytes()) || st.PrefixHitTokens != 20 {
		t.Errorf("%+v", st)
	}
}

// Two requests want the same content: it comes once, and both wait for it.
func TestHostTierServesTwoAtOnce(t *testing.T) {
	r := withTiers(t, tierConfig())
	r.submit(ask(1, 1, count(0, 20)...), nil)
	r.finish(0)
	evictAll(r, 2)
	a := r.submit(ask(3, 2, append(count(0, 20), 1)...), nil)
	b := r.submit(ask(4, 2, append(count(0, 20), 2)...), nil)
	r.step(0)
	onboards := 0
	for _, mv := range r.below.queue {
		if mv.Kind == kvcache.Onboard {
			onboards++
		}
	}
	if st := r.Stats(); st.Loading != 2 || onboards != 4 { // the first block is still on the device
		t.Fatalf("%d load, %d moves", st.Loading, onboards)
	}
	r.Cancel(0, 3)
	r.collect()
	r.finish(0)
	if a.finish != request.FinishCancelled || b.usage.CachedTokens != 20 {
		t.Errorf("%q, %+v", a.finish, b.usage)
	}
	r.verifyEnd(false)
}

func TestLoadThatFailsIsComputed(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(*rank)
		rest uint64
	}{
		{"corrupt", func(r *rank) { r.below.next(r, kvcache.Corrupt) }, 0},
		{"failed", func(r *rank) { r.below.next(r, kvcache.Done); r.below.next(r, kvcache.Failed) }, 0},
		{"overdue", func(r *rank) {
			at, _ := r.NextDeadline()
			if at != loadTimeout {
				t.Fatalf("due at %v", at)
			}
			r.step(at)
		}, 1},
		{"reset", func(r *rank) { r.ResetCache(); r.collect(); r.below.next(r, kvcache.Failed) }, 0},
	} {
		r := withTiers(t, tierConfig())
		r.submit(ask(1, 1, count(0, 20)...), nil)
		r.finish(0)
		evictAll(r, 2)
		cl := r.submit(ask(3, 3, append(count(0, 20), 1, 2)...), nil)
		r.step(0)
		tc.do(r)
		r.finish(r.now)
		r.verifyEnd(true)
		if cl.finish != request.FinishLength {
			t.Errorf("%s: %q %v", tc.name, cl.finish, cl.err)
		}
		if st := r.Stats(); st.DiskRests != tc.rest {
			t.Errorf("%s: %+v", tc.name, st)
		}
	}
}

// A disk that fails is left alone, and used again after its rest.
func TestDiskRests(t *testing.T) {
	cfg := tierConfig()
	cfg.Tiers.HostBlocks, cfg.Tiers.DiskBlocks = 16, 64
	r := withTiers(t, cfg)
	for i := range 4 {
		r.submit(ask(i+1, 1, count(20*i, 40)...), nil)
		for r.step(0) {
		}
		for len(r.below.queue) > 0 {
			res := kvcache.Done
			if r.below.queue[0].Kind == kvcache.Spill {
				res = kvcache.Failed
			}
			r.below.next(r, res)
		}
	}
	if st := r.Stats(); st.DiskRests != 1 || st.DiskBlocks != 0 || st.TierFailed == 0 {
		t.Fatalf("%+v", st)
	}
	r.step(diskRest)
	r.below.settle(r)
	if st := r.Stats(); st.DiskBlocks == 0 {
		t.Errorf("the disk is not used again: %+v", st)
	}
	r.finish(diskRest)
	r.verifyEnd(true)
}

// What takes longer to copy than to compute is computed, and tried again later.
func TestSlowTierIsLeftAlone(t *testing.T) {
	r := withTiers(t, tierConfig())
	r.below.took = time.Second
	id := 0
	round := func(onto time.Duration) bool {
		id++
		r.submit(ask(id, 1, append(count(0, 20), int32(id%90))...), nil)
		before := r.Stats().OnboardBytes
		for range 100 {
			r.below.settle(r)
			b := r.Plan(r.now + onto)
			r.collect()
			if b == nil && len(r.below.queue) == 0 {
				break
			}
			if b != nil {
				r.Apply(r.now+onto, r.run(b))
				r.collect()
			}
		}
		id++
		evictAll(r, id)
		return r.Stats().OnboardBytes > before
	}
	round(time.Millisecond)
	if !round(time.Millisecond) {
		t.Fatal("a tier of unknown speed is not used")
	}
	brought := 0
	for range loadProbe + 2 {
		if round(time.Millisecond) {
			brought++
		}
	}
	if st := r.Stats(); brought < 1 || brought > 3 || st.RecomputedCheaper < loadProbe {
		t.Errorf("brought %d times, %+v", brought, st)
	}
	r.verifyEnd(true)
}

// TestTiersUnderRandomLoad is everything at once: shared prompts of two salts,
// cancels, deadlines, moves that are late or fail, steps that fail, resets.
func TestTiersUnderRandomLoad(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := tierConfig()
		cfg.Blocks = rapid.IntRange(6, 20).Draw(t, "blocks")
		cfg.Tiers.HostBlocks = rapid.IntRange(1, 24).Draw(t, "host")
		cfg.Tiers.DiskBlocks = rapid.IntRange(0, 24).Draw(t, "disk")
		cfg.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization, scheduler.StaticBatch}).Draw(t, "policy")
		cfg.PartialReuse, cfg.ShareInPass = rapid.Bool().Draw(t, "partial"), rapid.Bool().Draw(t, "share")
		cfg.OnboardAlways = rapid.Bool().Draw(t, "always")
		r := withTiers(t, cfg)
		now, id := time.Duration(0), 0
		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				id++
				n := rapid.IntRange(1, 20).Draw(t, "n")
				q := ask(id, rapid.IntRange(1, 3).Draw(t, "g"), rapid.SliceOfN(rapid.Int32Range(0, 1), n, n).Draw(t, "prompt")...)
				q.CacheSalt = rapid.SampledFrom([]string{"", "s"}).Draw(t, "salt")
				if rapid.IntRange(0, 3).Draw(t, "fork") == 0 {
					q.Choices = 2
				}
				r.submit(q, nil)
			},
			"step": func(t *rapid.T) {
				r.failNext = rapid.IntRange(0, 19).Draw(t, "fail") == 0 && r.stats.StepErrors < 4
				r.step(now)
			},
			"hold": func(*rapid.T) {
				r.hold = true
				r.step(now)
				r.hold = false
			},
			"cancel": func(t *rapid.T) {
				if id > 0 {
					r.Cancel(now, request.ID(rapid.IntRange(1, id).Draw(t, "which")))
					r.collect()
				}
			},
			"move": func(t *rapid.T) {
				if len(r.below.queue) == 0 {
					t.Skip()
				}
				r.below.took = time.Duration(rapid.IntRange(0, 1000).Draw(t, "took")) * time.Microsecond
				r.below.next(r, rapid.SampledFrom([]kvcache.Result{kvcache.Done, kvcache.Done, kvcache.Done, kvcache.Corrupt, kvcache.Failed}).Draw(t, "result"))
			},
			"late": func(*rapid.T) { now += loadTimeout },
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "rare") == 0 {
					r.ResetCache()
					r.collect()
				}
			},
		})
		r.finish(now)
		r.verifyEnd(false)
		if n := r.kv.Moving(); n > 0 || r.kv.Free() != cfg.Blocks {
			t.Fatalf("%d moves are open, %d of %d blocks free", n, r.kv.Free(), cfg.Blocks)
		}
	})
}

// TestDecodeThatEvictsDoesNotAllocate lets requests grow into a pool full of cached
// content, which goes to the host and pushes other content out of there.
func TestDecodeThatEvictsDoesNotAllocate(t *testing.T) {
	if checked {
		t.Skip("the checks of invariants allocate")
	}
	cfg := DefaultConfig()
	cfg.Vocab, cfg.MaxSeqLen, cfg.Namespace = 1000, 1<<20, "bench"
	cfg.MaxBatch, cfg.MaxNumTokens, cfg.Blocks, cfg.Tiers.HostBlocks = 16, 8192, 16*64, 64
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{Core: c, results: make([]Sampled, 16)}
	step := func() {
		for _, side := range b.effects {
			for _, mv := range side.Moves {
				if mv.Job > 0 {
					b.Moved(0, MoveDone{Job: mv.Job})
				}
			}
		}
		b.step(0)
	}
	b.submit(16, 1000, 1)
	for b.stats.PrefillTokens < 16000 {
		step()
	}
	b.submit(16, 100, 900)
	for b.stats.DecodeTokens < 16*200 {
		step()
	}
	before := b.Stats()
	if n := testing.AllocsPerRun(320, step); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	if st := b.Stats(); st.EvictedBlocks == before.EvictedBlocks || st.OffloadBytes < before.OffloadBytes {
		t.Errorf("nothing was evicted: %+v", st)
	}
}
