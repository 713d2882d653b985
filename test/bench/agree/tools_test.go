package main

import (
	"strings"
	"testing"
)

// Medians further apart than noise and than rounds are from each other are told in the table and as an error.
func TestReport(t *testing.T) {
	got := func(v ...float64) (list []values) {
		for _, x := range v {
			list = append(list, values{"ttft": x, "e2el": 700})
		}
		return list
	}
	o := &options{rounds: 3}
	for _, c := range []struct {
		ours, theirs []float64
		row, wrong   string
	}{
		{[]float64{100, 101, 100}, []float64{102, 103, 102}, "| ttft: TTFT of both | 100.00 | 102.00 | 2.00 | yes |", ""},
		{[]float64{100, 101, 100}, []float64{104, 104, 104}, "| ttft: TTFT of both | 100.00 | 104.00 | 4.00 | NO |", "ttft of peer"},
		{[]float64{100, 120, 100}, []float64{104, 104, 104}, "| ttft: TTFT of both | 100.00 | 104.00 | 4.00 | yes |", ""},
		{[]float64{100}, nil, "| ttft: TTFT of both | 100.00 | – | 0.00 | yes |", ""},
	} {
		var out strings.Builder
		err := report(o, []*tool{{name: "bench serve", got: got(c.ours...)}, {name: "peer", got: got(c.theirs...)}}, []string{"other"}, &out)
		if (err == nil) != (c.wrong == "") || (err != nil && !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%v, want %q", err, c.wrong)
		}
		if text := out.String(); !strings.Contains(text, "\n"+c.row+"\n") || !strings.Contains(text, "other is left out") {
			t.Errorf("%s\nwant %s", text, c.row)
		}
	}
}
