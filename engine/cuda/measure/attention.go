//go:build cuda

package measure

import (
	"fmt"
	"math"
	"math/rand/v2"

	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// cache is a KV cache of several layers in the first buffer, laid out as the engine has it: block
// after block, each with the keys and values of all layers.
type cache struct {
	layers, blocks int
	part           int64 // bytes of the keys of a block and layer
	stride         int64 // elements from block to block
}

// cacheFor fits as many layers as there is room for, so that calls that take turns with them find
// nothing in the second-level cache.
func (b *bench) cacheFor(kv kernels.KV, blocks int) (cache, error) {
	m := b.Model
	c := cache{blocks: blocks, part: int64(m.KVHeads) * int64(b.BlockTokens) * int64(m.HeadDim) * int64(kv.Bytes())}
	c.layers = int(min(32, b.Bytes/(2*c.part*int64(blocks))))
	if c.layers < 1 {
		return c, fmt.Errorf("a cache of %d blocks does not fit %d bytes", blocks, b.Bytes)
	}
	c.stride = 2 * int64(c.layers) * c.part / int64(kv.Bytes())
	return c, nil
}

// of is where the keys and values of a layer begin.
func (b *bench) of(c cache, layer int) (keys, values gpu.Ptr) {
	keys = b.x.At(2 * int64(layer%c.layers) * c.part)
	return keys, keys.At(c.part)
}

// table is the block table of sequences with that many pages each: no two have a block in common,
// and they lie in no order.
func table(seqs, pages int) (starts, ids []int32) {
	for i := range seqs + 1 {
		starts = append(starts, int32(i*pages))
	}
	for _, id := range rand.New(rand.NewPCG(1, 2)).Perm(seqs * pages) { //nolint:gosec // the same each time
		ids = append(ids, int32(id))
	}
	return starts, ids
}

func (b *bench) pages(tokens int) int { return (tokens + b.BlockTokens - 1) / b.BlockTokens }

// uploads puts several arrays on the device.
func (b *bench) uploads(arrays ...[]int32) ([]gpu.Ptr, error) {
	var all []gpu.Ptr
	for _, a := range arrays {
		p, err := b.ints(a)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (b *bench) geometry(stride int64) {
	m := b.Model
	b.args.I32(m.Heads).I32(m.KVHeads).I32(m.HeadDim).I32(b.BlockTokens).I64(stride).
		F32(float32(1 / math.Sqrt(float64(m.HeadDim)))).F32(1)
}

// decodeAttention reads caches of 16 and of 8 bits.
func (b *bench) decodeAttention() error {
	for _, kv := range []kernels.KV{kernels.KVBF16, kernels.KVE4M3} {
		if err := b.decodeFrom(kv); err != nil {
			return fmt.Errorf("cache of %s: %w", kv, err)
		}
	}
	return nil
}

func (b *bench) decodeFrom(kv kernels.KV) error {
	m := b.Model
	d, err := kernels.DecodeKernel(kv, m.HeadDim, m.Heads/m.KVHeads)
	if err != nil {
		return err
	}
	k, err := b.kernel(d.Name)
	if err != nil {
		return err
	}
	l := d.Launch(b.dev.Info().Multi)
	partial, err := b.alloc(int64(d.Partial(l)))
	if err != nil {
		return err
	}
	for _, batch := range b.Batches {
		c, err := b.cacheFor(kv, batch*b.pages(b.Context))
		if err != nil {
			return err
		}
		n := d.Counters(batch, m.Heads, m.KVHeads)
		rows, lengths := make([]int32, batch), make([]int32, batch)
		for i := range rows {
			rows[i], lengths[i] = int32(i), int32(b.Context)
		}
		starts, ids := table(batch, b.pages(b.Context))
		p, err := b.uploads(rows, lengths, starts, ids, kernels.DecodeTiles(nil, lengths), make([]int32, n))
		if err != nil {
			return err
		}
		width := int64(batch * m.Heads * m.HeadDim)
		r := Result{
			Name: "decode attention, cache of " + kv.String(), Batch: batch, Context: b.Context,
			Bytes: 2*float64(c.part)*float64(c.blocks) + 4*float64(width),
		}
		if err := b.report(r, func(i int) error {
			keys, values := b.of(c, i)
			b.args.Reset().Ptr(b.y.At(2 * width)).Ptr(b.y).Ptr(keys).Ptr(values)
			b.args.Ptr(p[0]).Ptr(p[1]).Ptr(p[2]).Ptr(p[3]).Ptr(p[4]).Ptr(partial).Ptr(p[5]).I32(batch)
			b.geometry(c.stride)
			return b.launch(k, l)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) prefillAttention() error {
	m := b.Model
	f, err := kernels.PrefillKernel(kernels.KVBF16, m.HeadDim, m.Heads/m.KVHeads)
	if err != nil {
		return err
	}
	k, err := b.kernel(f.Name)
	if err != nil {
		return err
	}
	if err := k.AllowShared(f.Launch(1, m.KVHeads).Shared); err != nil {
		return err
	}
	for _, tokens := range b.Chunks {
		c, err := b.cacheFor(kernels.KVBF16, b.pages(tokens))
		if err != nil {
			return err
		}
		rows, zero := []int32{int32(tokens)}, []int32{0}
		tiles := f.Tiles(nil, zero, rows, zero)
		starts, ids := table(1, b.pages(tokens))
		p, err := b.uploads(tiles, []int32{0, int32(tokens)}, zero, starts, ids)
		if err != nil {
			return err
		}
		width := int64(tokens * m.Heads * m.HeadDim)
		// Two products of which the causal mask leaves half, two operations an element.
		r := Result{Name: "prefill attention", Rows: tokens, Flop: 2 * float64(tokens) * float64(tokens) * float64(m.Heads*m.HeadDim)}
		if err := b.report(r, func(i int) error {
			keys, values := b.of(c, i)
			b.args.Reset().Ptr(b.y.At(2 * width)).Ptr(b.y).Ptr(keys).Ptr(values).Ptr(p[0]).Ptr(p[1]).Ptr(p[2]).Ptr(p[3]).Ptr(p[4])
			b.geometry(c.stride)
			return b.launch(k, f.Launch(len(tiles)/2, m.KVHeads))
		}); err != nil {
			return err
		}
	}
	return nil
}
