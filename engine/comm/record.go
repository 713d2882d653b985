package comm

import (
	"encoding/binary"
	"fmt"
)

// RecordBytes is the size of an encoded record.
const RecordBytes = 128

// recordVersion is the layout below. No other one is decoded.
const recordVersion = 1

// recordUsed is where the reserved bytes begin.
const recordUsed = 92

// Intent is what a rank wants to run in an iteration. The batch intent is the
// highest over all ranks.
type Intent uint8

// Intents in ascending order.
const (
	IntentNone Intent = iota
	IntentGen
	IntentCtx
)

// Flags of a record.
const (
	FlagShutdown uint32 = 1 << iota // the rank wants an orderly end
	FlagPoison                      // the rank cannot go on
	FlagControl                     // a control action is pending
	FlagError                       // something failed on the rank; it takes part with intent none
	FlagTimeout                     // a local deadline passed
	flagsEnd
)

// Record is what one rank tells all others in one iteration.
type Record struct {
	Iter        uint64
	ConfigEpoch uint32
	Rank        uint16
	Intent      Intent

	NumCtxReq, NumGenReq uint16 // requests in the batch
	NumCtxTok, NumGenTok uint32 // tokens in the batch
	Flags                uint32

	NumActive     uint32 // routed to the rank and not closed, its waiting queue included
	NumRetiring   uint32 // last token made, not counted in NumActive
	NumWaiting    uint32 // part of NumActive
	NumPendingNew uint32 // rank 0: requests that were not delivered yet
	NumTransfer   uint32 // ctx side: blocks held for a puller, not counted in NumActive

	ActiveTokens     uint64 // load as the router in force counts it
	QueuedPrefillTok uint64
	FreeBlocks       uint32
	PayloadBytes     uint32 // what the rank contributes to the gather that follows

	RouteDigest uint64 // of the replicated routing state
	KVDigest    uint64 // tensor-parallel groups: of scheduling decisions
}

// Put writes the record, little-endian.
func (r *Record) Put(dst *[RecordBytes]byte) {
	b, le := dst[:], binary.LittleEndian
	le.PutUint64(b[0:], r.Iter)
	le.PutUint32(b[8:], r.ConfigEpoch)
	le.PutUint16(b[12:], r.Rank)
	b[14] = recordVersion
	b[15] = byte(r.Intent)
	le.PutUint16(b[16:], r.NumCtxReq)
	le.PutUint16(b[18:], r.NumGenReq)
	le.PutUint32(b[20:], r.NumCtxTok)
	le.PutUint32(b[24:], r.NumGenTok)
	le.PutUint32(b[28:], r.Flags)
	le.PutUint32(b[32:], r.NumActive)
	le.PutUint32(b[36:], r.NumRetiring)
	le.PutUint32(b[40:], r.NumWaiting)
	le.PutUint32(b[44:], r.NumPendingNew)
	le.PutUint64(b[48:], r.ActiveTokens)
	le.PutUint64(b[56:], r.QueuedPrefillTok)
	le.PutUint32(b[64:], r.FreeBlocks)
	le.PutUint32(b[68:], r.PayloadBytes)
	le.PutUint64(b[72:], r.RouteDigest)
	le.PutUint64(b[80:], r.KVDigest)
	le.PutUint32(b[88:], r.NumTransfer)
	clear(b[recordUsed:])
}

// DecodeRecord reads the record of one rank in one iteration. Anything but an
// exact record of that rank and iteration is a *DivergenceError.
func DecodeRecord(src []byte, rank int, iter uint64) (Record, error) {
	if len(src) != RecordBytes {
		return Record{}, diverged("size", rank, iter, RecordBytes, len(src))
	}
	if src[14] != recordVersion {
		return Record{}, diverged("version", rank, iter, recordVersion, src[14])
	}
	le := binary.LittleEndian
	r := Record{
		Iter: le.Uint64(src), ConfigEpoch: le.Uint32(src[8:]), Rank: le.Uint16(src[12:]), Intent: Intent(src[15]),
		NumCtxReq: le.Uint16(src[16:]), NumGenReq: le.Uint16(src[18:]),
		NumCtxTok: le.Uint32(src[20:]), NumGenTok: le.Uint32(src[24:]),
		Flags:     le.Uint32(src[28:]),
		NumActive: le.Uint32(src[32:]), NumRetiring: le.Uint32(src[36:]),
		NumWaiting: le.Uint32(src[40:]), NumPendingNew: le.Uint32(src[44:]),
		ActiveTokens: le.Uint64(src[48:]), QueuedPrefillTok: le.Uint64(src[56:]),
		FreeBlocks: le.Uint32(src[64:]), PayloadBytes: le.Uint32(src[68:]),
		RouteDigest: le.Uint64(src[72:]), KVDigest: le.Uint64(src[80:]),
		NumTransfer: le.Uint32(src[88:]),
	}
	for _, b := range src[recordUsed:] {
		if b != 0 {
			return Record{}, diverged("reserved", rank, iter, 0, b)
		}
	}
	return r, r.check(rank, iter)
}

// check compares a record with its place in the table.
func (r *Record) check(rank int, iter uint64) error {
	switch {
	case int(r.Rank) != rank:
		return diverged("rank", rank, iter, rank, int(r.Rank))
	case r.Iter != iter:
		return diverged("iter", rank, iter, iter, r.Iter)
	case r.Intent > IntentCtx:
		return diverged("intent", rank, iter, "at most 2", fmt.Sprint(r.Intent))
	case r.Flags >= flagsEnd:
		return diverged("flags", rank, iter, fmt.Sprintf("below %#x", flagsEnd), fmt.Sprintf("%#x", r.Flags))
	}
	return nil
}

// checkTable checks every record against its place and the first one.
func checkTable(table []Record, maxPayload uint32) error {
	for rank := range table {
		r := &table[rank]
		if err := r.check(rank, table[0].Iter); err != nil {
			return err
		}
		if r.ConfigEpoch != table[0].ConfigEpoch {
			return diverged("config_epoch", rank, r.Iter, table[0].ConfigEpoch, r.ConfigEpoch)
		}
		if r.PayloadBytes > maxPayload {
			return diverged("payload_bytes", rank, r.Iter, fmt.Sprintf("at most %d", maxPayload), fmt.Sprint(r.PayloadBytes))
		}
	}
	return nil
}
