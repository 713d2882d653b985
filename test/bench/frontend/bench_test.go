package main

import (
	"net/http/httptest"
	"testing"
	"time"
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
