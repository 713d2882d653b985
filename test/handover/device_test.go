package handover

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

const (
	vocab       = 97
	blockTokens = 4
	blocks      = 256
	slotBytes   = 256
)

// layout has blockTokens slots of slotBytes a block.
var layout = transfer.Layout{Layers: 2, KVHeads: 2, HeadDim: 16, DType: "BF16", BlockTokens: blockTokens, Packing: "chain"}

// device is a model whose state at a position is a hash of the token and of the
// whole slot before it, written over all bytes of the position's slot.
type device struct {
	mem     [blocks][]byte
	prefill int // rows computed in sequences of more than one row
	before  func(*tensor.Batch)
}

func newDevice() *device {
	d := &device{}
	for i := range d.mem {
		d.mem[i] = make([]byte, layout.BlockBytes())
	}
	return d
}

func (d *device) Block(id int32) []byte { return d.mem[id] }

func (d *device) slot(pages []int32, pos int) []byte {
	at := pos % blockTokens * slotBytes
	return d.mem[pages[pos/blockTokens]][at : at+slotBytes]
}

func (d *device) Run(b *tensor.Batch) ([]float32, error) {
	if d.before != nil {
		d.before(b)
	}
	var logits []float32
	want := b.LogitRows
	for s := range b.Seqs() {
		pages := b.Pages[b.PageStart[s]:b.PageStart[s+1]]
		from, to := b.RowStart[s], b.RowStart[s+1]
		if to-from > 1 {
			d.prefill += int(to - from)
		}
		for row := from; row < to; row++ {
			pos := int(b.PosStart[s] + row - from)
			h := uint64(b.Tokens[row]) + 1
			if pos > 0 {
				for _, x := range d.slot(pages, pos-1) {
					h = (h ^ uint64(x)) * 0x100000001b3
				}
			}
			slot := d.slot(pages, pos)
			for i := 0; i < slotBytes; i += 8 {
				binary.LittleEndian.PutUint64(slot[i:], h+uint64(i)*0x9e3779b97f4a7c15)
			}
			if len(want) > 0 && want[0] == row {
				want = want[1:]
				logits = append(logits, make([]float32, vocab)...)
				logits[len(logits)-vocab+int(h>>20%vocab)] = 1
			}
		}
	}
	return logits, nil
}

func (d *device) Progress() uint64 { return 0 }

func (d *device) Check(*tensor.Batch) error { return nil }

func (d *device) CopyBlockPrefix(from, to int32, tokens int) error {
	copy(d.mem[to][:tokens*slotBytes], d.mem[from])
	return nil
}

// worker is one engine with its transfer endpoint.
type worker struct {
	*runner.Engine
	dev *device
	srv *wire.Server
}

func start(t *testing.T, role executor.Role, wc wire.Config, change func(*executor.Config)) *worker {
	t.Helper()
	return startEngine(t, role, wc, change, false)
}

// startEngine starts one whose steps may overlap.
func startEngine(t *testing.T, role executor.Role, wc wire.Config, change func(*executor.Config), overlap bool) *worker {
	t.Helper()
	w := &worker{dev: newDevice()}
	wc.Incarnation = string(role) + "-1"
	var err error
	if w.srv, err = wire.Listen(wc); err != nil {
		t.Fatal(err)
	}
	core := executor.DefaultConfig()
	core.Role, core.Namespace, core.Incarnation, core.Endpoint = role, "m@1", wc.Incarnation, w.srv.Endpoint()
	core.Layout, core.Vocab, core.Blocks, core.BlockTokens = layout, vocab, blocks, blockTokens
	core.MaxSeqLen = 512
	if change != nil {
		change(&core)
	}
	tr := w.srv.Rank(0, w.dev, func(m any) { w.Engine.TransferEvent(0, m) })
	info := runner.Info{Role: role, Vocab: vocab, Layout: layout}
	if w.Engine, err = runner.New(runner.Config{Core: core, Info: info, Overlap: overlap}, w.dev, tr); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		w.srv.Close()
	})
	return w
}

// ask runs one request to its end.
func (w *worker) ask(t *testing.T, r *request.Request, opaque []byte) (tokens []request.Token, last runner.Output) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r.ID, r.DPRank = w.NewID(), -1
	r.Sampling = request.DefaultSampling()
	r.Sampling.Temperature = 0
	s, err := w.Submit(ctx, r, opaque)
	if err != nil {
		t.Fatal(err)
	}
	for {
		o, err := s.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, o.Tokens...)
		if o.Finish != request.Running {
			return tokens, o
		}
	}
}

// handOver runs the ctx leg and returns the gen leg's request and handle.
func handOver(t *testing.T, ctx *worker, id int64, prompt []int32, n int) (*request.Request, []byte) {
	t.Helper()
	first, out := ctx.ask(t, &request.Request{Kind: request.ContextOnly, Prompt: prompt, MaxTokens: n, TransferID: id}, nil)
	if out.Finish != request.FinishNotFinished || len(first) != 1 || len(out.Opaque) == 0 {
		t.Fatalf("ctx leg ended with %q, %d tokens, error %v", out.Finish, len(first), out.Err)
	}
	return &request.Request{
		Kind: request.GenerationOnly, Prompt: prompt, MaxTokens: n, TransferID: id, FirstTokens: first,
	}, out.Opaque
}

func prompt(seed, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32((seed*31 + i*i + i*7) % vocab)
	}
	return p
}
