package trace

import (
	"strconv"
	"strings"
	"time"
)

// Stage is a part of a request's time.
type Stage struct {
	Name string
	Took time.Duration
}

// point is the end of a stage.
type point struct {
	name string
	at   time.Time
}

// Timeline divides the time of a request in stages. Each point ends the stage of
// its name; points that were not reached are left out, and then the next stage
// is longer. So the stages sum to the total whatever is missing, and whatever
// clocks of other machines say.
type Timeline struct {
	Start  time.Time
	points []point
}

// Add notes the end of a stage; the zero time does nothing. A stage may have
// several parts.
func (t *Timeline) Add(name string, end time.Time) {
	if !end.IsZero() {
		t.points = append(t.points, point{name, end})
	}
}

// AddWithin adds points of another clock: each is moved between from and to.
func (t *Timeline) AddWithin(from, to time.Time, name string, end time.Time) {
	switch {
	case end.IsZero():
		return
	case end.Before(from):
		end = from
	case !to.IsZero() && end.After(to):
		end = to
	}
	t.Add(name, end)
}

// Stages returns the stages up to finish, in order of their first part, those of
// one name joined. Their sum is exactly finish - Start. Points out of order add
// nothing; what follows the last point is the stage "rest".
func (t *Timeline) Stages(finish time.Time) []Stage {
	var out []Stage
	add := func(name string, d time.Duration) {
		for i := range out {
			if out[i].Name == name {
				out[i].Took += d
				return
			}
		}
		out = append(out, Stage{name, d})
	}
	last := t.Start
	for _, p := range t.points {
		end := p.at
		if end.After(finish) {
			end = finish
		}
		if end.Before(last) {
			end = last
		}
		add(p.name, end.Sub(last))
		last = end
	}
	if finish.After(last) {
		add("rest", finish.Sub(last))
	}
	return out
}

// Millis returns the stages in milliseconds by name.
func Millis(stages []Stage) map[string]float64 {
	out := make(map[string]float64, len(stages))
	for _, s := range stages {
		out[s.Name] = float64(s.Took) / float64(time.Millisecond)
	}
	return out
}

// HeaderTiming is the header that tells stages to people and browsers.
const HeaderTiming = "Server-Timing"

// ServerTiming writes stages as the value of a Server-Timing header.
func ServerTiming(stages []Stage) string {
	var b []byte
	for i, s := range stages {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, s.Name...), ";dur="...)
		b = strconv.AppendFloat(b, float64(s.Took)/float64(time.Millisecond), 'f', 3, 64)
	}
	return string(b)
}

// maxTiming bounds the entries of a foreign Server-Timing header.
const maxTiming = 32

// ParseServerTiming reads the durations of a Server-Timing header; entries
// without one, or with one that nobody can mean, are left out.
func ParseServerTiming(text string) (out []Stage) {
	for item := range strings.SplitSeq(text, ",") {
		if len(out) == maxTiming {
			break
		}
		name, params, _ := strings.Cut(strings.TrimSpace(item), ";")
		for p := range strings.SplitSeq(params, ";") {
			val, ok := strings.CutPrefix(strings.TrimSpace(p), "dur=")
			ms, err := strconv.ParseFloat(val, 64)
			if ok && err == nil && ms >= 0 && ms < 86_400_000 && name != "" {
				out = append(out, Stage{name, time.Duration(ms * float64(time.Millisecond))})
				break
			}
		}
	}
	return out
}
