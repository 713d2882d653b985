package trace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	api "go.opentelemetry.io/otel/trace"
)

// Headers of the W3C trace context, in the form that http.Header finds without
// making a string.
const (
	headerParent = "Traceparent"
	headerState  = "Tracestate"
)

// maxState bounds a tracestate that is passed on.
const maxState = 1024

// Options say whether and where spans go.
type Options struct {
	// Endpoint is the OTLP receiver: http://host:port, https://host:port, or
	// host:port for http; gRPC in each case. Empty turns spans off.
	Endpoint string
	// Ratio of the traces that begin here, 0..1. One that a client began is
	// recorded if the client records it.
	Ratio   float64
	Service string
	Version string
	Log     *slog.Logger // nil = discard
	// Exporter replaces the OTLP one, for tests.
	Exporter sdk.SpanExporter
}

// Tracer makes spans. A nil Tracer makes none and costs nothing.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   api.Tracer
	prop     propagation.TraceContext
}

// ParseEndpoint checks an endpoint and gives it the form that the exporter takes.
func ParseEndpoint(text string) (string, error) {
	full := text
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	switch {
	case err != nil || u.Host == "" || u.Port() == "":
		return "", fmt.Errorf("%q is no http://host:port", text)
	case u.Scheme == "grpc":
		u.Scheme = "http"
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q is neither http:// nor https://", text)
	}
	return u.Scheme + "://" + u.Host, nil
}

// NewTracer returns a Tracer, nil if o turns spans off. It does not wait for the
// receiver: what cannot be delivered is logged and lost. Shut it down at the end.
func NewTracer(o Options) (*Tracer, error) {
	exporter := o.Exporter
	if exporter == nil {
		if o.Endpoint == "" {
			return nil, nil //nolint:nilnil // a nil Tracer is one that is off
		}
		endpoint, err := ParseEndpoint(o.Endpoint)
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		if exporter, err = otlptracegrpc.New(context.Background(), otlptracegrpc.WithEndpointURL(endpoint)); err != nil {
			return nil, fmt.Errorf("trace: export to %s: %w", endpoint, err)
		}
		log := o.Log
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans were not exported", "error", err) }))
	}
	res := resource.NewSchemaless(attribute.String("service.name", o.Service), attribute.String("service.version", o.Version))
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter), sdk.WithResource(res), sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("tandem")}, nil
}

// Shutdown sends what is left, until ctx ends.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return errors.Join(t.provider.ForceFlush(ctx), t.provider.Shutdown(ctx))
}

// Link is a request's place in a trace: the span of this process, or, with
// tracing off, what came in and goes out again. The zero Link is in no trace.
type Link struct {
	Span          *Span
	parent, state string
}

// Begin starts the span of a request that came with h. With tracing off a valid
// trace context is kept, so that it reaches the next process.
func (t *Tracer) Begin(h http.Header, name string, at time.Time) Link {
	if t != nil {
		ctx := t.prop.Extract(context.Background(), propagation.HeaderCarrier(h))
		return Link{Span: t.start(ctx, name, at, api.SpanKindServer)}
	}
	parent := h.Get(headerParent)
	if parent == "" || !validParent(parent) {
		return Link{}
	}
	l := Link{parent: parent}
	if state := h.Get(headerState); len(state) <= maxState {
		l.state = state
	}
	return l
}

// validParent checks the form of a traceparent, version-format and all.
func validParent(text string) bool {
	h := http.Header{}
	h.Set(headerParent, text)
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.HeaderCarrier(h))
	return api.SpanContextFromContext(ctx).IsValid()
}

// Child starts the span of a call to another process.
func (l Link) Child(name string) *Span {
	if l.Span == nil {
		return nil
	}
	return l.Span.tracer.start(l.Span.ctx, name, time.Time{}, api.SpanKindClient)
}

// Inject puts the context of a call into its headers: s, made by Child, or what
// came in.
func (l Link) Inject(s *Span, h http.Header) {
	switch {
	case s != nil:
		s.tracer.prop.Inject(s.ctx, propagation.HeaderCarrier(h))
	case l.parent != "":
		h.Set(headerParent, l.parent)
		if l.state != "" {
			h.Set(headerState, l.state)
		}
	}
}

// TraceID returns the id of the trace as hexadecimal, "" outside of any.
func (l Link) TraceID() string {
	switch {
	case l.Span != nil:
		return l.Span.span.SpanContext().TraceID().String()
	case l.parent != "":
		return l.parent[3:35] // version, dash, 32 digits: validParent has seen it
	}
	return ""
}

// Span is a part of a trace. All methods of a nil Span do nothing.
type Span struct {
	tracer *Tracer
	ctx    context.Context // holds nothing but the span
	span   api.Span
}

func (t *Tracer) start(parent context.Context, name string, at time.Time, kind api.SpanKind) *Span {
	opts := []api.SpanStartOption{api.WithSpanKind(kind)}
	if !at.IsZero() {
		opts = append(opts, api.WithTimestamp(at))
	}
	ctx, span := t.tracer.Start(parent, name, opts...)
	return &Span{t, ctx, span}
}

// Text sets a text that the span says of itself; an empty one is left out.
func (s *Span) Text(key, val string) {
	if s != nil && val != "" {
		s.span.SetAttributes(attribute.String(key, val))
	}
}

// Int sets a number.
func (s *Span) Int(key string, val int) {
	if s != nil {
		s.span.SetAttributes(attribute.Int(key, val))
	}
}

// Name renames the span.
func (s *Span) Name(name string) {
	if s != nil {
		s.span.SetName(name)
	}
}

// Fail marks the span as failed for a reason of a closed set: no text of users.
func (s *Span) Fail(reason string) {
	if s != nil {
		s.span.SetStatus(codes.Error, reason)
	}
}

// Stages adds a finished child for each stage that took time, one after the
// other from start on.
func (s *Span) Stages(start time.Time, stages []Stage) {
	if s == nil || !s.span.IsRecording() {
		return
	}
	for _, st := range stages {
		end := start.Add(st.Took)
		if st.Took > 0 {
			s.tracer.start(s.ctx, st.Name, start, api.SpanKindInternal).End(end)
		}
		start = end
	}
}

// End finishes the span; the zero time is now. A second call does nothing.
func (s *Span) End(at time.Time) {
	switch {
	case s == nil:
	case at.IsZero():
		s.span.End()
	default:
		s.span.End(api.WithTimestamp(at))
	}
}
