package disagg

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// Reasons of an abort, labels of a metric.
const (
	reasonClient   = "client_disconnect"
	reasonRetry    = "retry"
	reasonError    = "error"
	reasonTimeout  = "timeout"
	reasonHedge    = "hedge"
	reasonShutdown = "shutdown"
	reasonSkipped  = "gen_skipped" // generation-first: the request ended with its first token
)

// reasonOf names why a leg's failure aborts what it left behind.
func reasonOf(ctx context.Context, e *legError) string {
	switch {
	case e != nil && (e.fault == faultDeadline || e.fault == faultSilent):
		return reasonTimeout
	case context.Cause(ctx) == errShutdown: //nolint:errorlint // the cause is this very value
		return reasonShutdown
	case ctx.Err() != nil:
		return reasonClient
	}
	return reasonError
}

// abort tells a worker that an attempt is over. It returns at once; the message has a context and deadline of its own, so
// that the end of the request cannot stop it. Close waits for it.
func (s *Server) abort(ctx context.Context, role discovery.Role, inst discovery.Instance, id int64, reason string) {
	s.obs.Happened(EventAbort, string(role), reason)
	s.diag.aborted(role, inst, id, reason)
	s.background.Go(func() {
		actx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AbortGrace)
		defer cancel()
		if err := s.sendAbort(actx, inst, id, reason); err != nil {
			s.log.Debug("abort not delivered", "server", inst.ID, "disagg_request_id", id, "error", err)
		}
	})
}

func (s *Server) sendAbort(ctx context.Context, inst discovery.Instance, id int64, reason string) error {
	body := strconv.AppendInt([]byte(`{"disagg_request_id":`), id, 10)
	body = append(openai.AppendString(append(body, `,"reason":`...), reason), '}')
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, inst.URL+"/disagg/abort", bytes.NewReader(body))
	if err != nil {
		return err // logged by the only caller
	}
	req.Header.Set("Content-Type", "application/json")
	if len(s.cfg.AuthKey) > 0 {
		req.Header.Set(openai.HeaderAuth, openai.Key(s.cfg.AuthKey).SignAbort(id))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err // logged by the only caller
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBytes))
	return err // logged by the only caller
}
