package adprouter

import (
	"encoding/binary"
	"fmt"
)

// RowSize is the size of one rank's part of an exchange, in bytes.
const RowSize = 128

// rowVersion is the layout below; rowUsed is where its zeros begin.
const (
	rowVersion = 1
	rowUsed    = 92
)

// Intent is what a rank has to run in an iteration.
type Intent uint8

// The intents, weakest first: the intent of the instance is the greatest.
const (
	None       Intent = iota // no row
	Generation               // rows that decode
	Context                  // at least one row that prefills
)

// String returns the intent as traces write it.
func (i Intent) String() string {
	if i <= Context {
		return [...]string{"none", "generation", "context"}[i]
	}
	return "invalid"
}

// Flags are the votes that ride along with an exchange.
type Flags uint32

// The flags.
const (
	Shutdown       Flags = 1 << iota // the instance ends after this iteration
	Poison                           // this rank cannot go on
	ControlPending                   // a control action waits
	ErrorPresent                     // a local failure; the rank takes part with intent none
	TimeoutPresent                   // a deadline of one of its requests has passed
	flagsEnd
)

// Row is one rank's part of an exchange.
type Row struct {
	Iter          uint64
	ConfigEpoch   uint32
	Rank          uint16
	Intent        Intent
	CtxRequests   uint16 // scheduled
	GenRequests   uint16 // scheduled
	CtxTokens     uint32 // scheduled
	GenTokens     uint32 // scheduled
	Flags         Flags
	Active        uint32 // routed here and not closed, with Waiting; no pad, no retiring, no transfer
	Retiring      uint32
	Waiting       uint32
	PendingNew    uint32 // rank 0: requests not delivered yet
	ActiveTokens  uint64 // as the router in force counts them
	QueuedPrefill uint64 // prompt tokens still to compute
	FreeBlocks    uint32
	PayloadBytes  uint32 // this rank's part of the payload gather that follows
	RouteDigest   uint64
	KVDigest      uint64
	Transfers     uint32 // requests whose blocks are being sent
}

// Encode writes the row, little-endian.
func (r *Row) Encode(b *[RowSize]byte) {
	le := binary.LittleEndian
	*b = [RowSize]byte{}
	le.PutUint64(b[0:], r.Iter)
	le.PutUint32(b[8:], r.ConfigEpoch)
	le.PutUint16(b[12:], r.Rank)
	b[14], b[15] = rowVersion, byte(r.Intent)
	le.PutUint16(b[16:], r.CtxRequests)
	le.PutUint16(b[18:], r.GenRequests)
	le.PutUint32(b[20:], r.CtxTokens)
	le.PutUint32(b[24:], r.GenTokens)
	le.PutUint32(b[28:], uint32(r.Flags))
	le.PutUint32(b[32:], r.Active)
	le.PutUint32(b[36:], r.Retiring)
	le.PutUint32(b[40:], r.Waiting)
	le.PutUint32(b[44:], r.PendingNew)
	le.PutUint64(b[48:], r.ActiveTokens)
	le.PutUint64(b[56:], r.QueuedPrefill)
	le.PutUint32(b[64:], r.FreeBlocks)
	le.PutUint32(b[68:], r.PayloadBytes)
	le.PutUint64(b[72:], r.RouteDigest)
	le.PutUint64(b[80:], r.KVDigest)
	le.PutUint32(b[88:], r.Transfers)
}

// Divergence says that the ranks of an instance no longer agree. It is fatal.
type Divergence struct {
	Rank int
	Iter uint64 // of the exchange in which it was seen
	What string
}

// Error implements error.
func (d *Divergence) Error() string {
	return fmt.Sprintf("divergence at rank %d in iteration %d: %s", d.Rank, d.Iter, d.What)
}

// DecodeTable reads one exchange: table holds the rows of all ranks, by rank. It
// appends to rows[:0]. What is not the row of that rank and iteration, in this
// layout, is a *Divergence.
func DecodeTable(table []byte, iter uint64, rows []Row) ([]Row, error) {
	rows = rows[:0]
	if len(table) == 0 || len(table)%RowSize != 0 {
		return rows, &Divergence{Rank: len(table) / RowSize, Iter: iter, What: fmt.Sprintf("%d bytes are no rows of %d", len(table), RowSize)}
	}
	for rank := range len(table) / RowSize {
		var row Row
		if what := row.decode(table[rank*RowSize:][:RowSize], rank, iter); what != "" {
			return rows, &Divergence{Rank: rank, Iter: iter, What: what}
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (r *Row) decode(b []byte, rank int, iter uint64) (wrong string) {
	le := binary.LittleEndian
	if b[14] != rowVersion {
		return fmt.Sprintf("row version %d, this build has %d", b[14], rowVersion)
	}
	*r = Row{
		Iter: le.Uint64(b[0:]), ConfigEpoch: le.Uint32(b[8:]), Rank: le.Uint16(b[12:]), Intent: Intent(b[15]),
		CtxRequests: le.Uint16(b[16:]), GenRequests: le.Uint16(b[18:]), CtxTokens: le.Uint32(b[20:]), GenTokens: le.Uint32(b[24:]),
		Flags: Flags(le.Uint32(b[28:])), Active: le.Uint32(b[32:]), Retiring: le.Uint32(b[36:]), Waiting: le.Uint32(b[40:]),
		PendingNew: le.Uint32(b[44:]), ActiveTokens: le.Uint64(b[48:]), QueuedPrefill: le.Uint64(b[56:]),
		FreeBlocks: le.Uint32(b[64:]), PayloadBytes: le.Uint32(b[68:]), RouteDigest: le.Uint64(b[72:]), KVDigest: le.Uint64(b[80:]),
		Transfers: le.Uint32(b[88:]),
	}
	switch {
	case int(r.Rank) != rank:
		return fmt.Sprintf("the row is of rank %d", r.Rank)
	case r.Iter != iter:
		return fmt.Sprintf("the row is of iteration %d", r.Iter)
	case r.Intent > Context:
		return fmt.Sprintf("intent %d is unknown", r.Intent)
	case r.Flags >= flagsEnd:
		return fmt.Sprintf("flags %#x are unknown", uint32(r.Flags))
	case r.Waiting > r.Active:
		return fmt.Sprintf("%d requests wait, only %d are active", r.Waiting, r.Active)
	case r.Active > maxCap || r.ActiveTokens > maxTokens || r.QueuedPrefill > maxTokens:
		return fmt.Sprintf("a load of %d requests, %d tokens, %d queued is impossible", r.Active, r.ActiveTokens, r.QueuedPrefill)
	}
	for _, x := range b[rowUsed:] {
		if x != 0 {
			return "bytes that this layout leaves zero are set"
		}
	}
	return ""
}

// Verify compares what all rows must agree on, and looks for a rank that gives
// up. All ranks see the same table, so they all return the same *Divergence.
func Verify(rows []Row) error {
	for rank := range rows {
		row, first := &rows[rank], &rows[0]
		what := ""
		switch {
		case row.Flags&Poison != 0:
			what = "the rank cannot go on"
		case row.ConfigEpoch != first.ConfigEpoch:
			what = fmt.Sprintf("config epoch %d, rank 0 has %d", row.ConfigEpoch, first.ConfigEpoch)
		case row.RouteDigest != first.RouteDigest:
			what = fmt.Sprintf("route digest %016x, rank 0 has %016x", row.RouteDigest, first.RouteDigest)
		default:
			continue
		}
		return &Divergence{Rank: rank, Iter: row.Iter, What: what}
	}
	return nil
}

// States appends the load of each rank, as the router wants it, to dst[:0].
func States(rows []Row, dst []RankState) []RankState {
	dst = dst[:0]
	for i := range rows {
		r := &rows[i]
		dst = append(dst, RankState{
			Active: int(r.Active), Tokens: int64(r.ActiveTokens), QueuedPrefill: int64(r.QueuedPrefill), Decoding: int(r.GenRequests),
		})
	}
	return dst
}

// Idle reports whether nobody has anything to do, so that rank 0 may wait for
// its inbox: nothing active or retiring anywhere, nothing queued, no flag, no
// payload. waiting is the length of the replicated queue.
func Idle(rows []Row, waiting int) bool {
	if waiting > 0 {
		return false
	}
	for i := range rows {
		r := &rows[i]
		if r.Active > 0 || r.Retiring > 0 || r.PendingNew > 0 || r.PayloadBytes > 0 || r.Flags != 0 {
			return false
		}
	}
	return true
}
