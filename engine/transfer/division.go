package transfer

import "fmt"

// Part is what one rank has of every block: all tokens of the KV heads from
// FirstHead on in the layers from FirstLayer on, as a block of just these layers
// and heads in the order of a whole one. Tensor parallelism divides heads,
// pipelines divide layers; where there are more ranks than heads, several ranks
// have the same part.
type Part struct {
	FirstLayer, Layers int
	FirstHead, Heads   int
}

// Run is a stretch of bytes that a rank's part of a block and the whole block have
// in common.
type Run struct{ Own, Whole, Bytes int }

// Division tells which bytes of a block each of several ranks has.
type Division struct {
	sizes []int     // bytes of each rank's part of a block
	write [][]Run   // by rank: all it has
	read  [][][]Run // by turn and rank: each byte of a block from one rank
}

// Divide returns the division of blocks of a layout into parts, one for each rank.
// Every head of every layer must be in one of them. The error names what is not.
func Divide(l Layout, parts []Part) (*Division, error) {
	if l.Layers < 1 || l.KVHeads < 1 {
		return nil, fmt.Errorf("divide KV blocks: %d layers with %d heads", l.Layers, l.KVHeads)
	}
	tile := l.BlockBytes() / (2 * l.Layers * l.KVHeads)
	d := &Division{sizes: make([]int, len(parts)), write: make([][]Run, len(parts))}
	owners := make([][]int, l.Layers*l.KVHeads)
	for rank, p := range parts {
		if p.FirstLayer < 0 || p.Layers < 1 || p.FirstLayer+p.Layers > l.Layers || p.FirstHead < 0 || p.Heads < 1 || p.FirstHead+p.Heads > l.KVHeads {
			return nil, fmt.Errorf("divide KV blocks: rank %d has %d layers from %d and %d heads from %d, of %d layers with %d heads",
				rank, p.Layers, p.FirstLayer, p.Heads, p.FirstHead, l.Layers, l.KVHeads)
		}
		d.sizes[rank] = 2 * p.Layers * p.Heads * tile
		for i := p.FirstLayer * l.KVHeads; i < (p.FirstLayer+p.Layers)*l.KVHeads; i++ {
			if h := i % l.KVHeads; h >= p.FirstHead && h < p.FirstHead+p.Heads {
				owners[i] = append(owners[i], rank)
			}
		}
	}
	turns := 1
	for i, have := range owners {
		if len(have) == 0 {
			return nil, fmt.Errorf("divide KV blocks: no rank has head %d of layer %d", i%l.KVHeads, i/l.KVHeads)
		}
		turns = leastMultiple(turns, len(have))
		if turns > maxTurns {
			return nil, fmt.Errorf("divide KV blocks: heads are on as different numbers of ranks as %d and others", len(have))
		}
	}
	for rank, p := range parts {
		d.write[rank] = runsOf(l, p, tile, func(int) bool { return true })
	}
	for turn := range turns {
		of := make([][]Run, len(parts))
		for rank, p := range parts {
			of[rank] = runsOf(l, p, tile, func(i int) bool { return owners[i][turn%len(owners[i])] == rank })
		}
		d.read = append(d.read, of)
	}
	return d, nil
}

// maxTurns bounds the tables of a Division.
const maxTurns = 1 << 10

// runsOf returns what a part has of the heads that want says, which is given
// layer*KVHeads+head. Neighbours are one run.
func runsOf(l Layout, p Part, tile int, want func(i int) bool) (runs []Run) {
	own := 0
	for layer := p.FirstLayer; layer < p.FirstLayer+p.Layers; layer++ {
		for kv := range 2 {
			for h := p.FirstHead; h < p.FirstHead+p.Heads; h, own = h+1, own+tile {
				if !want(layer*l.KVHeads + h) {
					continue
				}
				whole := ((2*layer+kv)*l.KVHeads + h) * tile
				if n := len(runs); n > 0 && runs[n-1].Own+runs[n-1].Bytes == own && runs[n-1].Whole+runs[n-1].Bytes == whole {
					runs[n-1].Bytes += tile
					continue
				}
				runs = append(runs, Run{Own: own, Whole: whole, Bytes: tile})
			}
		}
	}
	return runs
}

// PartBytes is the size of the rank's part of a block.
func (d *Division) PartBytes(rank int) int { return d.sizes[rank] }

// Reads returns what a transfer takes from each rank: together one whole block.
// Transfers with ids that follow each other take what several ranks have from
// each of them in turn.
func (d *Division) Reads(id ID) [][]Run { return d.read[uint64(id)%uint64(len(d.read))] }

// Writes returns, by rank, where each has to get its part from.
func (d *Division) Writes() [][]Run { return d.write }

func leastMultiple(a, b int) int {
	x, y := a, b
	for y > 0 {
		x, y = y, x%y
	}
	return a / x * b
}
