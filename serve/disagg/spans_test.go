package disagg

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"tandem/serve/discovery"
	"tandem/serve/trace"
)

const (
	clientParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	clientTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
)

func TestSpansOfARequest(t *testing.T) {
	exp := tracetest.NewInMemoryExporter()
	tracer, err := trace.NewTracer(trace.Options{Exporter: keep{exp}, Ratio: 1})
	if err != nil {
		t.Fatal(err)
	}
	fails := newStub(t, discovery.Generation, func(n int, q seen, w http.ResponseWriter, r *http.Request) {
		if n == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		genReply{}.script(n, q, w, r)
	})
	r := newRig(t, []*stub{newStub(t, discovery.Context, ctxReply{}.script)}, []*stub{fails}, func(_ *rig, p *Parts) { p.Tracer = tracer })
	r.post("/v1/completions", `{"prompt":"secret prompt","max_tokens":8}`, "traceparent", clientParent, "X-Request-ID", "r1")
	r.s.Drain(t.Context())
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	byName := map[string][]tracetest.SpanStub{}
	for _, s := range exp.GetSpans() {
		byName[s.Name] = append(byName[s.Name], s)
		if s.SpanContext.TraceID().String() != clientTrace {
			t.Errorf("%s is in another trace", s.Name)
		}
		for _, a := range s.Attributes {
			if strings.Contains(a.Value.String(), "secret") {
				t.Errorf("%s tells the prompt: %v", s.Name, a)
			}
		}
	}
	root := byName["POST /v1/completions"]
	if len(root) != 1 || len(byName["context leg"]) != 1 || len(byName["generation leg"]) != 2 {
		t.Fatalf("%v", byName)
	}
	for _, role := range []string{"context leg", "generation leg"} {
		for _, s := range byName[role] {
			if s.Parent.SpanID() != root[0].SpanContext.SpanID() {
				t.Errorf("%s is not below the request", role)
			}
		}
	}
	if first := byName["generation leg"][0]; first.Status.Description == "" {
		t.Errorf("a leg that failed looks well: %+v", first.Status)
	}
	sent := r.ctx[0].requests()[0].header.Get("traceparent")
	if want := byName["context leg"][0].SpanContext.SpanID().String(); !strings.Contains(sent, clientTrace+"-"+want) {
		t.Errorf("the worker got %q, want span %s", sent, want)
	}
}

// keep is an exporter whose spans survive its shutdown.
type keep struct{ *tracetest.InMemoryExporter }

func (keep) Shutdown(_ context.Context) error { return nil }

func TestTraceContextPassesWithoutTracer(t *testing.T) {
	r := one(t, ctxReply{}, genReply{})
	r.post("/v1/completions", `{"prompt":"hi"}`, "traceparent", clientParent, "tracestate", "a=b")
	r.post("/v1/completions", `{"prompt":"hi"}`, "traceparent", "nonsense")
	for _, st := range []*stub{r.ctx[0], r.gen[0]} {
		if h := st.requests()[0].header; h.Get("traceparent") != clientParent || h.Get("tracestate") != "a=b" {
			t.Errorf("%v", h)
		}
		if h := st.requests()[1].header; h.Get("traceparent") != "" {
			t.Errorf("nonsense was passed on: %v", h)
		}
	}
}
