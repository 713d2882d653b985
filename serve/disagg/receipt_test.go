package disagg

import (
	"net/http"
	"strings"
	"testing"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// receipted answers with a route receipt before what script says.
func receipted(receipt string, script func(int, seen, http.ResponseWriter, *http.Request)) func(int, seen, http.ResponseWriter, *http.Request) {
	return func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if receipt != "" && q.header.Get(openai.HeaderReturnRoute) == "1" {
			w.Header().Set(openai.HeaderRoute, receipt)
		}
		script(n, q, w, r)
	}
}

func TestReceiptsReachTheClient(t *testing.T) {
	const ctxR, genR = "ctx;rank=2;reason=sticky", "gen;rank=0;reason=new"
	early := ctxReply{extra: `"first_delta":{"text":"A"},`}
	ends := ctxReply{finish: "stop"}
	for _, tc := range []struct {
		name     string
		expose   bool
		ctx, gen string
		reply    ctxReply
		body     string
		want     string
	}{
		{"whole", true, ctxR, genR, ctxReply{}, hello, ctxR + ", " + genR},
		{"streamed", true, ctxR, genR, ctxReply{}, streamed, ctxR + ", " + genR},
		{"streamed with an early token", true, ctxR, genR, early, streamed, ctxR + ", " + genR},
		{"ctx has one rank", true, "", genR, ctxReply{}, hello, genR},
		{"gen has one rank", true, ctxR, "", ctxReply{}, streamed, ctxR},
		{"one rank each", true, "", "", ctxReply{}, hello, ""},
		{"gen skipped", true, ctxR, genR, ends, hello, ctxR},
		{"gen skipped in a stream", true, ctxR, genR, ends, streamed, ctxR},
		{"not exposed", false, ctxR, genR, ctxReply{}, hello, ""},
		{"not exposed in a stream", false, ctxR, genR, early, streamed, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := newStub(t, discovery.Context, receipted(tc.ctx, tc.reply.script))
			gen := newStub(t, discovery.Generation, receipted(tc.gen, genReply{}.script))
			r := newRig(t, []*stub{ctx}, []*stub{gen}, withConfig(func(c *Config) { c.ExposeRouting = tc.expose }))
			a := r.post(completions, tc.body)
			if a.status != http.StatusOK || a.header.Get(openai.HeaderRoute) != tc.want || strings.Contains(a.raw, openai.HeaderRoute) {
				t.Errorf("%d, %q, want %q\n%s", a.status, a.header.Get(openai.HeaderRoute), tc.want, a.raw)
			}
		})
	}
}

// A gen leg that is repeated before headers are out shows the worker that answered.
func TestReceiptOfARepeatedLeg(t *testing.T) {
	breaks := func(_ int, _ seen, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(openai.HeaderRoute, "gen;rank=0;reason=new")
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, tc := range map[string]struct {
		reply           ctxReply
		header, comment string
	}{
		"headers wait": {ctxReply{}, "gen;rank=3;reason=no_key", ""},
		"headers are out with the early token": {
			ctxReply{extra: `"first_delta":{"text":"A"},`}, "gen;rank=0;reason=new", ": X-Tandem-Route: gen;rank=3;reason=no_key\n\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := newStub(t, discovery.Context, tc.reply.script)
			script := receipted("gen;rank=3;reason=no_key", genReply{}.script)
			gen := newStub(t, discovery.Generation, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
				if n == 0 {
					breaks(n, q, w, r)
				}
				script(n, q, w, r)
			})
			r := newRig(t, []*stub{ctx}, []*stub{gen})
			a := r.post(completions, streamed)
			if a.status != http.StatusOK || a.header.Get(openai.HeaderRoute) != tc.header || !strings.HasSuffix(a.raw, openai.DoneEvent) {
				t.Errorf("%d, %q, want %q\n%s", a.status, a.header.Get(openai.HeaderRoute), tc.header, a.raw)
			}
			if got := strings.Contains(a.raw, openai.HeaderRoute); got != (tc.comment != "") || !strings.Contains(a.raw, tc.comment) {
				t.Errorf("want the comment %q in\n%s", tc.comment, a.raw)
			}
		})
	}
}
