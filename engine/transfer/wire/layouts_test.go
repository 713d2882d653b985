package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"tandem/engine/transfer"
)

// division is how one side has its blocks: pp stages of layers by tp runs of heads,
// as engine-core §9.2 has it, and how many tokens a block has.
type division struct{ tp, pp, block int }

func (d division) String() string { return fmt.Sprintf("tp%d pp%d B%d", d.tp, d.pp, d.block) }

func (d division) layout(l transfer.Layout) transfer.Layout {
	l.BlockTokens = d.block
	return l
}

func (d division) parts(l transfer.Layout) (parts []transfer.Part) {
	for stage := range d.pp {
		for rank := range d.tp {
			p := transfer.Part{FirstLayer: stage * l.Layers / d.pp, FirstHead: rank * l.KVHeads / d.tp, Heads: 1}
			p.Layers = (stage+1)*l.Layers/d.pp - p.FirstLayer
			if d.tp < l.KVHeads {
				p.Heads = l.KVHeads / d.tp
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// side is a worker's memory: a pool for each of its ranks.
type side struct {
	division
	l      transfer.Layout
	of     []transfer.Part
	pools  []*pool
	memory transfer.Memory
}

// newSide makes the memory of a worker; shared is for a pool of whole blocks that
// others could map.
func newSide(t testing.TB, d division, l transfer.Layout, blocks int, shared bool) *side {
	s := &side{division: d, l: d.layout(l), of: d.parts(l)}
	var memories []transfer.Memory
	for _, p := range s.of {
		size := s.l.BlockBytes() / l.Layers / l.KVHeads * p.Layers * p.Heads
		made := newPool
		if shared && len(s.of) == 1 {
			made = func(blocks, size int) *pool { return newSharedPool(t, blocks, size) }
		}
		s.pools = append(s.pools, made(blocks, size))
		memories = append(memories, s.pools[len(s.pools)-1])
	}
	if s.memory = memories[0]; len(memories) > 1 {
		var err error
		if s.memory, err = Join(s.l, memories, s.of); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// each calls f for the elements of a rank's part of a block whose first token is
// first: where the element is, and what it is of. Keys of a head are
// [dim/2][token][2] and values [token/2][dim][2], as in the CPU's cache.
func (s *side) each(rank int, block []byte, first, tokens int, f func(at []byte, want uint16)) {
	b, hd, p := s.block, s.l.HeadDim, s.of[rank]
	for layer := range p.Layers {
		for kv := range 2 {
			for head := range p.Heads {
				tile := ((layer*2+kv)*p.Heads + head) * b * hd
				name := ((p.FirstLayer+layer)*2+kv)*s.l.KVHeads + p.FirstHead + head
				for t := 0; t < b && first+t < tokens; t++ {
					for d := range hd {
						i := tile + (d/2*b+t)*2 + d%2
						if kv == 1 {
							i = tile + (t/2*hd+d)*2 + t%2
						}
						f(block[2*i:], uint16((name*4096+first+t)*hd+d)*40503)
					}
				}
			}
		}
	}
}

// eachOf calls f for all elements of a prompt of tokens whose blocks begin at place.
func (s *side) eachOf(place, tokens, from int, f func(at []byte, want uint16)) {
	for rank := range s.of {
		for i := from / s.block; i*s.block < tokens; i++ {
			s.each(rank, s.pools[rank].data[place+i], i*s.block, tokens, f)
		}
	}
}

func (s *side) fill(place, tokens int) {
	s.eachOf(place, tokens, 0, func(at []byte, want uint16) { binary.LittleEndian.PutUint16(at, want) })
}

func (s *side) check(t *testing.T, place, tokens, from int) {
	t.Helper()
	wrong, all := 0, 0
	s.eachOf(place, tokens, from, func(at []byte, want uint16) {
		if all++; binary.LittleEndian.Uint16(at) != want {
			wrong++
		}
	})
	if wrong > 0 || all == 0 {
		t.Fatalf("%d of %d elements are wrong", wrong, all)
	}
	for rank, p := range s.pools {
		for i, block := range p.data {
			if n := (tokens + s.block - 1) / s.block; (i < place+from/s.block || i >= place+n) && !zero(block) {
				t.Fatalf("rank %d: block %d was written, which is none of the pull's", rank, i)
			}
		}
	}
}

func zero(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }

// ways are the byte paths for tables of layouts.
var ways = []struct {
	name   string
	cfg    Config
	shared bool
}{
	{"inproc", Config{}, false},
	{"shm", Config{NoLocal: true}, true},
	{"tcp", Config{NoLocal: true, NoShared: true}, false},
	{"stage", Config{NoLocal: true}, false},
}

// source is a ctx worker of a division and what it says of its transfers.
type source struct {
	*owner
	*side
}

func newSource(t *testing.T, cfg Config, s *side) *source {
	return &source{newOwner(t, cfg, &pool{data: s.pools[0].data, other: s.memory}), s}
}

// lend offers a prompt of tokens whose blocks begin at first.
func (s *source) lend(id transfer.ID, first, tokens int) transfer.Handle {
	h := s.offer(id, first, s.l.Blocks(tokens))
	h.Layout, h.PromptTokens, h.Hashes = s.l, tokens, h.Hashes[:tokens/s.block]
	return h
}

// fetch gets a prompt into the blocks of a worker from place on, which has its
// first held tokens.
func fetch(t *testing.T, p *Puller, events chan transfer.PullEvent, to *side, h transfer.Handle, place, held int) {
	t.Helper()
	order := transfer.Pull{Handle: h, Have: h.Hashes[:held/h.Layout.BlockTokens], BlockTokens: to.block}
	for i := held / to.block; i*to.block < h.PromptTokens; i++ {
		order.Dst = append(order.Dst, int32(place+i))
	}
	p.Start(order)
	g := gen{events: events}
	checkOK(t, g.final(t, h.ID), len(order.Dst))
}

func newDestination(t *testing.T, cfg Config, to *side) (*Puller, chan transfer.PullEvent) {
	events := make(chan transfer.PullEvent, 1000)
	p := NewPuller(cfg, to.memory, func(e transfer.PullEvent) { events <- e })
	t.Cleanup(p.Close)
	return p, events
}

var smallLayout = transfer.Layout{Layers: 6, KVHeads: 2, HeadDim: 16, DType: "F16", Packing: "pairs", KeyLines: 8}

// Blocks are right at every rank of the one side, whatever the ranks of the other.
func TestScenario16Divisions(t *testing.T) {
	const tokens, place = 100, 3
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			for _, from := range []division{{1, 1, 16}, {2, 1, 16}, {4, 1, 16}, {1, 2, 16}, {2, 2, 16}, {4, 3, 16}} {
				ctx := newSide(t, from, smallLayout, 16, way.shared)
				ctx.fill(5, tokens)
				src := newSource(t, way.cfg, ctx)
				id := transfer.ID(0)
				for _, tp := range []int{1, 2, 4} {
					for _, pp := range []int{1, 2, 3, 6} {
						to := newSide(t, division{tp, pp, 16}, smallLayout, 16, false)
						p, events := newDestination(t, way.cfg, to)
						id++
						fetch(t, p, events, to, src.lend(id, 5, tokens), place, 32)
						to.check(t, place, tokens, 32)
					}
				}
			}
		})
	}
}

// Blocks of one size are made of those of another, with any division on both
// sides, also where a block of the owner's is held in part.
func TestScenario16BlockSizes(t *testing.T) {
	const place = 3
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			for _, from := range []division{{1, 1, 8}, {1, 1, 32}, {2, 1, 16}, {4, 2, 32}} {
				for _, tokens := range []int{96, 100} {
					if tokens == 96 && from.tp > 1 {
						continue
					}
					ctx := newSide(t, from, smallLayout, 32, way.shared)
					ctx.fill(5, tokens)
					src := newSource(t, way.cfg, ctx)
					id := transfer.ID(0)
					for _, d := range []division{{1, 1, 0}, {2, 1, 0}, {4, 3, 0}} {
						for _, b := range []int{8, 16, 32, 64} {
							for _, held := range []int{0, 48, 64, tokens / b * b} {
								if held%b != 0 {
									continue
								}
								d.block = b
								to := newSide(t, d, smallLayout, 32, false)
								p, events := newDestination(t, way.cfg, to)
								id++
								fetch(t, p, events, to, src.lend(id, 5, tokens), place, held)
								if held < tokens {
									to.check(t, place, tokens, held)
								}
							}
						}
					}
				}
			}
		})
	}
}

// Sizes that do not divide each other, and blocks whose inside is not known, are
// refused by name.
func TestScenario16Refusals(t *testing.T) {
	for _, way := range ways {
		ctx := newSide(t, division{1, 1, 16}, smallLayout, 16, way.shared)
		src := newSource(t, way.cfg, ctx)
		to := newSide(t, division{1, 1, 24}, smallLayout, 16, false)
		p, events := newDestination(t, way.cfg, to)
		p.Start(transfer.Pull{Handle: src.lend(1, 0, 96), BlockTokens: 24, Dst: []int32{0, 1, 2, 3}})
		checkFailed(t, (&gen{events: events}).final(t, 1), CodeLayout, "blocks of 24 tokens cannot be made of blocks of 16")
		h := src.lend(2, 0, 96)
		h.Layout.KeyLines = 0
		p.Start(transfer.Pull{Handle: h, BlockTokens: 32, Dst: []int32{0, 1, 2}})
		checkFailed(t, (&gen{events: events}).final(t, 2), CodeLayout, "cannot be made")
	}
}

// scenario16 is the layout of engine-core §16, scenario 16.
var scenario16 = transfer.Layout{Layers: 24, KVHeads: 2, HeadDim: 64, DType: "F16", BlockTokens: 16, Packing: "pairs", KeyLines: 32}

// The numbers of scenario 16: how many bytes each rank of the one side gets from
// each rank of the other. Every ctx rank's bytes are its number, so that what
// arrives tells where it is from.
func TestScenario16Numbers(t *testing.T) {
	if n := scenario16.BlockBytes(); n != 196608 || scenario16.Blocks(100) != 7 || 7*n != 1376256 {
		t.Fatalf("%d blocks of %d bytes", scenario16.Blocks(100), n)
	}
	const all, half, quarter = 1376256, 688128, 344064
	for _, c := range []struct {
		ctx, gen division
		want     [][]int // by gen rank and ctx rank, of transfer 4
		other    [][]int // of transfer 5
	}{
		{division{1, 1, 16}, division{1, 1, 16}, [][]int{{all}}, [][]int{{all}}},
		{division{2, 1, 16}, division{1, 1, 16}, [][]int{{half, half}}, [][]int{{half, half}}},
		{division{1, 1, 16}, division{4, 1, 16}, [][]int{{half}, {half}, {half}, {half}}, [][]int{{half}, {half}, {half}, {half}}},
		{division{4, 1, 16}, division{2, 1, 16}, [][]int{{half, 0, 0, 0}, {0, 0, half, 0}}, [][]int{{0, half, 0, 0}, {0, 0, 0, half}}},
		{division{1, 2, 16}, division{1, 1, 16}, [][]int{{half, half}}, [][]int{{half, half}}},
		{
			division{2, 2, 16},
			division{1, 2, 16},
			[][]int{{quarter, quarter, 0, 0}, {0, 0, quarter, quarter}},
			[][]int{{quarter, quarter, 0, 0}, {0, 0, quarter, quarter}},
		},
	} {
		for _, way := range ways {
			t.Run(fmt.Sprintf("%v to %v by %s", c.ctx, c.gen, way.name), func(t *testing.T) {
				ctx := newSide(t, c.ctx, scenario16, 8, way.shared)
				for rank, p := range ctx.pools {
					for _, b := range p.data {
						fillWith(b, byte(rank+1))
					}
				}
				src := newSource(t, way.cfg, ctx)
				to := newSide(t, c.gen, scenario16, 8, false)
				p, events := newDestination(t, way.cfg, to)
				for id, want := range map[transfer.ID][][]int{4: c.want, 5: c.other} {
					fetch(t, p, events, to, src.lend(id, 0, 100), 1, 0)
					if got := to.origins(len(ctx.pools)); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("transfer %d: bytes by gen and ctx rank %v, want %v", id, got, want)
					}
				}
			})
		}
	}
}

func fillWith(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

// origins counts, by rank here and there, whose bytes the blocks have.
func (s *side) origins(ranks int) [][]int {
	out := make([][]int, len(s.pools))
	for i, p := range s.pools {
		out[i] = make([]int, ranks)
		for _, b := range p.data {
			for _, x := range b {
				if x > 0 {
					out[i][x-1]++
				}
			}
		}
	}
	return out
}

// Of two owners of a head both serve about half of 100 transfers.
func TestScenario16OwnersTakeTurns(t *testing.T) {
	for _, way := range ways {
		ctx := newSide(t, division{4, 1, 16}, smallLayout, 1, false)
		for rank, p := range ctx.pools {
			fillWith(p.data[0], byte(rank+1))
		}
		src := newSource(t, way.cfg, ctx)
		to := newSide(t, division{2, 1, 16}, smallLayout, 1, false)
		p, events := newDestination(t, way.cfg, to)
		served := make([]int, 4)
		for id := transfer.ID(1000); id < 1100; id++ {
			fetch(t, p, events, to, src.lend(id, 0, 16), 0, 0)
			for _, from := range to.origins(4) {
				for rank, n := range from {
					if n == 0 {
						continue
					}
					if served[rank]++; n != len(to.pools[0].data[0]) {
						t.Fatalf("%s: transfer %d: %v, a rank's head is of two owners", way.name, id, from)
					}
				}
			}
		}
		for rank, n := range served {
			if n < 40 || n > 60 {
				t.Errorf("%s: rank %d served %d of 100 transfers: %v", way.name, rank, n, served)
			}
		}
	}
}

// Each attention-data-parallel rank of an instance has blocks of its own, which
// a handle names.
func TestScenario16DataParallelRanks(t *testing.T) {
	for _, way := range ways {
		srv, err := Listen(Config{Incarnation: "ctx-1", NoLocal: way.cfg.NoLocal, NoShared: way.cfg.NoShared})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Close)
		for rank := range 2 {
			s := newSide(t, division{2 - rank, 1, 16}, smallLayout, 8, way.shared)
			for r, p := range s.pools {
				for _, b := range p.data {
					fillWith(b, byte(10*rank+r+1))
				}
			}
			o := &owner{srv: srv, got: make(chan any, 1000), leases: map[transfer.ID]*lease{}}
			o.Transport = srv.Rank(rank, s.memory, o.inbox)
			h := o.offer(transfer.ID(rank+1), 0, 7)
			h.Layout, h.PromptTokens, h.Rank, h.Lease = s.l, 112, rank, time.Minute
			to := newSide(t, division{1, 2, 16}, smallLayout, 8, false)
			p, events := newDestination(t, way.cfg, to)
			fetch(t, p, events, to, h, 1, 0)
			if got, first := to.origins(12), 10*rank; got[0][first] == 0 || got[1][first] == 0 || got[0][10-first] != 0 || got[1][10-first] != 0 {
				t.Errorf("%s: rank %d: bytes by gen and ctx rank %v", way.name, rank, got)
			}
		}
	}
}

func TestJoinRefuses(t *testing.T) {
	l := smallLayout
	l.BlockTokens = 16
	parts := division{2, 1, 16}.parts(l)
	half := l.BlockBytes() / 2
	for name, pools := range map[string][]transfer.Memory{
		"1 pools for 2 parts":                {newPool(1, half)},
		"rank 1 has 8 bytes of a block, its": {newPool(1, half), newPool(1, 8)},
	} {
		if _, err := Join(l, pools, parts); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	split := newPool(1, half)
	split.split = true
	m, err := Join(l, []transfer.Memory{splitPool{split}, newPool(1, half)}, parts)
	if err != nil {
		t.Fatal(err)
	}
	in, out := make([]byte, l.BlockBytes()), make([]byte, l.BlockBytes())
	for i := range in {
		in[i] = byte(i * 7)
	}
	if m.Write(0, in); m.Block(0) != nil {
		t.Error("a block in one piece")
	}
	if m.Read(0, out); !slices.Equal(in, out) {
		t.Error("what was written is not what is read")
	}
}
