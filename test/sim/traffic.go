package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/scheduler"
	"tandem/engine/transfer"
)

// Traffic drives an Instance with random clients: conversations, requests for a
// rank, hand-overs, cancels, aborts, deadlines, and steps that fail.
type Traffic struct {
	In *Instance

	rng   *rand.Rand
	talks []talk
	last  []*Track // sent lately, to be cancelled
	next  request.ID
	rate  float64 // of new requests, an iteration
	turn  int     // most tokens that a turn adds
}

// talk is one conversation: what was said so far, and the turn that is on.
type talk struct {
	key     string
	history []int32
	turn    *Track
}

// RandomInstance draws the settings of an instance and its clients from seed.
// change, if not nil, has the last word on the settings.
func RandomInstance(seed uint64, change func(*InstanceConfig)) (*Traffic, error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := randomConfig(rng)
	if change != nil {
		change(&cfg)
	}
	in, err := NewInstance(cfg, seed)
	if err != nil {
		return nil, err
	}
	tr := &Traffic{In: in, rng: rng, next: 1, rate: []float64{0.05, 0.3, 1}[rng.IntN(3)]}
	tr.turn = 12
	if cfg.Core.MaxSeqLen > 100 {
		tr.turn = 80
	}
	for i := range 2 + rng.IntN(20) {
		tr.talks = append(tr.talks, talk{key: fmt.Sprintf("talk %d", i)})
	}
	tr.faults(in, []float64{0, 0.01, 0.05}[rng.IntN(3)])
	return tr, nil
}

// faults lets steps fail now and then, within what a core bears.
func (tr *Traffic) faults(in *Instance, often float64) {
	const bearable = 6
	steps, boom := make([]int, len(in.Ranks)), errors.New("the device failed")
	strike := func(rank int, p float64) bool {
		if tr.rng.Float64() >= p || steps[rank] == bearable {
			return false
		}
		steps[rank]++
		return true
	}
	in.FailStep = func(rank int) error {
		if strike(rank, often) {
			return boom
		}
		return nil
	}
	in.VoidStep = func(rank int) bool { return strike(rank, often) }
	in.BadToken = func(int) bool { return tr.rng.Float64() < often/4 }
}

func randomConfig(rng *rand.Rand) InstanceConfig {
	ranks := 1 + rng.IntN(8)
	core := executor.DefaultConfig()
	core.Role = []executor.Role{executor.Mixed, executor.Mixed, executor.Ctx, executor.Gen}[rng.IntN(4)]
	core.Vocab, core.Namespace, core.Incarnation = 50000, "m0", "here"
	core.Layout = transfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 4, DType: "F32", Packing: "p"}
	core.BlockTokens, core.MaxSeqLen = 4, 64
	core.Blocks = []int{8, 16, 24, 60}[rng.IntN(4)]
	if rng.IntN(3) == 0 { // room for long conversations, which move
		core.MaxSeqLen, core.Blocks = 256, 150
	}
	core.MaxBatch = 1 + rng.IntN(6)
	core.MaxNumTokens = 5 + rng.IntN(60)
	core.Policy = []scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization}[rng.IntN(2)]
	core.Chunking = []scheduler.Chunking{scheduler.FirstCome, scheduler.EqualProgress}[rng.IntN(2)]
	core.Lease, core.Attach, core.Progress, core.RecvTotal = time.Second, 200*time.Millisecond, 200*time.Millisecond, time.Second
	core.PeerWait = time.Duration(1+rng.IntN(20)) * 100 * time.Millisecond
	core.BlockReuse = rng.IntN(6) > 0
	core.MaxConcurrentRecv = 1 + rng.IntN(4)
	core.LocalRecompute = rng.IntN(4) > 0
	core.QueueTimeout = []time.Duration{0, 300 * time.Millisecond, 2 * time.Second}[rng.IntN(3)]

	router := adprouter.Defaults(ranks, core.EffectiveBatch()+rng.IntN(3))
	router.Kind = []adprouter.Kind{adprouter.Default, adprouter.KVCacheAware, adprouter.ConversationAware}[rng.IntN(3)]
	router.Placement = adprouter.Placements()[rng.IntN(len(adprouter.Placements()))]
	router.StickyCap = []adprouter.StickyCap{adprouter.Hard, adprouter.Soft}[rng.IntN(2)]
	router.MaxSessions = []int{2, 1000}[rng.IntN(2)]
	router.Warmup, router.Compat = rng.IntN(2) == 0, rng.IntN(2) == 0
	router.Rehome.On = rng.IntN(3) > 0
	router.Rehome.MinGain, router.Rehome.Gain, router.Rehome.Cooldown = 4, 100, rng.IntN(20)

	cfg := InstanceConfig{Core: core, Step: lockstep.Config{
		Router: router, CountInTransfer: rng.IntN(2) == 0, MaxQueued: 1 + rng.IntN(64), QueueTimeout: core.QueueTimeout,
	}}
	if rng.IntN(2) == 0 {
		b := adprouter.Balance{
			TimeoutIters: rng.IntN(20), BatchingWaitIters: rng.IntN(10), MaxBatch: core.EffectiveBatch(),
			ShortBelow: rng.IntN(3), ShortTimeoutIters: rng.IntN(5),
		}
		cfg.NewBalance = func() *adprouter.Balance { own := b; return &own }
	}
	return cfg
}

// Run lets clients come for the given number of iterations, then lets everything
// end and the instance drain, and proves that nothing is left.
func (tr *Traffic) Run(iterations int) error {
	in := tr.In
	for range iterations {
		tr.clients()
		if in.Quiet() && tr.rng.IntN(4) > 0 && !in.Rest() && in.err == nil {
			continue // nobody is there
		}
		if _, err := in.Step(); err != nil {
			return err
		}
	}
	if tr.rng.IntN(2) == 0 { // else it drains under load
		if err := in.Settle(20000); err != nil {
			return err
		}
	}
	in.Drain()
	if err := in.Settle(20000); err != nil {
		return err
	}
	if !in.stopped {
		return fmt.Errorf("sim: drained, but the ranks do not stop: %s", in.Dump())
	}
	return in.Left()
}

// clients do what they do between two iterations.
func (tr *Traffic) clients() {
	n := 0
	if tr.rng.Float64() < tr.rate {
		n = 1
	}
	if tr.rng.IntN(40) == 0 {
		n += tr.rng.IntN(12) // a burst
	}
	for range n {
		tr.send()
	}
	if len(tr.last) > 0 && tr.rng.IntN(12) == 0 {
		t := tr.last[tr.rng.IntN(len(tr.last))]
		if t.Req.TransferID != 0 && tr.rng.IntN(2) == 0 {
			tr.In.Abort(transfer.ID(t.Req.TransferID))
		} else {
			tr.In.Cancel(t.Req.ID)
		}
	}
	if t := &tr.talks[tr.rng.IntN(len(tr.talks))]; t.turn != nil && tr.rng.IntN(4) == 0 && tr.moving(t.turn.Req) {
		tr.In.Cancel(t.turn.Req.ID)
	}
	if tr.rng.IntN(200) == 0 {
		tr.In.Abort(transfer.ID(1 << 40)) // of nobody
	}
}

func (tr *Traffic) moving(r *request.Request) bool {
	_, moving := tr.In.Ranks[0].Lock.Router().Moving(adprouter.Key(r))
	return moving
}

// send makes one request.
func (tr *Traffic) send() {
	r := &request.Request{
		ID: tr.next, MaxTokens: 1 + tr.rng.IntN(16), Sampling: request.DefaultSampling(), DPRank: -1,
		CacheSalt: []string{"", "", "salt"}[tr.rng.IntN(3)],
	}
	tr.next++
	if tr.rng.IntN(3) == 0 {
		r.Choices = 1 + tr.rng.IntN(maxChoices)
	}
	if n := len(tr.In.Ranks); tr.rng.IntN(6) == 0 {
		r.DPRank, r.DPRelax = tr.rng.IntN(n), tr.rng.IntN(2) == 0
	}
	if tr.rng.IntN(8) == 0 {
		r.Deadline = tr.In.Now + time.Duration(tr.rng.Int64N(int64(time.Second)))
	}
	talk := tr.speak(r)
	h := tr.handOver(r)
	t := tr.In.Submit(r, h)
	if talk != nil {
		talk.turn = t
	}
	if tr.last = append(tr.last, t); len(tr.last) > 16 {
		tr.last = tr.last[1:]
	}
}

// speak gives a request its prompt: alone, or the next turn of a conversation.
func (tr *Traffic) speak(r *request.Request) *talk {
	if tr.rng.IntN(4) == 0 {
		r.Prompt = tr.tokens(nil, 1+tr.rng.IntN(40))
		return nil
	}
	t := &tr.talks[tr.rng.IntN(len(tr.talks))]
	if t.turn != nil && t.turn.Finish == request.FinishLength {
		t.history = append(slices.Clone(t.turn.Req.Prompt), t.turn.Tokens...)
	}
	if len(t.history) > tr.In.cfg.Core.MaxSeqLen-19 || tr.rng.IntN(20) == 0 {
		t.history = nil
	}
	r.Prompt = tr.tokens(t.history, 1+tr.rng.IntN(tr.turn))
	r.ConversationID, r.CacheSalt = t.key, ""
	return t
}

// tokens appends n tokens, out of few so that prompts share beginnings.
func (tr *Traffic) tokens(to []int32, n int) []int32 {
	out := slices.Clone(to)
	for range n {
		out = append(out, int32(tr.rng.IntN(2)))
	}
	return out
}

// handOver makes some requests legs of one, as the role has it.
func (tr *Traffic) handOver(r *request.Request) *transfer.Handle {
	cfg := &tr.In.Ranks[0].cfg
	ctx, gen := 0.15, 0.15
	switch cfg.Role {
	case executor.Ctx:
		ctx, gen = 1, 0
	case executor.Gen:
		ctx, gen = 0, 0.6
	}
	switch x := tr.rng.Float64(); {
	case x < ctx:
		r.Kind, r.TransferID, r.GenFirst = request.ContextOnly, int64(r.ID), r.Answers() == 1 && tr.rng.IntN(3) == 0
		return nil
	case x < ctx+gen:
		r.Kind, r.TransferID = request.GenerationOnly, int64(r.ID)
		if r.GenFirst = r.Answers() == 1 && tr.rng.IntN(3) == 0; r.GenFirst {
			return external(cfg, r)
		}
		for i := range r.Answers() {
			first := OracleChoice(cfg.Vocab, tr.In.Ranks[0].Root(r), r.Prompt, i, 1)
			r.FirstTokens = append(r.FirstTokens, request.Token{ID: first[0]})
		}
		r.FirstEmitted = tr.rng.IntN(2) == 0
		return external(cfg, r)
	}
	return nil
}
