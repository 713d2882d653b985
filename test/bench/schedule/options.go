package schedule

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Mode is a load model.
type Mode string

// The load models. Rate and Constant are open loops that start a unit (a
// request, or a conversation with all that follows in it) by a clock; Fixed starts
// them when the trace says; the others keep a number of units alive.
const (
	Rate        Mode = "rate"        // gaps of a Gamma distribution, mean 1/Rate
	Constant    Mode = "constant"    // equal gaps
	Concurrency Mode = "concurrency" // so many requests in flight; what requests wait for still holds
	Fixed       Mode = "fixed"       // arrival times of the workload
	Sessions    Mode = "sessions"    // so many conversations live
	Trees       Mode = "trees"       // so many root conversations with all their sub-agents live
)

// Modes are all load models.
var Modes = []Mode{Rate, Constant, Concurrency, Fixed, Sessions, Trees}

// Options are a load model with its parameters.
type Options struct {
	Mode Mode
	Seed uint64

	Rate       float64 // units a second, +Inf = all at once
	RateEnd    float64 // Rate and Constant: where a linear ramp ends after Duration, 0 = no ramp
	Burstiness float64 // Rate: shape of the Gamma distribution; 0 and 1 = Poisson, less = burstier

	Concurrency    int           // Concurrency, Sessions, Trees: how many
	RampUp         time.Duration // Concurrency, Sessions, Trees: the slots open evenly within this time
	MaxConcurrency int           // Rate, Constant, Fixed: requests in flight at most, 0 = no limit; others wait in the client

	Speed      float64       // Fixed: 2 halves all gaps, 0 = 1
	From, To   time.Duration // Fixed: only arrivals within [From, To) of the trace, To 0 = to its end
	AutoOffset bool          // Fixed: the first arrival that is sent is at 0
	ThinkScale float64       // factor on Delay and ToolWait, 0 = 1; see NoThink
	NoThink    bool          // leave Delay and ToolWait out

	Requests int           // stop after so many requests, 0 = no limit
	Duration time.Duration // start nothing at or after this time, 0 = no limit
	Recycle  bool          // begin again when the workload ends; needs Requests or Duration
}

// ErrOptions says that a load model cannot be run as asked.
var ErrOptions = errors.New("load model")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrOptions, fmt.Sprintf(format, args...))
}

// Check says what is wrong with the options.
func (o *Options) Check() error {
	switch o.Mode {
	case Rate, Constant:
		if !(o.Rate > 0) {
			return refuse("rate %g must be above 0 (or inf)", o.Rate)
		}
		if !math.IsInf(o.Rate, 1) && (o.Rate < leastRate || o.Rate > mostRate || o.RateEnd > mostRate) {
			return refuse("rate %g must be between %g and %g (or inf)", max(o.Rate, o.RateEnd), leastRate, mostRate)
		}
		if o.RateEnd != 0 && (!(o.RateEnd > 0) || math.IsInf(o.RateEnd, 0) || math.IsInf(o.Rate, 0) || o.Duration <= 0) {
			return refuse("a ramp from %g to %g needs two finite rates and a duration", o.Rate, o.RateEnd)
		}
		if o.Burstiness != 0 && !(o.Burstiness >= 1/mostShape && o.Burstiness <= mostShape) {
			return refuse("burstiness %g must be between %g and %g", o.Burstiness, 1/mostShape, mostShape)
		}
		if o.Recycle && math.IsInf(o.Rate, 0) && o.Requests == 0 {
			return refuse("an infinite rate needs a number of requests")
		}
	case Concurrency, Sessions, Trees:
		if o.Concurrency <= 0 {
			return refuse("concurrency %d must be at least 1", o.Concurrency)
		}
	case Fixed:
		if o.Speed != 0 && !(o.Speed >= 1/mostFactor && o.Speed <= mostFactor) {
			return refuse("speed %g must be between %g and %g", o.Speed, 1/mostFactor, mostFactor)
		}
		if o.From < 0 || o.To < 0 || o.To > 0 && o.To <= o.From {
			return refuse("from %v to %v must be times of the trace, the second after the first (or 0)", o.From, o.To)
		}
		if o.Recycle {
			return refuse("recorded times cannot be recycled")
		}
	default:
		return refuse("%q is none of %v", o.Mode, Modes)
	}
	if o.Recycle && o.Requests == 0 && o.Duration == 0 {
		return refuse("recycling needs a number of requests or a duration")
	}
	if !(o.ThinkScale >= 0 && o.ThinkScale <= mostFactor) {
		return refuse("think scale %g must be between 0 and %g", o.ThinkScale, mostFactor)
	}
	return o.counts()
}

// counts checks what must not be negative.
func (o *Options) counts() error {
	switch {
	case o.Duration < 0:
		return refuse("duration %v must not be negative", o.Duration)
	case o.RampUp < 0:
		return refuse("ramp-up %v must not be negative", o.RampUp)
	case o.MaxConcurrency < 0:
		return refuse("max concurrency %d must not be negative", o.MaxConcurrency)
	case o.Requests < 0:
		return refuse("requests %d must not be negative", o.Requests)
	}
	return nil
}

// Bounds of what is asked for: beyond them gaps are no whole nanoseconds, or longer than a clock counts.
const (
	leastRate, mostRate = 1e-9, 1e6
	mostShape           = 1e6
	mostFactor          = 1e6
)

// stretched is a time by a factor, at most the longest that leaves room for others to be added.
func stretched(d time.Duration, factor float64) time.Duration {
	return time.Duration(min(float64(d)*factor, float64(Never/8)))
}

// Never is the next time of a schedule that waits for an answer, or is over.
const Never time.Duration = math.MaxInt64

// Send is one request to be sent.
type Send struct {
	Seq     int           // number of this sending, from 0, for Done
	Request int           // index in the workload
	Play    int           // how often the workload had been gone through before; 0 unless recycled
	Unit    int           // the started unit, from 0: conversations of different plays differ in it
	Sched   time.Duration // when the load model wanted it, which may be before now
}
