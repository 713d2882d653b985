package disagg

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/trace"
)

func TestCaptureOfRequests(t *testing.T) {
	for _, asBytes := range []bool{false, true} {
		dir := t.TempDir()
		c, err := trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1}, newClock().now())
		if err != nil {
			t.Fatal(err)
		}
		r, _ := perfRig(t, nil, func(r *rig, p *Parts) { p.Capture, r.cfg.PromptIDsAsBytes = c, asBytes })
		r.post("/v1/completions", `{"model":"tiny","prompt":"my secret","max_tokens":8}`, "X-Session-ID", "conv-7")
		r.post("/v1/completions", `{"prompt":"my secret","stream":true}`, "X-Session-ID", "conv-7")
		r.post("/v1/completions", `{"prompt":[]}`)
		r.s.Drain(t.Context())
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		lines := captured(t, dir)
		if len(lines) != 3 {
			t.Fatalf("%d lines: %q", len(lines), lines)
		}
		var a, b trace.Captured
		if json.Unmarshal([]byte(lines[1]), &a) != nil || json.Unmarshal([]byte(lines[2]), &b) != nil {
			t.Fatal(lines)
		}
		if a.Input != 5 || a.Output != 3 || b.Input != 5 || a.Conversation == "" || a.Conversation != b.Conversation || a.RequestID == b.RequestID {
			t.Errorf("%+v\n%+v", a, b)
		}
		if a.Observed.Outcome != "ok" || a.Observed.CtxServer != r.ctx[0].id || b.Observed.TTFTMs <= 0 || b.TimestampMs <= a.TimestampMs {
			t.Errorf("%+v\n%+v", a.Observed, b.Observed)
		}
		if text := strings.Join(lines, "\n"); strings.Contains(text, "secret") || strings.Contains(text, "conv-7") {
			t.Errorf("it tells too much: %s", text)
		}
	}
}

// captured returns the lines of a folder's only file.
func captured(t *testing.T, dir string) (lines []string) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	f, err := os.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for sc := bufio.NewScanner(z); sc.Scan(); {
		lines = append(lines, sc.Text())
	}
	return lines
}

func TestPromptOfAReply(t *testing.T) {
	for _, tc := range []struct {
		h    *handoff
		want int
	}{
		{nil, 0},
		{&handoff{}, 0},
		{&handoff{promptIDs: []byte(`[1,2,70000]`)}, 3},
		{&handoff{promptIDs: []byte(`"AQAAAAIAAAADAAAAcBEBAA=="`), idsAsBytes: true}, 4},
		{&handoff{promptIDs: []byte(`"!"`), idsAsBytes: true}, 0},
		{&handoff{promptIDs: []byte(`{}`), idsAsBytes: true}, 0},
	} {
		if got := tc.h.prompt(); len(got) != tc.want {
			t.Errorf("%+v: %v", tc.h, got)
		}
	}
}

func TestCaptureHashesThePrompt(t *testing.T) {
	dir := t.TempDir()
	c, err := trace.NewCapture(trace.CaptureOptions{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1}, newClock().now())
	if err != nil {
		t.Fatal(err)
	}
	ctx, gen := newStub(t, discovery.Context, ctxReply{}.script), newStub(t, discovery.Generation, genReply{}.script)
	ctx.info.TokensPerBlock, gen.info.TokensPerBlock = 2, 2
	r := newRig(t, []*stub{ctx}, []*stub{gen}, func(_ *rig, p *Parts) { p.Capture = c })
	r.post("/v1/completions", `{"prompt":"hi"}`)
	r.s.Drain(t.Context())
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	var a trace.Captured
	if err := json.Unmarshal([]byte(captured(t, dir)[1]), &a); err != nil {
		t.Fatal(err)
	}
	if a.BlockSize != 2 || len(a.HashIDs) != 2 { // of the 5 tokens of the ctx reply
		t.Errorf("%+v", a)
	}
}
