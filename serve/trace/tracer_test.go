package trace

import (
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

const (
	parent   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	parentID = "4bf92f3577b34da6a3ce929d0e0e4736"
)

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// memory returns a tracer and what it has exported after a flush.
func memory(t *testing.T, ratio float64) (*Tracer, func() tracetest.SpanStubs) {
	t.Helper()
	exp := tracetest.NewInMemoryExporter()
	tr, err := NewTracer(Options{Exporter: exp, Ratio: ratio, Service: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.Shutdown(t.Context()) })
	return tr, func() tracetest.SpanStubs {
		if err := tr.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return exp.GetSpans()
	}
}

func TestSpansFollowAClient(t *testing.T) {
	tr, spans := memory(t, 0) // of its own traces it would record none
	l := tr.Begin(headers("traceparent", parent, "tracestate", "v=1"), "root", epoch)
	leg := l.Child("leg")
	out := http.Header{}
	l.Inject(leg, out)
	if got := out.Get("traceparent"); !strings.HasPrefix(got, "00-"+parentID+"-") || got == parent || out.Get("tracestate") != "v=1" {
		t.Errorf("passed on: %v", out)
	}
	leg.Fail("overloaded")
	leg.End(time.Time{})
	l.Span.Text("k", "v")
	l.Span.Stages(epoch, []Stage{{"queue", time.Second}, {"none", 0}, {"decode", 2 * time.Second}})
	l.Span.End(epoch.Add(3 * time.Second))
	list := spans()
	if len(list) != 4 || l.TraceID() != parentID {
		t.Fatalf("%d spans, trace %s", len(list), l.TraceID())
	}
	root := list[3]
	if root.Parent.SpanID().String() != "00f067aa0ba902b7" || root.EndTime.Sub(root.StartTime) != 3*time.Second {
		t.Errorf("%+v", root)
	}
	for _, s := range list[:3] {
		if s.SpanContext.TraceID().String() != parentID || s.Parent.SpanID() != root.SpanContext.SpanID() {
			t.Errorf("%s is not a child of the root", s.Name)
		}
	}
	if d := list[2]; d.Name != "decode" || !d.StartTime.Equal(epoch.Add(time.Second)) || !d.EndTime.Equal(epoch.Add(3*time.Second)) {
		t.Errorf("%+v", d)
	}
}

func TestSamplingOfOwnTraces(t *testing.T) {
	for ratio, want := range map[float64]int{0: 0, 1: 1} {
		tr, spans := memory(t, ratio)
		l := tr.Begin(http.Header{}, "root", epoch)
		l.Span.End(time.Time{})
		if got := len(spans()); got != want || l.TraceID() == "" {
			t.Errorf("ratio %g: %d spans", ratio, got)
		}
	}
	tr, spans := memory(t, 1)
	l := tr.Begin(headers("traceparent", strings.TrimSuffix(parent, "1")+"0"), "root", epoch)
	if l.Span.End(time.Time{}); len(spans()) != 0 {
		t.Error("a trace that its client does not record is recorded")
	}
}

func TestOffPassesTheContextOn(t *testing.T) {
	tr, err := NewTracer(Options{})
	if tr != nil || err != nil {
		t.Fatal(tr, err)
	}
	for _, tc := range []struct{ in, state, out, outState string }{
		{parent, "a=b", parent, "a=b"},
		{parent, strings.Repeat("x", maxState+1), parent, ""},
		{"garbage", "a=b", "", ""},
		{"00-00000000000000000000000000000000-00f067aa0ba902b7-01", "", "", ""},
		{"", "a=b", "", ""},
	} {
		l := tr.Begin(headers("traceparent", tc.in, "tracestate", tc.state), "root", epoch)
		out := http.Header{}
		l.Inject(l.Child("leg"), out)
		if out.Get("traceparent") != tc.out || out.Get("tracestate") != tc.outState {
			t.Errorf("%q: %v", tc.in, out)
		}
		if (l.TraceID() == parentID) != (tc.out != "") {
			t.Errorf("%q: trace %q", tc.in, l.TraceID())
		}
	}
	if err := tr.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOffCostsNothing(t *testing.T) {
	var tr *Tracer
	in, out := http.Header{}, http.Header{}
	if n := testing.AllocsPerRun(100, func() {
		l := tr.Begin(in, "root", epoch)
		leg := l.Child("leg")
		l.Inject(leg, out)
		leg.Text("k", "v")
		leg.Fail("x")
		leg.End(time.Time{})
		l.Span.Stages(epoch, nil)
		l.Span.End(epoch)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestParseEndpoint(t *testing.T) {
	for in, want := range map[string]string{
		"collector:4317": "http://collector:4317", "http://c:1": "http://c:1", "https://c:1/": "https://c:1", "grpc://c:1": "http://c:1",
		"ftp://c:1": "", "collector": "", "http://": "", "http://c": "", "%": "",
	} {
		if got, err := ParseEndpoint(in); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

var _ sdk.SpanExporter = (*tracetest.InMemoryExporter)(nil)
