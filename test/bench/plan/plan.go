package plan

import (
	"errors"
	"fmt"
	"math"
	"time"

	"tandem/engine/executor"
	"tandem/test/bench/des"
	"tandem/test/bench/load"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// Spec is a kind of instance and what it costs.
type Spec struct {
	GPUs  int // accelerators of an instance
	Group des.Group
}

// Question is what a cluster must do.
type Question struct {
	Input, Output workload.Dist // tokens
	TTFT          time.Duration // at p95, of prefill instances
	Ladder        []int         // requests in flight at a gen instance, ascending; each gives a point of the curve
	Budget        int           // accelerators
	Net           des.Net
	Seed          uint64
	Measure       time.Duration // virtual, of each run, which is warmed up for as long
	Stop          func() error  // says by an error that the run under way shall end; nil = never
	Progress      func(string)  // hears what has been measured; nil = nobody wants to know
}

// Point is one speed for users, and what it costs.
type Point struct {
	Flight  int     // requests in flight at a gen instance
	UserTPS float64 // tokens a second that one user gets, 1/TPOT of the mean
	GenRate float64 // requests a second of one gen instance
	Ideal   float64 // output tokens a second for an accelerator, as if instances could be cut in parts

	Ctx, Gen int     // best whole numbers within the budget; 0: it has no room for one of each
	Whole    float64 // output tokens a second for each accelerator used
}

// Answer is a plan.
type Answer struct {
	CtxRate float64 // requests a second of one ctx instance within the limit on TTFT
	CtxOpen int     // requests in flight at it then
	Points  []Point
}

// ErrNoRate says that an instance misses the limit even when it is nearly idle.
var ErrNoRate = errors.New("the limit is missed even at the lowest rate: raise it, or choose faster instances")

// ErrNoAnswer says that nothing was complete within the measured time.
var ErrNoAnswer = errors.New("no request ended within the measured time: measure for longer, or ask for shorter answers")

// Make measures instances on the simulator and matches their rates.
func Make(q Question, ctx, gen Spec) (*Answer, error) {
	a := &Answer{}
	var err error
	if a.CtxRate, a.CtxOpen, err = q.ctxRate(ctx); err != nil {
		return nil, fmt.Errorf("ctx: %w", err)
	}
	q.tell("ctx instance: %.3g requests/s", a.CtxRate)
	out := mean(q.Output, q.Seed)
	for _, n := range q.Ladder {
		p := Point{Flight: n}
		if p.UserTPS, p.GenRate, err = q.genRate(gen, n); err != nil {
			return nil, fmt.Errorf("gen: %w", err)
		}
		q.tell("gen instance with %d in flight: %.3g requests/s", n, p.GenRate)
		p.Ideal = p.GenRate * out / (float64(ctx.GPUs)*p.GenRate/a.CtxRate + float64(gen.GPUs))
		p.Ctx, p.Gen, p.Whole = whole(q.Budget, ctx.GPUs, gen.GPUs, a.CtxRate, p.GenRate, out)
		a.Points = append(a.Points, p)
	}
	return a, nil
}

// tell tells what has been measured.
func (q *Question) tell(format string, args ...any) {
	if q.Progress != nil {
		q.Progress(fmt.Sprintf(format, args...))
	}
}

// whole finds the numbers of instances within a budget that give most for each
// accelerator used, and of those the most in all.
func whole(budget, ctxGPUs, genGPUs int, ctxRate, genRate, out float64) (ctx, gen int, best float64) {
	most := 0.0
	for x := 1; x*ctxGPUs+genGPUs <= budget; x++ {
		for y := 1; x*ctxGPUs+y*genGPUs <= budget; y++ {
			rate := math.Min(float64(x)*ctxRate, float64(y)*genRate)
			each := rate * out / float64(x*ctxGPUs+y*genGPUs)
			if each > best*1.001 || each > best*0.999 && rate > most {
				ctx, gen, best, most = x, y, each, rate
			}
		}
	}
	return ctx, gen, best
}

// requests is how many different ones a workload has before it begins again.
const requests = 4096

// prefills are the same without what follows the first token.
func (q *Question) prefills() *workload.Workload {
	return workload.Random(workload.RandomOptions{Requests: requests, Input: q.Input, Output: workload.Fixed(1), Seed: q.Seed})
}

// config is a closed loop of n requests. They begin one after the other: begun at once, they would queue before ctx
// instances for longer than is measured.
func (q *Question) config(n int) des.Config {
	return des.Config{
		Seed: q.Seed, Net: q.Net, Frontends: 1, Warmup: q.Measure, Measure: q.Measure,
		Workload: workload.Random(workload.RandomOptions{Requests: requests, Input: q.Input, Output: q.Output, Seed: q.Seed}),
		Load:     schedule.Options{Mode: schedule.Concurrency, Concurrency: n, RampUp: q.Measure * 3 / 4, Seed: q.Seed, Recycle: true, Duration: 1000 * q.Measure},
		Ideal:    des.Ideal{Step: 10 * time.Millisecond},
	}
}

// ctxRate is the most that a ctx instance does within the limit on TTFT, in a closed loop, and how many requests are in
// flight then. It is what a frontend makes of it that never lets two instances have uneven queues: a part of the ideal.
func (q *Question) ctxRate(ctx Spec) (best float64, open int, err error) {
	good := func(n int) (bool, error) {
		cfg := q.config(n)
		cfg.Ctx, cfg.Workload = ctx.Group, q.prefills()
		cfg.Ctx.Instances = 1
		r, err := q.simulate(cfg)
		if err != nil || len(r.Good()) == 0 || des.Quantile(r.Good(), 0.95, (*des.Record).TTFT) > q.TTFT.Seconds() {
			return false, err
		}
		if x := r.Throughput(); x > best {
			best, open = x, n
		}
		return true, nil
	}
	least, most := 0, 1
	for ok := true; ok; {
		if ok, err = good(most); err != nil {
			return 0, 0, err
		}
		if ok {
			least, most = most, 2*most
		}
		if most > 1<<12 {
			break
		}
	}
	for err == nil && most-least > max(1, most/16) {
		n := (least + most) / 2
		var ok bool
		if ok, err = good(n); ok {
			least = n
		} else {
			most = n
		}
	}
	if err == nil && best == 0 {
		err = ErrNoRate
	}
	return best, open, err
}

// instant is a ctx instance that is never waited for.
func instant(like des.Group) des.Group {
	like.Core.Role, like.Instances, like.Ranks = executor.Ctx, 1, 1
	like.Core.Blocks, like.Core.MaxBatch, like.Core.MaxNumTokens, like.Core.MaxLeasedFraction = 1<<17, 4096, 1<<22, 1
	like.Cost.Iteration, like.Cost.CtxToken, like.Cost.CtxAttention = 1e-6, 0, 0
	return like
}

// genRate is what a gen instance does with n requests in flight.
func (q *Question) genRate(gen Spec, n int) (userTPS, rate float64, err error) {
	cfg := q.config(n)
	cfg.Ctx, cfg.Gen = instant(gen.Group), gen.Group
	cfg.Gen.Instances = 1
	cfg.Net.Bandwidth = 1e15
	r, err := q.simulate(cfg)
	if err != nil {
		return 0, 0, err
	}
	if userTPS, rate = userSpeed(r), r.Throughput(); rate == 0 {
		return 0, 0, fmt.Errorf("%d in flight: %w", n, ErrNoAnswer)
	}
	return userTPS, rate, nil
}

// userSpeed is the inverse of the mean time between tokens.
func userSpeed(r *des.Result) float64 {
	sum, n := 0.0, 0
	for _, rec := range r.Good() {
		if t := rec.TPOT(); t > 0 {
			sum, n = sum+t.Seconds(), n+1
		}
	}
	if n == 0 {
		return 0
	}
	return float64(n) / sum
}

// Measured is a cluster as the simulator finds it.
type Measured struct {
	UserTPS, TPSPerGPU, TTFTp95 float64
	CtxBusy, GenBusy            float64 // part of the time in which its ranks work; mixed ones are ctx here
	Flight                      float64 // requests between their first and last token, on the mean, at a gen instance or in all
}

// Keeps reports whether what was measured is still that point: gen instances have no more requests in flight.
func (p *Point) Keeps(m *Measured) bool { return m.Flight <= float64(p.Flight) }

// Check simulates the whole cluster of a point, in a closed loop of as many requests as its instances have in
// flight; fewer, while TTFT misses its limit or what is measured is not kept to. Without the latter, requests that
// ctx instances with time to spare do not hold would gather at gen instances, which then do more, each slower. If
// nothing keeps both, it is the cluster with a single request.
func Check(q Question, ctx, gen Spec, a *Answer, p Point, keep func(*Measured) bool) (best Measured, err error) {
	good := func(n int) (bool, error) {
		cfg := q.config(n)
		cfg.Ctx, cfg.Gen = ctx.Group, gen.Group
		cfg.Ctx.Instances, cfg.Gen.Instances = p.Ctx, p.Gen
		m, err := q.measure(cfg, p.Ctx*ctx.GPUs+p.Gen*gen.GPUs)
		m.Flight /= float64(p.Gen)
		ok := m.TTFTp95 <= q.TTFT.Seconds() && keep(&m)
		if ok || n == 1 {
			best = m
		}
		return ok, err
	}
	most := p.Flight*p.Gen + a.CtxOpen*p.Ctx
	ok, err := good(most)
	for least, step := 0, max(1, most/32); err == nil && !ok && most-least > step; {
		n := (least + most) / 2
		var kept bool
		if kept, err = good(n); kept {
			least = n
		} else {
			most = n
		}
	}
	if err == nil && best == (Measured{}) {
		_, err = good(1)
	}
	return best, err
}

// Mixed simulates instances that do both, with n requests in flight at each.
func Mixed(q Question, mixed Spec, instances, n int) (Measured, error) {
	cfg := q.config(n * instances)
	cfg.Ctx = mixed.Group
	cfg.Ctx.Instances = instances
	return q.measure(cfg, instances*mixed.GPUs)
}

func (q *Question) measure(cfg des.Config, gpus int) (Measured, error) {
	r, err := q.simulate(cfg)
	if err != nil {
		return Measured{}, err
	}
	out, decoding := 0, 0.0
	for _, rec := range r.Good() {
		out += rec.Out
		decoding += (rec.Last - rec.First).Seconds()
	}
	return Measured{
		UserTPS: userSpeed(r), TPSPerGPU: float64(out) / r.Seconds() / float64(gpus),
		TTFTp95: des.Quantile(r.Good(), 0.95, (*des.Record).TTFT),
		CtxBusy: r.Usage(false).Busy, GenBusy: r.Usage(true).Busy, Flight: decoding / r.Seconds(),
	}, nil
}

func (q *Question) simulate(cfg des.Config) (*des.Result, error) {
	s, err := des.New(cfg)
	if err != nil {
		return nil, err
	}
	return s.Until(q.Stop)
}

// mean of a distribution, of many draws.
func mean(d workload.Dist, seed uint64) float64 {
	sum, n := 0, 0
	for _, r := range workload.Random(workload.RandomOptions{Requests: 4096, Input: d, Output: workload.Fixed(1), Seed: seed}).Requests {
		sum, n = sum+r.Input, n+1
	}
	return float64(sum) / float64(n)
}

// Capacity finds by bisection the highest rate that is good, to 4 %, beginning at
// a guess.
func Capacity(guess float64, good func(rate float64) (bool, error)) (float64, error) {
	s, err := load.NewSearch(guess, guess*1e-3, guess*1e5, 0.04)
	if err != nil {
		return 0, err
	}
	for rate, ok := s.Next(); ok; rate, ok = s.Next() {
		ok, err := good(rate)
		if err != nil {
			return 0, err
		}
		s.Add(ok)
	}
	best, _ := s.Bracket()
	if best == 0 {
		return 0, ErrNoRate
	}
	return best, nil
}
