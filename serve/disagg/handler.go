package disagg

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"tandem/serve/conversation"
	"tandem/serve/openai"
)

// Handler returns the public routes.
func (s *Server) Handler() http.Handler {
	return s.guard(s.routes())
}

// routes are the public routes, before any key is asked for.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", s.complete(openai.Completion))
	mux.HandleFunc("POST /v1/chat/completions", s.complete(openai.Chat))
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id...}", s.model)
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /health/live", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /health/ready", s.healthReady)
	mux.HandleFunc("GET /cluster_info", s.clusterInfo)
	mux.HandleFunc("GET /version", s.version)
	mux.HandleFunc("GET /perf_metrics", s.perfMetrics)
	if s.metrics != nil {
		mux.Handle("GET /metrics", s.metrics)
		mux.Handle("GET /prometheus/metrics", s.metrics)
	}
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", http.MethodPost)
			openai.WriteError(w, openai.NewError(http.StatusMethodNotAllowed, openai.CodeMethodNotAllowed,
				"%s needs the method POST, not %s", r.URL.Path, openai.Cut(r.Method, 32)))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		openai.WriteError(w, openai.NewError(http.StatusNotFound, openai.CodeNotFound,
			"there is no %s %s here", openai.Cut(r.Method, 32), openai.Cut(r.URL.Path, 256)))
	})
	return mux
}

// complete handles one completions route.
func (s *Server) complete(e openai.Endpoint) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.serve(w, r, e) {
			// Ends the response abnormally, so that a client can tell truncation from completion.
			panic(http.ErrAbortHandler)
		}
	}
}

// serve answers one request and returns whether the connection must be cut.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, e openai.Endpoint) (cut bool) {
	p := &RoutePlan{RequestID: openai.RequestID(r.Header), Arrived: s.now()}
	p.link = s.tracer.Begin(r.Header, "POST "+e.String(), p.Arrived)
	out := s.newClient(w, p)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stop, func() {
		cancel(context.Cause(s.stop))
		time.AfterFunc(s.cfg.AbortGrace, out.cut) // a client that does not read must not hold up the end
	})()
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("request handler panicked", "panic", v, "stack", string(debug.Stack()))
			cut = out.fail(openai.NewError(http.StatusInternalServerError, "internal", "internal error"))
		}
	}()
	if ready, why := s.ready(); !ready {
		return s.finish(ctx, p, out, unavailable("%s; try again soon", why))
	}
	// Before the request counts as running: one whose body never ends must not hold up a drain or take a place.
	data, done, err := s.readBody(w, r)
	defer done()
	if err != nil {
		s.obs.Happened(EventValidation)
		// A read that fails ends the context of the request, too: yet who is slow, or stops writing, may still read.
		return s.finish(context.WithoutCancel(ctx), p, out, err)
	}
	err = s.admit(ctx, data, r.Header, e, p)
	who, _ := s.keys.find(r.Header) // guard has refused who has none
	if err == nil {
		err = p.setTenant(who)
	}
	if err != nil {
		s.obs.Happened(EventValidation)
		return s.finish(ctx, p, out, err)
	}
	if !s.enter() {
		return s.finish(ctx, p, out, unavailable("the frontend is shutting down"))
	}
	defer s.leave()
	leave, err := s.takePlace(ctx, p, who)
	if err != nil {
		return s.finish(ctx, p, out, err)
	}
	defer leave()
	s.obs.RequestBegan(p.Req.Stream)
	return s.finish(ctx, p, out, s.run(ctx, p, out))
}

// admit checks the request at the edge and completes its plan.
func (s *Server) admit(ctx context.Context, data []byte, h http.Header, e openai.Endpoint, p *RoutePlan) error {
	leave, err := s.heavy.Enter(ctx, len(data))
	if errors.Is(err, errShutdown) {
		return unavailable("the frontend is shutting down")
	}
	if err != nil {
		return err
	}
	defer leave()
	req, err := openai.DecodeRequest(e, data)
	if err != nil {
		return decodeError(err)
	}
	if err := s.checkEdge(req); err != nil {
		return err
	}
	params, _ := req.Body.Get("conversation_params")
	nvext, _ := req.Body.Get("nvext")
	who, err := s.cfg.Conversations.Resolve(conversation.Source{ConversationParams: params, NVExt: nvext, Header: h})
	if err != nil {
		return conversationError(err)
	}
	for range who.Rejected {
		s.obs.Happened(EventIDRejected)
	}
	limit, err := s.patience(h)
	if err != nil {
		return err
	}
	p.admitted(req, &s.cfg.Conversations, &who, limit)
	if limit < s.cfg.RequestTimeout {
		p.overtime = errPatience
	}
	return nil
}

// patience is how long the request may take: what the client says, but no longer than the configuration allows. A request
// that waits for its place this long gets none, and a worker that gets it too late does not begin.
func (s *Server) patience(h http.Header) (time.Duration, error) {
	text := h.Get(openai.HeaderTimeout)
	if text == "" {
		return s.cfg.RequestTimeout, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 1 {
		return 0, openai.Invalid(openai.HeaderTimeout, "%s is %q: it must be milliseconds, 1 or more", openai.HeaderTimeout, openai.Cut(text, 40))
	}
	if ms > s.cfg.RequestTimeout.Milliseconds() { // far more may not fit a Duration
		return s.cfg.RequestTimeout, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// decodeError is what a client is told of a body that cannot be decoded.
func decodeError(err error) error {
	var oe *openai.Error
	if errors.As(err, &oe) && strings.HasPrefix(oe.Param, "disaggregated_params") {
		return errInternalParams()
	}
	return err // an *openai.Error for the client
}

// conversationError is what a client is told of a conversation id that cannot be.
func conversationError(err error) error {
	var fe *conversation.FieldError
	if errors.As(err, &fe) {
		return openai.Invalid(fe.Param, "%s %s", fe.Param, fe.Message)
	}
	return err //nolint:wrapcheck // there is no other kind
}

func errInternalParams() *openai.Error {
	return openai.Invalid("disaggregated_params", "disaggregated_params is not part of the public API: leave it out")
}

// checkEdge refuses what only the frontend can judge.
func (s *Server) checkEdge(req *openai.Request) error {
	if _, ok := req.Body.Get("disaggregated_params"); ok {
		return errInternalParams()
	}
	if raw, ok := req.Body.Get("chat_template"); ok && string(raw) != "null" && !s.cfg.AllowChatTemplate {
		return openai.Unsupported("chat_template", "a chat template in the request is refused: leave chat_template out, the model's own is used")
	}
	if req.Model == "" || s.reg.Serves(req.Model) {
		return nil
	}
	models, _ := s.reg.Models()
	names := make([]string, 0, len(models))
	for _, m := range models {
		names = append(names, m.ID)
	}
	err := openai.NewError(http.StatusNotFound, openai.CodeModelNotFound, "the model %q does not exist; available: %s",
		openai.Cut(req.Model, 128), strings.Join(names, ", "))
	err.Param = "model"
	return err
}
