package disagg

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/openai"
	"tandem/serve/trace"
)

// logLines is a log handler that keeps the entries of requests.
type logLines struct {
	level slog.Level
	mu    sync.Mutex
	list  []map[string]string
}

func (l *logLines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }
func (l *logLines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logLines) WithGroup(string) slog.Handler                    { return l }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	if r.Message != "request" {
		return nil
	}
	entry := map[string]string{"level": r.Level.String()}
	r.Attrs(func(a slog.Attr) bool { entry[a.Key] = a.Value.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, entry)
	return nil
}

func (l *logLines) entries() []map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list
}

func logged(level slog.Level, rl trace.RequestLog) (*logLines, rigOption) {
	h := &logLines{level: level}
	return h, func(r *rig, p *Parts) { p.Log, r.cfg.RequestLog = slog.New(h), rl }
}

func TestRequestLog(t *testing.T) {
	h, opt := logged(slog.LevelInfo, trace.RequestLog{On: true, Level: slog.LevelInfo, Sample: 1})
	r, _ := perfRig(t, nil, opt)
	r.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"my secret"}],"stream":true}`,
		"X-Request-ID", "r1", "X-Session-ID", "conv-7", "Authorization", "Bearer secret", "traceparent", clientParent)
	r.s.Drain(t.Context())
	list := h.entries()
	if len(list) != 1 {
		t.Fatalf("%d lines", len(list))
	}
	e := list[0]
	for key, want := range map[string]string{
		"level": "INFO", "request_id": "r1", "trace_id": clientTrace, "endpoint": "chat", "stream": "true", "conversation_id": "conv-7",
		"path": "ctx_gen", "ctx_server": r.ctx[0].id, "gen_server": r.gen[0].id, "attempts": "2", "status": "200", "outcome": "ok",
		"prompt_tokens": "5", "cached_tokens": "0", "total_ms": "229",
	} {
		if e[key] != want {
			t.Errorf("%s is %q, want %q", key, e[key], want)
		}
	}
	if e["disagg_request_id"] == "" || !strings.Contains(e["stages"], "ctx_ms=53") {
		t.Errorf("%v", e)
	}
	for key, val := range e {
		if strings.Contains(val, "secret") {
			t.Errorf("%s tells %q", key, val)
		}
	}
}

func TestRequestLogOfFailuresAndSamples(t *testing.T) {
	for _, tc := range []struct {
		name string
		at   slog.Level
		log  trace.RequestLog
		want int // lines of a success and two failures
	}{
		{"all", slog.LevelDebug, trace.RequestLog{On: true, Level: slog.LevelDebug, Sample: 1}, 3},
		{"failures", slog.LevelDebug, trace.RequestLog{On: true, Level: slog.LevelDebug}, 2},
		{"level", slog.LevelInfo, trace.RequestLog{On: true, Level: slog.LevelDebug, Sample: 1}, 0},
		{"off", slog.LevelDebug, trace.RequestLog{Sample: 1}, 0},
	} {
		h, opt := logged(tc.at, tc.log)
		r := one(t, ctxReply{}, genReply{}, opt)
		r.post("/v1/completions", `{"prompt":"hi"}`)
		r.post("/v1/completions", `{"prompt":["a","b"]}`)
		r.post("/v1/completions", `{`)
		r.s.Drain(t.Context())
		if got := h.entries(); len(got) != tc.want {
			t.Errorf("%s: %d lines: %v", tc.name, len(got), got)
		}
		for _, e := range h.entries() {
			if e["outcome"] != "ok" && (e["outcome"] != openaiInvalid || e["status"] != "400") {
				t.Errorf("%s: %v", tc.name, e)
			}
		}
	}
}

// The time that a ctx worker let a request wait until it failed is a stage of that worker.
func TestFailedContextLegHasItsTime(t *testing.T) {
	h, opt := logged(slog.LevelDebug, trace.RequestLog{On: true, Level: slog.LevelDebug, Sample: 1})
	r := newRig(t, []*stub{newStub(t, discovery.Context, func(_ int, _ seen, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })},
		[]*stub{newStub(t, discovery.Generation, genReply{}.script)}, opt)
	r.post(completions, hello, openai.HeaderTimeout, "50").wantError(t, http.StatusGatewayTimeout)
	r.s.Drain(t.Context())
	if list := h.entries(); len(list) != 1 || !strings.Contains(list[0]["stages"], "ctx_ms") {
		t.Errorf("%v", list)
	}
}
