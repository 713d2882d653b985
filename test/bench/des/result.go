package des

import (
	"math"
	"slices"
	"time"

	"tandem/engine/lockstep"
	"tandem/test/bench/result"
)

// RankStats is what one rank did in the measured time.
type RankStats struct {
	Iterations uint64
	Forwards   uint64            // of its instance
	Padded     uint64            // of those, without an own row
	Waiting    float64           // sum over iterations of requests without blocks
	Used       float64           // sum over iterations of the part of the pool that no new request could have
	Busy       float64           // seconds of own passes
	Passing    float64           // seconds of its instance's passes, which wait for the slowest rank
	Hit, Asked uint64            // prompt tokens found, and looked for
	Prefill    uint64            // tokens computed
	Placed     map[string]uint64 // requests by reason
}

// Result is what a run measured.
type Result struct {
	Start, End time.Duration
	Records    []Record
	Ctx, Gen   [][]RankStats // by instance and rank
	Unfinished int           // sent in the measured time and without an end
	Leaked     int           // blocks that are neither free nor used by a request
	Changes    int           // times that the rank of a root conversation changed

	ranks map[string]int // of root conversations, instance and rank in one number
}

// add takes a request that has ended. Closed loops count what ends in the
// measured time, open ones what was sent in it.
func (r *Result) add(s *Sim, rec *Record) {
	if rec.warm {
		return
	}
	if s.cfg.open() {
		if rec.inside {
			r.Records = append(r.Records, *rec)
		}
	} else if s.measuring {
		r.Records = append(r.Records, *rec)
	}
	if s.measuring && rec.Error == "" && rec.Parent == "" {
		r.change(rec)
	}
}

func (r *Result) change(rec *Record) {
	if r.ranks == nil {
		r.ranks = map[string]int{}
	}
	at := rec.Ctx<<16 | rec.CtxRank
	if before, ok := r.ranks[rec.Conversation]; ok && before != at {
		r.Changes++
	}
	r.ranks[rec.Conversation] = at
}

// mark begins the measured time of a rank.
func (r *rank) mark() {
	r.seen = r.core.Stats()
	r.Rank = RankStats{Placed: map[string]uint64{}}
	if r.lock != nil {
		st := r.lock.Stats(r.in.sim.now)
		r.Rank.Forwards, r.Rank.Padded = -st.Steps, -st.Padded
		for k, n := range st.Placed {
			r.Rank.Placed[k] = -n
		}
	}
}

// observe samples a rank at the exchange of an iteration.
func (r *rank) observe(row *lockstep.Row) {
	r.Rank.Iterations++
	r.Rank.Waiting += float64(row.Waiting)
	r.Rank.Used += 1 - float64(row.FreeBlocks)/float64(r.in.g.Core.Blocks)
}

// close ends the measured time of a rank.
func (r *rank) close() RankStats {
	st := r.core.Stats()
	out := r.Rank
	out.Hit, out.Asked = st.PrefixHitTokens-r.seen.PrefixHitTokens, st.PrefixQueryTokens-r.seen.PrefixQueryTokens
	out.Prefill = st.PrefillTokens - r.seen.PrefillTokens
	if r.lock != nil {
		l := r.lock.Stats(r.in.sim.now)
		out.Forwards += l.Steps
		out.Padded += l.Padded
		for k, n := range l.Placed {
			out.Placed[k] += n
		}
	}
	return out
}

func (r *Result) close(s *Sim) {
	r.End = s.now
	for _, role := range []struct {
		all []*instance
		to  *[][]RankStats
	}{{s.ctx, &r.Ctx}, {s.gen, &r.Gen}} {
		for _, in := range role.all {
			var ranks []RankStats
			for _, k := range in.ranks {
				ranks = append(ranks, k.close())
			}
			*role.to = append(*role.to, ranks)
		}
	}
}

// lost counts what has no end when the run stops.
func (r *Result) lost(s *Sim) {
	r.Unfinished = s.clients.awaited
	for _, in := range slices.Concat(s.ctx, s.gen) {
		for _, k := range in.ranks {
			if st := k.core.Stats(); st.Running+st.Waiting+st.Receiving+st.HandoffsOpen == 0 && st.Holds == 0 {
				r.Leaked += st.BlocksTotal - st.BlocksFree - st.BlocksReusable
			}
		}
	}
}

// Good are the records without an error.
func (r *Result) Good() []Record {
	out := make([]Record, 0, len(r.Records))
	for i := range r.Records {
		if r.Records[i].Error == "" {
			out = append(out, r.Records[i])
		}
	}
	return out
}

// Seconds is the measured time.
func (r *Result) Seconds() float64 { return (r.End - r.Start).Seconds() }

// QueueSkew is the busiest rank's mean queue by the least busy one's, which
// counts as at least half a request, in the instance where that is worst.
func (r *Result) QueueSkew() float64 {
	return r.worst(func(ranks []RankStats) float64 {
		most, least := 0.0, math.Inf(1)
		for i := range ranks {
			q := mean(ranks[i].Waiting, ranks[i].Iterations)
			most, least = max(most, q), min(least, q)
		}
		return max(most, 0.5) / max(least, 0.5)
	})
}

// PlacedSkew is how unevenly the conversations that lived in the measured time
// were placed on the ranks of an instance: most by least, the worst instance.
func (r *Result) PlacedSkew() float64 {
	worst := 1.0
	for i, ranks := range r.Ctx {
		if len(ranks) < 2 {
			continue
		}
		count := make([]float64, len(ranks))
		for _, at := range r.ranks { // sums: the order does not matter
			if at>>16 == i {
				count[at&0xffff]++
			}
		}
		worst = max(worst, slices.Max(count)/max(slices.Min(count), 0.5))
	}
	return worst
}

// PaddedWorst is the part of forwards that the emptiest rank padded.
func (r *Result) PaddedWorst() float64 {
	return r.worst(func(ranks []RankStats) float64 {
		most := 0.0
		for i := range ranks {
			most = max(most, mean(float64(ranks[i].Padded), ranks[i].Forwards))
		}
		return most
	})
}

func (r *Result) worst(of func([]RankStats) float64) (most float64) {
	for _, ranks := range r.Ctx {
		if len(ranks) > 1 {
			most = max(most, of(ranks))
		}
	}
	return most
}

// Reuse is the part of all prompt tokens that ctx ranks found.
func (r *Result) Reuse() float64 {
	var hit, asked uint64
	for _, ranks := range r.Ctx {
		for i := range ranks {
			hit, asked = hit+ranks[i].Hit, asked+ranks[i].Asked
		}
	}
	return mean(float64(hit), asked)
}

// Throughput is the requests that ended well in a second.
func (r *Result) Throughput() float64 { return float64(len(r.Good())) / r.Seconds() }

// Reasons is the share of placements on ranks by reason.
func (r *Result) Reasons() map[string]float64 {
	out, all := map[string]float64{}, 0.0
	for _, ranks := range r.Ctx {
		for i := range ranks {
			for k, n := range ranks[i].Placed {
				out[k] += float64(n)
				all += float64(n)
			}
		}
	}
	for k := range out {
		out[k] /= all
	}
	return out
}

func mean(sum float64, n uint64) float64 {
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Quantile interpolates between the values of some durations, in seconds; 0 of
// none.
func Quantile(records []Record, q float64, of func(*Record) time.Duration) float64 {
	v := make([]float64, len(records))
	for i := range records {
		v[i] = of(&records[i]).Seconds()
	}
	slices.Sort(v)
	return result.Quantile(v, q)
}
