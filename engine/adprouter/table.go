package adprouter

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

// Row is what the decisions of this package need of one rank's record in an
// exchange. A table has the rows of all ranks, by rank.
type Row struct {
	Intent        Intent // of the scheduled batch
	CtxRequests   uint16 // scheduled
	GenRequests   uint16 // scheduled
	Flags         uint32 // votes that keep the instance awake
	Active        uint32 // routed here and not closed; no pad, no retiring, no transfer
	Retiring      uint32 // last token made, still resident
	PendingNew    uint32 // rank 0: requests not delivered yet
	PayloadBytes  uint32 // this rank's part of the payload gather that follows
	ActiveTokens  uint64 // as the router in force counts them
	QueuedPrefill uint64 // prompt tokens still to compute
}

// States appends the load of each rank, as the router wants it, to dst[:0].
func States(rows []Row, dst []RankState) []RankState {
	dst = dst[:0]
	for i := range rows {
		r := &rows[i]
		dst = append(dst, RankState{
			// Bounded, so that no peer can make a score overflow.
			Active: int(min(r.Active, maxCap)), Tokens: int64(min(r.ActiveTokens, maxTokens)),
			QueuedPrefill: int64(min(r.QueuedPrefill, maxTokens)), Decoding: int(r.GenRequests),
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
