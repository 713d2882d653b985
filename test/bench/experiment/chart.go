package experiment

import (
	"strconv"
	"strings"

	"tandem/test/bench/plot"
)

// Chart is a plot of what was simulated, nil where a table says all.
func (r *Report) Chart() *plot.Chart {
	if r.Experiment.chart == nil {
		return nil
	}
	return r.Experiment.chart(r)
}

// quantiles draws TTFT quantiles of all arms, with the range of the seeds.
func quantiles(r *Report) *plot.Chart {
	c := &plot.Chart{Title: "simulated: time to the first token", X: "percentile", Y: "s", ZeroY: true}
	for i := range r.arms {
		s := plot.Series{Name: r.arms[i].name}
		for _, q := range []float64{50, 90, 99} {
			v := r.values[s.Name]["ttft_p"+strconv.Itoa(int(q))]
			s.Points = append(s.Points, plot.Point{X: q, Y: mean(v)})
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// byLoad draws TTFT p99 of each placement against how many trees of
// conversations live.
func byLoad(r *Report) *plot.Chart {
	c := &plot.Chart{Title: "simulated: TTFT p99 on one instance of 8 ranks", X: "live conversations", Y: "s", ZeroY: true}
	at := map[string]int{}
	for i := range r.arms {
		load, placement, _ := strings.Cut(r.arms[i].name, ": ")
		count, _, same := strings.Cut(load, " live")
		x, err := strconv.ParseFloat(count, 64)
		if err != nil || !same {
			continue
		}
		k, ok := at[placement]
		if !ok {
			k = len(c.Series)
			at[placement] = k
			c.Series = append(c.Series, plot.Series{Name: placement})
		}
		c.Series[k].Points = append(c.Series[k].Points, plot.Point{X: x, Y: r.mean(r.arms[i].name, "ttft_p99")})
	}
	return c
}
