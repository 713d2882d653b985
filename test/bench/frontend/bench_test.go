package main

import (
	"net/http/httptest"
	"testing"
	"time"

	"tandem/test/bench/cluster"
)

// TestLoad measures a stub without a proxy, in small.
func TestLoad(t *testing.T) {
	srv := httptest.NewServer(stub("mixed"))
	defer srv.Close()
	l := newLoader(srv.URL)
	defer l.client.CloseIdleConnections()
	for _, prompt := range []string{pacePrompt, "burst"} {
		r := rounds{l.run(4, 2, prompt, 300*time.Millisecond)}
		s := r.sum()
		if r.quantile(0.5) != s.quantile(0.5) || s.all < len(s.first) {
			t.Errorf("%s: one round is %v, and all of it %v", prompt, r.quantile(0.5), s.quantile(0.5))
		}
		if s.errs > 0 || len(s.first) == 0 || s.quantile(0.99) < s.quantile(0.5) || s.quantile(0.5) <= 0 {
			t.Errorf("%s: %d requests, %d errors (%v), p50 %v", prompt, len(s.first), s.errs, s.err, s.quantile(0.5))
		}
	}
	open := 0
	l.hold(20, func(n int) { open = n })
	if open != 20 {
		t.Errorf("%d streams are open, want 20", open)
	}
	srv.Config.Handler = nil // answers 404
	if s := l.run(1, 2, "burst", 50*time.Millisecond); s.errs == 0 {
		t.Error("no errors of a worker that refuses")
	}
}

// A target that answered nothing has no times, and ratios are to our frontend.
func TestRows(t *testing.T) {
	direct := rounds{{first: []time.Duration{time.Millisecond}, all: 1}}
	ours := &target{process: &cluster.Process{}, paced: rounds{{first: []time.Duration{3 * time.Millisecond}, all: 1}}, burst: rounds{{all: 100}}, took: 1, open: 10, bytes: 1024}
	peer := &target{name: "peer", process: &cluster.Process{}, paced: rounds{{all: 2, errs: 2}}, burst: rounds{{all: 40}}, took: 2, open: 10, bytes: 4096, all: 2 << 20}
	if got, want := peer.row(ours, direct), "| peer | 20 | 5.00 | 4.0 | 4.00 | 2 with 10 | none came | 2 of 42 |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := ours.row(ours, direct), "|  | 100 |  | 1.0 |  | 0 with 10 | 2.00 / 2.00 | 0 of 101 |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := (&target{name: "direct", paced: direct}).row(ours, direct), "| direct |  |  |  |  |  | 1.00 / 1.00 | 0 of 1 |\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
