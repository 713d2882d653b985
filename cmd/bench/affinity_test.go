package main

import (
	"strings"
	"testing"

	"tandem/test/bench/result"
)

// Follow-up turns count, not first ones, and too little gain is an error.
func TestAffinityReport(t *testing.T) {
	arm := func(name string, seconds, cached float64) *affinityArm {
		a := &affinityArm{name: name, router: "r", published: "p"}
		for turn := range 3 {
			r := &result.Record{Turn: turn, First: int64(seconds * 1e9), Input: 1000, Cached: int(cached * 1000)}
			if turn == 0 {
				r.First, r.Cached = 60e9, 0
			}
			a.records = append(a.records, r)
		}
		return a
	}
	for _, c := range []struct {
		off  float64
		want string
	}{{5.1, ""}, {4.9, "by 4.9 only"}} {
		var out strings.Builder
		err := printAffinity(&out, []*affinityArm{arm("on", 1, 0.97), arm("off", c.off, 0)})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
		if text := out.String(); !strings.Contains(text, "97.0 %") || !strings.Contains(text, "1000 ms") || strings.Contains(text, "60000 ms") {
			t.Error(text)
		}
	}
}

func TestLocalRunsRefuseBadUse(t *testing.T) {
	for want, args := range map[string][]string{
		"--turns":     {"affinity", "--turns", "1"},
		"--prompt":    {"affinity", "--prompt", "80"},
		"--workers":   {"affinity", "--workers", "0"},
		"--threads":   {"verify", "--threads", "0"},
		"--routers":   {"verify", "--routers", "fastest"},
		"--rounds":    {"verify", "--rounds", "0"},
		"--tolerance": {"verify", "--tolerance", "-1"},
		"no/where":    {"verify", "no/where.gguf"},
	} {
		if _, _, err := bench(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
