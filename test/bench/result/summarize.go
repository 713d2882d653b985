package result

import (
	"cmp"
	"math"
	"slices"
)

// Thresholds of the flags.
const (
	lagLimit      = 0.010 // seconds of schedule lag at p99, or
	lagShare      = 0.01  // of the mean gap between requests, whichever is more
	lengthOff     = 0.05  // an answer's length is off by more than this
	offLengthFlag = 0.01  // share of such answers
)

// Summarize makes the summary of all measured records.
func Summarize(records []*Record, o SummaryOptions) *Summary {
	s := &Summary{Outcomes: map[string]int{}, Dist: map[string]Stats{}, Flags: []string{}, Limits: o.Limits.String(), RequestRate: o.RequestRate}
	d := newSamples()
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	var good, off, uncounted int
	var flights []edge
	for _, r := range records {
		if r.Phase != Measured {
			continue
		}
		s.Offered++
		s.Outcomes[string(r.Outcome)]++
		if r.Send >= 0 {
			first, last = min(first, r.Send), max(last, r.End)
			flights = append(flights, edge{r.Send, 1}, edge{r.End, -1})
			d.add("schedule_lag", r.Lag())
		}
		switch r.Outcome {
		case OK:
			s.Completed++
			s.TotalIn, s.TotalOut, s.TotalHit = s.TotalIn+r.Input, s.TotalOut+r.Output, s.TotalHit+r.Cached
			d.record(r)
			if r.Counted == "none" {
				uncounted++
			}
			if r.AskedOutput > 0 && math.Abs(float64(r.Output-r.AskedOutput)) > lengthOff*float64(r.AskedOutput) {
				off++
			}
		case Cancelled:
		default:
			s.Failed++
		}
		if len(o.Limits) > 0 && o.Limits.Good(r) {
			good++
		}
	}
	if s.Duration = o.Window; s.Duration == 0 && last > first {
		s.Duration = seconds(first, last)
	}
	s.rates(o, good, off)
	s.ConcurrencyAvg, s.ConcurrencyMax = inFlight(flights)
	for _, m := range Metrics {
		s.Dist[m] = Describe(d.values[m])
	}
	s.flag(o)
	if uncounted > 0 {
		s.Flags = append(s.Flags, "uncounted")
	}
	if o.OpenLoop && Oversaturated(records) {
		s.Flags = append(s.Flags, "oversaturated")
	}
	return s
}

// rates fills what is divided by time or by counts.
func (s *Summary) rates(o SummaryOptions, good, off int) {
	over := func(n, by float64) float64 {
		if by == 0 {
			return 0
		}
		return n / by
	}
	s.Throughput = over(float64(s.Completed), s.Duration)
	s.OutputTPS = over(float64(s.TotalOut), s.Duration)
	s.TotalTPS = over(float64(s.TotalIn+s.TotalOut), s.Duration)
	if o.Accelerators > 0 {
		s.OutputTPSPerGPU, s.TotalTPSPerGPU = s.OutputTPS/float64(o.Accelerators), s.TotalTPS/float64(o.Accelerators)
	}
	s.Goodput = over(float64(good), s.Duration)
	s.GoodFraction = over(float64(good), float64(s.Completed+s.Failed))
	s.GoodOfOffered = over(float64(good), float64(s.Offered))
	shed := s.Outcomes[string(Shed)]
	s.ShedRate = over(float64(shed), float64(s.Offered))
	s.ErrorRate = over(float64(s.Failed-shed), float64(s.Offered))
	s.CacheHit = over(float64(s.TotalHit), float64(s.TotalIn))
	s.OffLength = over(float64(off), float64(s.Completed))
}

// flag says what is doubtful.
func (s *Summary) flag(o SummaryOptions) {
	if o.OpenLoop && s.Offered > 0 {
		limit := lagLimit
		if s.Duration > 0 {
			limit = max(limit, lagShare*s.Duration/float64(s.Offered))
		}
		if s.Dist["schedule_lag"].P99 > limit {
			s.Flags = append(s.Flags, "degraded_schedule")
		}
	}
	if s.OffLength > offLengthFlag {
		s.Flags = append(s.Flags, "osl_mismatch")
	}
	if s.Failed > 0 {
		s.Flags = append(s.Flags, "errors")
	}
}

// samples are values by metric.
type samples struct{ values map[string][]float64 }

func newSamples() *samples { return &samples{map[string][]float64{}} }

func (d *samples) add(name string, v float64) { d.values[name] = append(d.values[name], v) }

// record adds what one completed request gives. An answer without content has lengths only.
func (d *samples) record(r *Record) {
	d.add("in", float64(r.Input))
	d.add("out", float64(r.Output))
	d.add("cached", float64(r.Cached))
	if r.PerIter > 0 {
		d.add("tokens_per_iter", r.PerIter)
	}
	if r.First < 0 {
		return
	}
	e2el := r.E2EL()
	d.add("e2el", e2el)
	d.add("e2el_co", r.E2ELCO())
	if r.Output > 0 {
		d.add("tpot_incl", e2el/float64(r.Output))
		if e2el > 0 {
			d.add("user_tps_e2e", float64(r.Output)/e2el)
		}
	}
	if !r.Whole {
		d.tokens(r)
	}
}

// tokens adds what is known of a stream only.
func (d *samples) tokens(r *Record) {
	ttft := r.TTFT()
	d.add("ttft", ttft)
	d.add("ttft_co", r.TTFTCO())
	d.add("decode_dur", r.DecodeDur())
	if v, ok := r.TFAT(); ok {
		d.add("tfat", v)
	}
	if v, ok := r.TTST(); ok {
		d.add("ttst", v)
	}
	if ttft > 0 {
		d.add("prefill_tps", float64(r.Input)/ttft)
	}
	if v, ok := r.TPOT(); ok {
		d.add("tpot", v)
		if v > 0 {
			d.add("user_tps_decode", 1/v)
		}
	}
	for _, g := range r.Gaps {
		d.add("itl", float64(g)/1e9)
	}
}

// edge is the begin or end of a request.
type edge struct {
	at int64
	by int
}

// inFlight returns how many requests were in flight, averaged over time, and at most.
func inFlight(edges []edge) (mean float64, peak int) {
	if len(edges) == 0 {
		return 0, 0
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.by-b.by) })
	n, area := 0, 0.0
	for i, e := range edges {
		if i > 0 {
			area += float64(n) * float64(e.at-edges[i-1].at)
		}
		n += e.by
		peak = max(peak, n)
	}
	if span := edges[len(edges)-1].at - edges[0].at; span > 0 {
		mean = area / float64(span)
	}
	return mean, peak
}
