package disagg

import (
	"context"
	"log/slog"

	"tandem/serve/openai"
	"tandem/serve/trace"
)

// logs tells whether there may be lines, for which workers must tell their ranks.
func (s *Server) logs() bool { return s.cfg.RequestLog.Wants(s.log, "", true) }

// logRequest writes the request's line: ids, who served it, tokens, times and outcome. Nothing that a user wrote is in it
// but ids.
func (s *Server) logRequest(ctx context.Context, p *RoutePlan) {
	j := &p.trip
	if !s.cfg.RequestLog.Wants(s.log, p.RequestID, j.outcome != "ok") {
		return
	}
	attrs := make([]slog.Attr, 0, 24)
	text := func(key, val string) {
		if val != "" {
			attrs = append(attrs, slog.String(key, val))
		}
	}
	text("request_id", p.RequestID)
	text("disagg_request_id", decimalID(j.id))
	text("trace_id", p.link.TraceID())
	if p.Req != nil {
		endpoint := "completions"
		if p.Req.Endpoint == openai.Chat {
			endpoint = "chat"
		}
		attrs = append(attrs, slog.String("endpoint", endpoint), slog.Bool("stream", p.Req.Stream))
	}
	text("conversation_id", openai.Cut(p.Ctx.ConversationID, 64))
	text("path", string(p.Path))
	text("ctx_server", j.ctx.ID)
	text("ctx_route", j.ctxRoute)
	text("gen_server", j.gen.ID)
	text("gen_route", j.genRoute)
	attrs = append(attrs, slog.Int("attempts", j.attempts), slog.Int("status", j.status), slog.String("outcome", j.outcome),
		slog.Int("prompt_tokens", j.tokens.Prompt), slog.Int("cached_tokens", j.tokens.Cached), slog.Int("completion_tokens", j.tokens.Completion),
		slog.Float64("total_ms", millis(j.finished.Sub(p.Arrived))))
	if !j.first.IsZero() {
		attrs = append(attrs, slog.Float64("ttft_ms", millis(j.first.Sub(p.Arrived))))
	}
	if j.id != 0 {
		attrs = append(attrs, trace.Attr("stages", j.timeline(p.Arrived).Stages(j.finished)))
	}
	s.log.LogAttrs(ctx, s.cfg.RequestLog.Level, "request", attrs...)
}
