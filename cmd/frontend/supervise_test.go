package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func fakeChild(name, mode, role string) child {
	return child{name: name, args: func(port int) []string {
		return []string{"serve", mode, "--role", role, "--port", strconv.Itoa(port)}
	}}
}

func fakeSupervisor(rec *record, children ...child) *supervisor {
	s := newSupervisor(os.Args[0], children, rec, rec.log())
	s.env = []string{fakeEnv + "=1"}
	s.minPause, s.maxPause = time.Millisecond, 4*time.Millisecond
	return s
}

func TestSupervisorRestartsOnTheSamePort(t *testing.T) {
	rec := newRecord()
	s := fakeSupervisor(rec, fakeChild("ctx0", "ok", "ctx"), fakeChild("gen0", "ok", "gen"))
	ctx, cancel := context.WithCancel(t.Context())
	urls, err := s.start(ctx)
	if err != nil || len(urls) != 2 {
		t.Fatalf("%v %v", urls, err)
	}
	for i := range 2 {
		post(t, urls[1]+"/crash", "")
		log := rec.wait("worker is back", i+1)
		if !strings.Contains(log, "exit status 7") || !strings.Contains(log, urls[1]) {
			t.Errorf("log %s", log)
		}
		if status, body := post(t, urls[1]+"/disagg/abort", "{}"); status != 200 {
			t.Errorf("after restart %d: %d %s", i, status, body)
		}
	}
	if log := rec.wait("[gen0] loading ok", 3); strings.Count(log, "[ctx0] loading ok") != 1 {
		t.Errorf("only the crashed child starts again: %s", log)
	}
	cancel()
	s.wait()
	for _, u := range urls {
		if conn, err := net.Dial("tcp", strings.TrimPrefix(u, "http://")); err == nil {
			conn.Close()
			t.Errorf("%s still listens", u)
		}
	}
}

func TestSupervisorFailedStart(t *testing.T) {
	rec := newRecord()
	s := fakeSupervisor(rec, fakeChild("ctx0", "ok", "ctx"), fakeChild("gen0", "broken", "gen"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.start(ctx)
	if err == nil || !strings.Contains(err.Error(), "gen0 ended before it was ready (exit status 3)") ||
		!strings.Contains(err.Error(), "engine: tensor blk.0 is truncated") {
		t.Errorf("reason: %v", err)
	}
	cancel()
	s.wait()
	if log := rec.wait("", 0); strings.Count(log, "[gen0] loading") != 1 {
		t.Errorf("no second try: %s", log)
	}
}

func TestSupervisorKillsTheStubborn(t *testing.T) {
	rec := newRecord()
	s := fakeSupervisor(rec, fakeChild("gen0", "stubborn", "gen"))
	s.grace = time.Hour
	hurry, now := context.WithCancel(t.Context())
	s.hurry = hurry
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := s.start(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	rec.wait("ignoring SIGTERM", 1)
	now()
	s.wait()
}

func TestSupervisorNoProgram(t *testing.T) {
	rec := newRecord()
	s := fakeSupervisor(rec, fakeChild("gen0", "ok", "gen"))
	s.bin = "/nonexistent/engine"
	if _, err := s.start(t.Context()); err == nil || !strings.Contains(err.Error(), "gen0: cannot start the worker") {
		t.Errorf("%v", err)
	}
	s.wait()
}

func TestLines(t *testing.T) {
	var got []string
	l := &lines{keep: 2, emit: func(s string) { got = append(got, s) }}
	for _, part := range []string{"a\nb", "c\r\n\n", "d", strings.Repeat("x", maxLine), "\ne"} {
		fmt.Fprint(l, part)
	}
	l.flush()
	if len(got) != 5 || got[0] != "a" || got[1] != "bc" || len(got[2]) != maxLine || got[3] != "x" || got[4] != "e" {
		t.Errorf("%d lines: %.20q", len(got), got)
	}
	if last := l.last(); len(last) != 2 || last[1] != "e" {
		t.Errorf("kept %.20q", last)
	}
}

func TestPortOf(t *testing.T) {
	if p, err := portOf("http://127.0.0.1:81"); err != nil || p != 81 {
		t.Errorf("%d %v", p, err)
	}
	for _, bad := range []string{"", "http://h", "http://h:x", "::", "http://h:0"} {
		if _, err := portOf(bad); err == nil {
			t.Errorf("%q accepted", bad)
		}
	}
}
