package disagg

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
)

// diagnosed reads the names of the events, and the last line.
func diagnosed(t *testing.T, log *lineLog) (events []string, last diagnosis) {
	t.Helper()
	log.mu.Lock()
	defer log.mu.Unlock()
	for i, line := range log.lines {
		var d diagnosis
		dec := json.NewDecoder(strings.NewReader(line))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&d); err != nil || !strings.HasSuffix(line, "}\n") {
			t.Fatalf("%v in %q", err, line)
		}
		if d.V != 1 || d.Seq != uint64(i+1) || d.WallNS < last.WallNS || d.Node != 7 || i > 0 && d.ClockID != last.ClockID || d.RID == "" || len(d.Error) > maxDiagError+4 {
			t.Errorf("line %d: %+v after %+v", i, d, last)
		}
		events, last = append(events, d.Event), d
	}
	return events, last
}

// Each event in the life of a request has its line, in order.
func TestDiagnostics(t *testing.T) {
	const ok = "ctx_dispatch ctx_complete gen_dispatch gen_complete"
	long := strings.Repeat("too long ", 100)
	for name, c := range map[string]struct {
		ctx, gen func(int, seen, http.ResponseWriter, *http.Request)
		status   int
		want     string
	}{
		"good":         {ctxReply{}.script, genReply{}.script, 200, ok},
		"ctx refuses":  {refuse(400, long), genReply{}.script, 400, "ctx_dispatch ctx_error"},
		"gen refuses":  {ctxReply{}.script, refuse(400, long), 400, "ctx_dispatch ctx_complete gen_dispatch gen_rejected abort"},
		"only one leg": {ctxReply{finish: "stop"}.script, genReply{}.script, 200, "ctx_dispatch ctx_complete"},
		"gen babbles": {ctxReply{}.script, func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "what?")
		}, 502, "ctx_dispatch ctx_complete gen_dispatch gen_error abort abort"},
	} {
		log := &lineLog{}
		r := newRig(t, []*stub{newStub(t, discovery.Context, c.ctx)}, []*stub{newStub(t, discovery.Generation, c.gen)},
			withConfig(func(cfg *Config) { cfg.NodeID, cfg.MaxRetries = 7, 0 }), func(_ *rig, p *Parts) { p.Diag = log })
		if a := r.post(completions, hello); a.status != c.status {
			t.Errorf("%s: %d %s", name, a.status, a.raw)
		}
		events, last := diagnosed(t, log)
		if got := strings.Join(events, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if name == "good" && (last.Ctx != r.ctx[0].id || last.Gen != r.gen[0].id || last.Sched != "context_first" || last.RequestID == "" || last.Status != 0) {
			t.Errorf("%+v", last)
		}
		if name == "ctx refuses" && (last.Status != 400 || !strings.Contains(last.Error, "too long")) {
			t.Errorf("%+v", last)
		}
	}
}
