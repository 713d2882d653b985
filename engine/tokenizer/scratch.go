package tokenizer

import "sync"

// scratch is the reusable working memory of one Encode call.
type scratch struct {
	runes        []rune
	pieces, next []string
	spans        []span
	syms         []symbol
	heap         mergeHeap
}

const (
	maxKeptScratch = 1 << 16 // elements; larger buffers are left to the collector
	maxKeptPieces  = 1 << 12 // strings; they must be cleared each time
)

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

func getScratch() *scratch { return scratchPool.Get().(*scratch) }

func (sc *scratch) put() {
	if cap(sc.runes) > maxKeptScratch || cap(sc.syms) > maxKeptScratch ||
		cap(sc.pieces) > maxKeptPieces || cap(sc.next) > maxKeptPieces {
		return
	}
	// Drop the windows into the prompt, so that a pooled buffer keeps no text alive.
	clear(sc.pieces[:cap(sc.pieces)])
	clear(sc.next[:cap(sc.next)])
	scratchPool.Put(sc)
}
