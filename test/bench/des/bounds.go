package des

import (
	"fmt"
	"io"
	"time"
)

// Usage is what the ranks of a role did with the measured time, as parts of it.
type Usage struct {
	Busy    float64 // in own passes
	Passing float64 // in passes of their instances: what is above Busy is spent waiting for slower ranks
	Pool    float64 // of their blocks, that no new request could have: in use, or leased to gen workers
}

// Usage of ctx ranks, mixed ones included, or of gen ranks; zero without any.
func (r *Result) Usage(gen bool) (u Usage) {
	role, ranks := r.Ctx, 0
	if gen {
		role = r.Gen
	}
	for _, in := range role {
		for i := range in {
			u.Busy += in[i].Busy
			u.Passing += in[i].Passing
			u.Pool += mean(in[i].Used, in[i].Iterations)
			ranks++
		}
	}
	if ranks == 0 {
		return Usage{}
	}
	n := float64(ranks)
	return Usage{u.Busy / n / r.Seconds(), u.Passing / n / r.Seconds(), u.Pool / n}
}

// Utilisation is the part of the measured time in which ctx ranks worked.
func (r *Result) Utilisation() float64 { return r.Usage(false).Busy }

// Stage is a part of a request's way.
type Stage struct {
	Name string
	Mean float64 // seconds, over all requests that ended well
}

// Stages are where requests spend their time, in the order in which they pass:
// the longest one bounds a closed loop.
func (r *Result) Stages() []Stage {
	good := r.Good()
	of := func(name string, part func(*Record) time.Duration) Stage {
		sum := 0.0
		for i := range good {
			sum += part(&good[i]).Seconds()
		}
		return Stage{name, sum / float64(max(len(good), 1))}
	}
	out := []Stage{
		of("ctx queue", func(x *Record) time.Duration { return x.QueueCtx }),
		of("prefill", func(x *Record) time.Duration { return x.Prefill }),
	}
	if len(good) > 0 && good[0].Handed > 0 {
		out = append(out,
			of("room on gen", func(x *Record) time.Duration { return x.Room }),
			of("hand-over", func(x *Record) time.Duration { return x.Pulled }),
			of("next step", func(x *Record) time.Duration { return max(x.Second-x.Handed-x.Room-x.Pulled, 0) }))
	}
	return append(out, of("decoding", func(x *Record) time.Duration {
		if x.Second == 0 || x.Handed == 0 {
			return x.Last - x.First
		}
		return x.Last - x.Second
	}))
}

// PrintBounds writes what bounds the run: how busy ranks are, how full their
// pools, and where requests spend their time.
func (r *Result) PrintBounds(w io.Writer) error {
	for _, role := range []struct {
		name string
		gen  bool
		all  [][]RankStats
	}{{"ctx", false, r.Ctx}, {"gen", true, r.Gen}} {
		if len(role.all) == 0 {
			continue
		}
		u := r.Usage(role.gen)
		if _, err := fmt.Fprintf(w, "%s ranks: busy %.0f %%, in passes with others %.0f %%, pool in use %.0f %%\n", role.name, 100*u.Busy, 100*u.Passing, 100*u.Pool); err != nil {
			return err
		}
	}
	text := "a request's time:"
	for i, s := range r.Stages() {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %s %.3f s", s.Name, s.Mean)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
