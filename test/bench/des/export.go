package des

import (
	"fmt"
	"time"

	"tandem/test/bench/result"
)

// Export turns the records into those of the result files. All accelerators of
// the cluster are counted in them by the caller.
func (r *Result) Export() []*result.Record {
	out := make([]*result.Record, len(r.Records))
	for i := range r.Records {
		out[i] = r.Records[i].export()
	}
	return out
}

func (r *Record) export() *result.Record {
	x := &result.Record{
		ID: r.ID, Seq: r.Seq, Conversation: r.Conversation, Parent: r.Parent, Phase: result.Measured, Outcome: result.OK,
		Error: r.Error, Sched: int64(r.Sched), Send: int64(r.Send), Header: int64(r.First), First: int64(r.First),
		FirstAnswer: int64(r.First), Last: int64(r.Last), End: int64(r.End), Gaps: r.gaps(),
		Input: r.In, Output: r.Out, AskedInput: r.In, AskedOutput: r.Asked, Counted: "asked", Cached: r.Cached,
		Route: r.RankWhy, Ctx: fmt.Sprintf("ctx-%d/%d", r.Ctx, r.CtxRank),
		Stages: map[string]float64{"queue_ctx": ms(r.QueueCtx), "prefill": ms(r.Prefill)},
	}
	if r.Handed > 0 {
		x.Stages["kv_transfer"] = ms(r.Pulled)
		if r.GenWhy != "" {
			x.Gen = fmt.Sprintf("gen-%d/%d", r.Gen, r.GenRank)
		}
	}
	switch r.Error {
	case "":
		return x
	case "cancelled":
		x.Outcome = result.Cancelled
	case "queue_full", "queue_timeout", "no_servers", "capacity":
		x.Outcome, x.Status = result.Shed, 503
	default:
		x.Outcome, x.Status = result.Failed, 500
	}
	return x
}

// gaps are the times between chunks: the first as it was, the others evenly, so
// that a run of many tokens does not keep a number for each.
func (r *Record) gaps() []int64 {
	if r.Out < 2 || r.Error != "" {
		return nil
	}
	out := make([]int64, r.Out-1)
	out[0] = int64(r.Second - r.First)
	rest := int64(r.Last - r.Second)
	for i := 1; i < len(out); i++ {
		n := int64(len(out) - 1)
		out[i] = rest*int64(i)/n - rest*int64(i-1)/n
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
