package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/test/bench/schedule"
)

// loadFlags are a load model, or several in a row.
type loadFlags struct {
	rate, constant, concurrency, sessions, trees string
	burstiness                                   float64
	maxConcurrency                               int
	rampUp, duration, grace                      time.Duration
	thinkScale                                   float64
	bisect                                       bool
	good, tolerance                              float64
	stopSaturated                                bool
}

func (f *loadFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.rate, "rate", "", "open loop: requests a second at random times, inf = all at once; 1,2,4 = one step each; 1:10 = a ramp within --duration")
	fs.StringVar(&f.constant, "constant", "", "open loop: requests a second at equal gaps; lists and ramps as with --rate")
	fs.StringVar(&f.concurrency, "concurrency", "", "closed loop: requests in flight; 1,8,64 = one step each")
	fs.StringVar(&f.sessions, "sessions", "", "closed loop: live conversations; a list = one step each")
	fs.StringVar(&f.trees, "trees", "", "closed loop: live conversations with all their sub-agents; a list = one step each")
	fs.Float64Var(&f.burstiness, "burstiness", 1, "with --rate: shape of the gaps' Gamma distribution, 1 = Poisson, less = burstier")
	fs.IntVar(&f.maxConcurrency, "max-concurrency", 0, "open loops: requests in flight at most, others wait in the client; 0 = no limit")
	fs.DurationVar(&f.rampUp, "ramp-up", 0, "closed loops: time in which the slots open, evenly")
	fs.DurationVar(&f.duration, "duration", 0, "send for so long, beginning again when the workload ends; 0 = send the workload once")
	fs.DurationVar(&f.grace, "grace", 30*time.Second, "with --duration: how long requests may go on after it, 0 = until they end")
	fs.Float64Var(&f.thinkScale, "think-scale", 1, "factor on the idle times of conversations, 0 = none")
	fs.BoolVar(&f.bisect, "bisect", false, "search the highest --rate (or other load) at which --good of the requests meet --goodput, from the one given")
	fs.Float64Var(&f.good, "good", 0.9, "share of good requests that --bisect asks for")
	fs.Float64Var(&f.tolerance, "tolerance", 0.05, "with --bisect: relative width of the bracket to stop at")
	fs.BoolVar(&f.stopSaturated, "stop-saturated", false, "end a list of rates after the first that the server cannot keep up with")
}

// axis is what the steps of a run vary.
type axis struct {
	name   string // key of result files
	values []float64
	end    float64 // of a ramp, 0 = none
	make   func(v float64) schedule.Options
}

var errLoads = errors.New("load model")

// axis reads the one load flag that is set; fallback is used when none is.
func (f *loadFlags) axis(fallback string, seed uint64) (*axis, error) {
	given := []struct {
		flag, text, key string
		mode            schedule.Mode
	}{
		{"rate", f.rate, "request_rate", schedule.Rate},
		{"constant", f.constant, "request_rate", schedule.Constant},
		{"concurrency", f.concurrency, "max_concurrency", schedule.Concurrency},
		{"sessions", f.sessions, "sessions", schedule.Sessions},
		{"trees", f.trees, "trees", schedule.Trees},
	}
	var a *axis
	for _, g := range given {
		if g.text == "" && (g.flag != fallback || f.any()) {
			continue
		}
		if a != nil {
			return nil, fmt.Errorf("%w: --%s comes on top of another one: give one of --rate, --constant, --concurrency, --sessions and --trees", errLoads, g.flag)
		}
		if g.text == "" {
			g.text = "8"
		}
		values, end, err := numbers(g.text, g.mode == schedule.Rate || g.mode == schedule.Constant)
		if err != nil {
			return nil, fmt.Errorf("%w: --%s %q: %w", errLoads, g.flag, g.text, err)
		}
		a = &axis{name: g.key, values: values, end: end, make: f.maker(g.mode, end, seed)}
	}
	if a != nil && f.bisect && (len(a.values) > 1 || a.end > 0 || a.values[0] > mostLoad) {
		return nil, fmt.Errorf("%w: --bisect begins at one value of %g at most, not at a list or ramp", errLoads, mostLoad)
	}
	return a, f.check(a)
}

// check refuses what no load can have, before anything is sent.
func (f *loadFlags) check(a *axis) error {
	switch {
	case f.grace < 0:
		return fmt.Errorf("%w: --grace %v must not be negative", errLoads, f.grace)
	case f.bisect && !(f.good > 0 && f.good <= 1):
		return fmt.Errorf("%w: --good %g: want a share, above 0 and 1 at most", errLoads, f.good)
	case f.bisect && !(f.tolerance > 0 && f.tolerance <= 10):
		return fmt.Errorf("%w: --tolerance %g: want above 0, and 10 at most", errLoads, f.tolerance)
	case !(f.burstiness > 0):
		return fmt.Errorf("%w: --burstiness %g must be above 0", errLoads, f.burstiness)
	case a == nil:
		return nil
	}
	if err := f.idle(a); err != nil {
		return err
	}
	for _, v := range a.values {
		o := a.make(v)
		if o.MaxConcurrency = f.maxConcurrency; math.IsInf(v, 1) && o.Requests == 0 {
			o.Recycle = false // who sends says how many
		}
		if err := o.Check(); err != nil {
			return err //nolint:wrapcheck // it names the value
		}
	}
	return nil
}

// idle refuses flags that do nothing with the load that was chosen.
func (f *loadFlags) idle(a *axis) error {
	closed := a.name != "request_rate" && a.name != "speed"
	switch {
	case f.burstiness != 1 && f.rate == "":
		return fmt.Errorf("%w: --burstiness is for --rate", errLoads)
	case f.rampUp != 0 && !closed:
		return fmt.Errorf("%w: --ramp-up is for closed loops; a --rate of FROM:TO rises", errLoads)
	case f.maxConcurrency != 0 && closed:
		return fmt.Errorf("%w: --max-concurrency is for open loops; a closed one has what it says in flight", errLoads)
	}
	return nil
}

// mostLoad is where --bisect ends.
const mostLoad = 1e6

func (f *loadFlags) any() bool { return f.rate+f.constant+f.concurrency+f.sessions+f.trees != "" }

// maker makes the options of one step.
func (f *loadFlags) maker(mode schedule.Mode, end float64, seed uint64) func(float64) schedule.Options {
	return func(v float64) schedule.Options {
		o := schedule.Options{
			Mode: mode, Seed: seed, Burstiness: f.burstiness, MaxConcurrency: f.maxConcurrency, RampUp: f.rampUp, Duration: f.duration,
			ThinkScale: f.thinkScale, NoThink: f.thinkScale == 0, Recycle: f.duration > 0,
		}
		if mode == schedule.Rate || mode == schedule.Constant {
			o.Rate, o.RateEnd = v, end
		} else {
			o.Concurrency, o.MaxConcurrency = int(math.Round(v)), 0
		}
		return o
	}
}

// numbers reads a list, or a ramp FROM:TO where rates may be.
func numbers(text string, rates bool) (values []float64, end float64, err error) {
	from, to, ramp := strings.Cut(text, ":")
	if ramp {
		if !rates {
			return nil, 0, errors.New("only rates can rise from one value to another; use --ramp-up")
		}
		if end, err = strconv.ParseFloat(to, 64); err != nil || !(end > 0) || math.IsInf(end, 0) {
			return nil, 0, errors.New("want FROM:TO")
		}
		text = from
	}
	for word := range strings.SplitSeq(text, ",") {
		v, err := strconv.ParseFloat(strings.TrimSpace(word), 64)
		if err != nil || !(v > 0) || !rates && (v != math.Trunc(v) || v > 1e6) || math.IsInf(v, 0) && !rates {
			return nil, 0, fmt.Errorf("%q is not a number above 0", word)
		}
		values = append(values, v)
	}
	if len(values) > 1 && math.IsInf(slices.Max(values), 1) {
		return nil, 0, errors.New("inf is all at once, and stands alone")
	}
	if ramp && len(values) > 1 {
		return nil, 0, errors.New("a ramp has one beginning")
	}
	return values, end, nil
}

// words says in words what a load is.
func words(o *schedule.Options) string {
	var out string
	switch o.Mode {
	case schedule.Rate, schedule.Constant:
		out = fmt.Sprintf("%s %.4g/s", o.Mode, o.Rate)
		if o.RateEnd > 0 {
			out = fmt.Sprintf("%s %.4g to %.4g/s", o.Mode, o.Rate, o.RateEnd)
		}
		if o.Mode == schedule.Rate && o.Burstiness != 1 && o.Burstiness != 0 {
			out += fmt.Sprintf(", burstiness %g", o.Burstiness)
		}
	case schedule.Fixed:
		out = "by the trace"
		if o.Speed != 0 && o.Speed != 1 {
			out += fmt.Sprintf(" at speed %g", o.Speed)
		}
	default:
		out = fmt.Sprintf("%s %d", o.Mode, o.Concurrency)
	}
	if o.MaxConcurrency > 0 {
		out += fmt.Sprintf(", at most %d in flight", o.MaxConcurrency)
	}
	if o.Duration > 0 {
		out += " for " + o.Duration.String()
	}
	return out
}
