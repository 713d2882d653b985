package worker

import (
	"context"
	"errors"
	"net/http"
	"time"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/openai"
)

// statuses maps every engine error code to its HTTP status.
var statuses = map[request.Code]int{
	request.InvalidRequest:   http.StatusBadRequest,
	request.CapacityNever:    http.StatusBadRequest,
	request.InvalidGrammar:   http.StatusBadRequest,
	request.GrammarDeadEnd:   http.StatusBadRequest,
	request.QueueFull:        http.StatusTooManyRequests,
	request.Cancelled:        openai.StatusClientClosed,
	request.BadLogits:        http.StatusInternalServerError,
	request.StepFailed:       http.StatusInternalServerError,
	request.Internal:         http.StatusInternalServerError,
	request.TransferFailed:   http.StatusBadGateway,
	request.LayoutMismatch:   http.StatusBadGateway,
	request.UnknownTransfer:  http.StatusBadGateway,
	request.Capacity:         http.StatusServiceUnavailable,
	request.QueueTimeout:     http.StatusServiceUnavailable,
	request.EngineDead:       http.StatusServiceUnavailable,
	request.TransferTimeout:  http.StatusGatewayTimeout,
	request.DeadlineExceeded: http.StatusGatewayTimeout,
}

// fromEngine turns an engine error into a wire error.
func fromEngine(e *request.Error) *openai.Error {
	status, ok := statuses[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	out := openai.NewError(status, string(e.Code), "%s", e.Message)
	out.Param = e.Param
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		out.RetryAfter = time.Second
	}
	return out
}

// wireError turns any error of a request's way into a wire error.
func wireError(err error) *openai.Error {
	var wire *openai.Error
	var eng *request.Error
	switch {
	case errors.As(err, &wire):
		return wire
	case errors.As(err, &eng):
		return fromEngine(eng)
	case errors.Is(err, runner.ErrStopped):
		return unavailable(string(request.EngineDead), "the engine has stopped")
	case errors.Is(err, context.DeadlineExceeded):
		return openai.NewError(http.StatusGatewayTimeout, string(request.DeadlineExceeded), "the request's deadline passed")
	case errors.Is(err, context.Canceled):
		return openai.NewError(openai.StatusClientClosed, string(request.Cancelled), "the client closed the request")
	}
	return openai.NewError(http.StatusInternalServerError, string(request.Internal), "internal error")
}

// wireError is what the request's sender is told. A worker at its end cancels what still runs: its sender, who is there, did
// not, and is to send it to another one.
func (x *exchange) wireError(err error) *openai.Error {
	e := wireError(err)
	if e.Status == openai.StatusClientClosed && x.s.draining.Load() && x.r.Context().Err() == nil {
		return unavailable("draining", "this worker shut down before the request had ended: send the request to another one")
	}
	return e
}

func unavailable(code, message string) *openai.Error {
	e := openai.NewError(http.StatusServiceUnavailable, code, "%s", message)
	e.RetryAfter = time.Second
	return e
}
