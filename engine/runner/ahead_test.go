package runner

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/sampler"
	"tandem/engine/scheduler"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
)

// lanes are the ways in which start runs steps; "" = in turn.
var lanes = []string{"", "aside", "launched", "launched late"}

// laneOfTests is the one in use: tests that are run once more with another lane
// do not know of it.
var laneOfTests string

// inLane runs a test in all lanes but the usual one.
func inLane(t *testing.T, tests map[string]func(*testing.T)) {
	for _, l := range lanes[1:] {
		for name, test := range tests {
			t.Run(l+"/"+name, func(t *testing.T) {
				laneOfTests = l
				defer func() { laneOfTests = "" }()
				test(t)
			})
		}
	}
}

func TestOverlapIsAsGood(t *testing.T) {
	inLane(t, map[string]func(*testing.T){
		"generates": TestEngineGenerates,
		"refusal":   TestSubmitReportsRefusal,
		"cancel":    TestCancelDuringAStepAndBeforeAdmission,
		"context":   TestNextEndsWithItsContext,
		"failure":   TestFailedStepEndsItsRequestsOnly,
		"panic":     TestPanicEndsEveryRequest,
		"shutdown":  TestShutdownLetsRequestsFinish,
		"choices":   TestCancelledChoicesAllEnd,
		"events":    TestCacheEventsOfAnEngine,
	})
}

// launching queues steps of a device that has no queue: they run at their launch,
// or, late, when they are waited for.
type launching struct {
	Device
	late bool
	open []*step
	last *step
}

type step struct {
	batch  tensor.Batch
	picks  []tensor.Pick
	before *step
	picked []tensor.Picked
	host   []float32
	err    error
	ran    bool
}

func (d *launching) RunPick(*tensor.Batch, []tensor.Pick) ([]tensor.Picked, []float32, error) {
	panic("a step in turn")
}

func (d *launching) Launch(b *tensor.Batch, picks []tensor.Pick) error {
	if len(d.open) == 2 || len(d.open) == 1 && slices.ContainsFunc(d.open[0].picks, func(p tensor.Pick) bool { return p.Host }) {
		panic(fmt.Sprintf("launched behind %d steps", len(d.open)))
	}
	s := &step{picks: slices.Clone(picks), before: d.last}
	s.batch.Reset()
	for i := range b.Seqs() {
		tokens := b.Tokens[b.RowStart[i]:b.RowStart[i+1]]
		s.batch.Add(tokens, int(b.PosStart[i]), b.Pages[b.PageStart[i]:b.PageStart[i+1]], false)
	}
	s.batch.LogitRows = slices.Clone(b.LogitRows)
	s.batch.Feed = slices.Clone(b.Feed)
	d.open, d.last = append(d.open, s), s
	if !d.late {
		d.run(s)
	}
	return nil
}

func (d *launching) Wait() ([]tensor.Picked, []float32, error) {
	s := d.open[0]
	d.open = d.open[1:]
	d.run(s)
	s.before = nil
	return s.picked, s.host, s.err
}

func (d *launching) run(s *step) {
	if s.ran {
		return
	}
	s.ran = true
	for i, from := range s.batch.Feed {
		if from >= 0 && int(from) < len(s.before.picked) {
			s.batch.Tokens[i] = s.before.picked[from].Token
		}
	}
	s.batch.Feed = nil
	logits, err := d.Device.Run(&s.batch)
	if s.err = err; err != nil {
		return
	}
	for i, p := range s.picks {
		row := logits[i*vocab : (i+1)*vocab]
		if p.Host {
			s.host = append(s.host, row...)
			s.picked = append(s.picked, tensor.Picked{})
			continue
		}
		s.picked = append(s.picked, pick(row, p))
	}
}

// pick chooses as the sampler does.
func pick(row []float32, p tensor.Pick) tensor.Picked {
	rules := request.DefaultSampling()
	rules.Temperature, rules.TopP, rules.MinP, rules.TopK, rules.Seed = p.Temperature, p.TopP, p.MinP, p.TopK, p.Seed
	rules.Stream, rules.Logprobs = p.Stream, p.Logprobs
	tok, err := sampler.New(&rules, nil).Sample(slices.Clone(row), int(p.Index), nil)
	if err != nil {
		return tensor.Picked{State: tensor.PickedBad}
	}
	out := tensor.Picked{Token: tok.ID, Rank: int32(tok.Rank), Logprob: tok.Logprob}
	for _, top := range tok.Top {
		out.Top = append(out.Top, tensor.TopPick{Token: top.ID, Logprob: top.Logprob})
	}
	return out
}

// mixing is a device whose logits are a hash of all that a row attends to, as it
// is in the cache.
type mixing struct {
	fails  int // the run that fails, from 1 on; 0 = none
	cache  []uint64
	logits []float32
}

const mixingBlock = 4

func (d *mixing) at(b *tensor.Batch, seq, pos int) *uint64 {
	page := b.Pages[int(b.PageStart[seq])+pos/mixingBlock]
	return &d.cache[int(page)*mixingBlock+pos%mixingBlock]
}

func (d *mixing) Run(b *tensor.Batch) ([]float32, error) {
	d.fails--
	for seq := range b.Seqs() {
		for row := b.RowStart[seq]; row < b.RowStart[seq+1]; row++ {
			pos := int(b.PosStart[seq] + row - b.RowStart[seq])
			*d.at(b, seq, pos) = uint64(b.Tokens[row])<<32 | uint64(pos)
			if d.fails == 0 {
				*d.at(b, seq, pos) = 0
			}
		}
	}
	if d.fails == 0 {
		return nil, errors.New("injected")
	}
	d.logits = d.logits[:0]
	for seq := range b.Seqs() {
		last := b.RowStart[seq+1] - 1
		if !slices.Contains(b.LogitRows, last) {
			continue
		}
		h := uint64(14695981039346656037)
		for pos := range int(b.PosStart[seq]+last-b.RowStart[seq]) + 1 {
			h = (h ^ *d.at(b, seq, pos)) * 1099511628211
			h ^= h >> 29
		}
		for range vocab {
			h = h*6364136223846793005 + 1442695040888963407
			d.logits = append(d.logits, float32(h>>40)/(1<<22))
		}
	}
	return d.logits, nil
}

func (d *mixing) CopyBlockPrefix(from, to int32, n int) error {
	copy(d.cache[int(to)*mixingBlock:][:n], d.cache[int(from)*mixingBlock:])
	return nil
}
func (d *mixing) Check(*tensor.Batch) error { return nil }
func (d *mixing) Progress() uint64          { return 0 }

// mixed makes an engine on a mixing device whose pool is small.
func mixed(t *rapid.T, lane string, cfg executor.Config, fails int) (*Engine, chan error) {
	var d Device = &mixing{fails: fails, cache: make([]uint64, cfg.Blocks*mixingBlock)}
	if lane != "" && lane != "aside" {
		d = &launching{Device: d, late: lane == "launched late"}
	}
	e, err := New(Config{Core: cfg, Info: Info{Vocab: vocab}, Overlap: lane != ""}, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	died := make(chan error, 1)
	go func() { died <- e.Run(t.Context()) }()
	return e, died
}

// TestOverlapGivesTheSame proves OV-8 for the driver: requests with all that the
// sampler knows give the same events in every lane.
func TestOverlapGivesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := executor.DefaultConfig()
		cfg.Vocab, cfg.MaxSeqLen, cfg.Namespace, cfg.BlockTokens = vocab, 100, "test@0", mixingBlock
		cfg.Blocks = rapid.IntRange(30, 60).Draw(t, "blocks")
		cfg.MaxNumTokens, cfg.MaxBatch = rapid.IntRange(9, 40).Draw(t, "rows"), rapid.IntRange(3, 5).Draw(t, "batch")
		cfg.Policy = rapid.SampledFrom([]scheduler.Policy{scheduler.GuaranteedNoEvict, scheduler.MaxUtilization}).Draw(t, "policy")
		cfg.BlockReuse = rapid.Bool().Draw(t, "reuse")
		cfg.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: mixingBlock}
		orders := rapid.SliceOfN(rapid.Custom(drawRequest), 1, 8).Draw(t, "requests")
		fails := rapid.SampledFrom([]int{0, 0, 2, 5, 11}).Draw(t, "fails")
		want := serveAll(t, "", cfg, orders, 0)
		for _, lane := range lanes[1:] {
			got := serveAll(t, lane, cfg, orders, fails)
			for i := range orders {
				if got[i] != want[i] {
					t.Fatalf("%s: request %d:\n%s, want\n%s", lane, i, got[i], want[i])
				}
			}
		}
	})
}

func drawRequest(t *rapid.T) *request.Request {
	p := request.DefaultSampling()
	p.Temperature = rapid.SampledFrom([]float64{0, 0.7}).Draw(t, "temperature")
	p.Seed, p.Seeded = rapid.Uint64().Draw(t, "seed"), true
	p.Logprobs = rapid.SampledFrom([]int{-1, 0, 2}).Draw(t, "logprobs")
	p.TopK = rapid.SampledFrom([]int{0, 5}).Draw(t, "top k")
	if rapid.IntRange(0, 5).Draw(t, "penalty") == 0 {
		p.FrequencyPenalty = 1
	}
	p.MinTokens = rapid.SampledFrom([]int{0, 0, 0, 4}).Draw(t, "min")
	p.EOS = rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 0, 5).Draw(t, "eos")
	return &request.Request{
		Prompt:    rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 40).Draw(t, "prompt"),
		MaxTokens: rapid.IntRange(1, 30).Draw(t, "g"), Sampling: p, DPRank: -1,
		Choices: rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "n"),
	}
}

// serveAll runs the requests side by side and tells what each client saw.
func serveAll(t *rapid.T, lane string, cfg executor.Config, orders []*request.Request, fails int) []string {
	e, died := mixed(t, lane, cfg, fails)
	out := make([]string, len(orders))
	var wg sync.WaitGroup
	for i, o := range orders {
		r := *o
		r.ID = e.NewID()
		s, err := e.Submit(t.Context(), &r, nil)
		if err != nil {
			out[i] = err.Error()
			continue
		}
		wg.Go(func() { out[i] = watch(t, s, r.Answers()) })
	}
	wg.Wait()
	e.Shutdown(t.Context())
	if err := <-died; err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(0); st.BlocksActive != 0 || st.Alive != 0 || len(e.ranks[0].samples.of)+len(e.ranks[0].sinks) != 0 {
		t.Fatalf("%s: left behind: %+v", lane, st)
	}
	return out
}

// watch reads a stream to its end and tells all of it but when it came.
func watch(t *rapid.T, s *Stream, choices int) string {
	all := make([]string, choices)
	for open := choices; open > 0; {
		o, err := s.Next(t.Context())
		if err != nil {
			return err.Error()
		}
		for _, tok := range o.Tokens {
			all[o.Choice] += fmt.Sprintf("%d %v %d %v; ", tok.ID, tok.Logprob, tok.Rank, tok.Top)
		}
		if o.Finish != request.Running {
			all[o.Choice] += fmt.Sprintf("%s %v %d+%d", o.Finish, o.Err, o.Usage.PromptTokens, o.Usage.CompletionTokens)
			open--
		}
	}
	return fmt.Sprint(all)
}
