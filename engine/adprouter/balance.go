package adprouter

// Balance holds prefill back until all ranks have some, or until they have
// waited long enough, so that ranks do not prefill one after the other while the
// rest waits for them. Its counters depend on gathered values only.
type Balance struct {
	TimeoutIters      int // longest wait for ranks without prefill
	BatchingWaitIters int // wait for more prefill when all ranks have some and all decode
	MaxBatch          int // decode rows at which a rank has no room for prefill
	// While the least busy rank decodes fewer than ShortBelow requests of its
	// own, the wait is at most ShortTimeoutIters. 0 = off.
	ShortBelow, ShortTimeoutIters int

	waiting, batching int
}

// Counters returns the iterations waited for ranks without prefill and for more
// prefill.
func (b *Balance) Counters() (waiting, batching int) { return b.waiting, b.batching }

// Digest returns a digest of the counters.
func (b *Balance) Digest() uint64 { return mix(mix(uint64(b.waiting)) ^ uint64(b.batching)) }

// step advances the counters and reports whether prefill is held back. A rank
// that will pad counts as one request of the pad's kind, except where real
// requests are meant.
func (b *Balance) step(rows []Row, plan *Plan) (hold bool) {
	free, allCtx, allGen, real := true, true, true, int(^uint(0)>>1)
	for i := range rows {
		ctx, gen := int(rows[i].CtxRequests), int(rows[i].GenRequests)
		real = min(real, gen)
		if plan.Pad[i] && plan.PadKind == Context {
			ctx++
		} else if plan.Pad[i] {
			gen++
		}
		free = free && gen < b.MaxBatch
		allCtx = allCtx && ctx > 0
		allGen = allGen && gen > 0
	}
	if free && allCtx {
		b.waiting = 0
		switch {
		case !allGen:
			return false
		case b.batching < b.BatchingWaitIters:
			b.batching++
			return true
		}
		b.batching = 0
		return false
	}
	timeout := b.TimeoutIters
	if b.ShortBelow > 0 && real < b.ShortBelow {
		timeout = min(timeout, b.ShortTimeoutIters)
	}
	b.waiting++
	if b.waiting >= timeout || !allGen {
		b.waiting = 0
		return false
	}
	return true
}
