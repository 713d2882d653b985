package disagg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"time"

	"tandem/serve/discovery"
	"tandem/serve/openai"
)

// Causes for which a leg's context ends early.
var (
	errTimeout    = errors.New("it took longer than request_timeout_sec")
	errPatience   = errors.New("it took longer than X-Request-Timeout-Ms, the client's own limit")
	errIdle       = errors.New("the worker sent no event for stream_idle_timeout_sec")
	errAdmission  = errors.New("the worker did not accept the request within admission_timeout_sec")
	errWorkerLost = errors.New("the worker's process ended")
	errWorkerMute = errors.New("the worker does not answer any more")
	errShutdown   = errors.New("the frontend is shutting down")
)

// fault says how a leg failed, which decides about retries.
type fault uint8

const (
	faultDial     fault = iota // no connection came about
	faultRace                  // the connection broke before any answer byte
	faultBroken                // the connection broke within the answer
	faultStatus                // the worker answered with an error status, or an error event
	faultReply                 // the answer cannot be understood
	faultDeadline              // a time limit passed
	faultSilent                // the worker did not accept the attempt in its part of the time
	faultGone                  // the client went away, or the frontend shuts down
)

// legError is the failure of one attempt of a leg.
type legError struct {
	fault fault
	role  discovery.Role
	id    int64         // disagg_request_id of the attempt
	err   *openai.Error // what a client would be told
	cause error
}

func (e *legError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("%s leg %d: %s", e.role, e.id, e.err.Message)
	}
	return fmt.Sprintf("%s leg %d: %s: %v", e.role, e.id, e.err.Message, e.cause)
}

func (e *legError) Unwrap() error { return e.cause }

// status returns the status the worker answered with, 0 if it did not.
func (e *legError) is(status int) bool { return e.fault == faultStatus && e.err.Status == status }

// reached tells whether the worker may hold something for the attempt.
func (e *legError) reached() bool { return e.fault != faultDial }

// retryable tells whether another attempt may help: connection failures and 5xx.
func (e *legError) retryable() bool {
	switch e.fault {
	case faultDial, faultRace, faultBroken:
		return true
	case faultStatus:
		return e.err.Status >= 500 && e.err.Status != http.StatusGatewayTimeout
	case faultReply, faultDeadline, faultSilent, faultGone:
	}
	return false
}

// codeUnknownTransfer is a gen worker's answer when the blocks of a hand-over are not there any more.
const codeUnknownTransfer = "unknown_transfer"

// transportError classifies what the HTTP client reports. begun tells whether answer bytes had come.
func transportError(ctx context.Context, err error, begun bool) (fault, *openai.Error) {
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, errAdmission):
		return faultSilent, openai.NewError(http.StatusGatewayTimeout, "", "%v", cause)
	case errors.Is(cause, errTimeout) || errors.Is(cause, errPatience) || errors.Is(cause, errIdle):
		return faultDeadline, openai.NewError(http.StatusGatewayTimeout, "", "%v", cause)
	case errors.Is(cause, errWorkerMute):
		return faultBroken, upstream("the worker does not answer any more")
	case errors.Is(cause, errWorkerLost):
		if begun {
			return faultBroken, upstream("the worker's process ended")
		}
		return faultRace, upstream("the worker's process ended")
	case errors.Is(cause, errShutdown):
		e := openai.NewError(http.StatusServiceUnavailable, "", "the frontend is shutting down")
		e.RetryAfter = time.Second
		return faultGone, e
	case cause != nil:
		return faultGone, openai.NewError(openai.StatusClientClosed, "cancelled", "the client closed the connection")
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return faultDial, upstream("cannot connect to the worker: " + plainNet(err))
	case begun:
		return faultBroken, upstream("the connection broke: " + plainNet(err))
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE):
		return faultRace, upstream("the worker closed the connection before it answered")
	}
	return faultBroken, upstream("the exchange failed: " + plainNet(err))
}

func upstream(text string) *openai.Error {
	return openai.NewError(http.StatusBadGateway, "", "%s", text)
}

// plainNet says what went wrong without addresses.
func plainNet(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "it ended early"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	}
	return scrub(err.Error())
}

// addresses matches what could tell a client where workers live.
var addresses = regexp.MustCompile(`[a-z]+://[^\s"']+|\b\d+\.\d+\.\d+\.\d+(:\d+)?\b|\[[0-9a-fA-F:.]+\](:\d+)?|\b[\w.-]+\.[\w-]+:\d+\b|\blocalhost:\d+\b`)

func scrub(text string) string { return addresses.ReplaceAllString(text, "[address]") }

// clientError turns the last failure of a request's legs into the answer: the mapping table of the specification.
func (s *Server) clientError(p *RoutePlan, err error) *openai.Error {
	var le *legError
	if !errors.As(err, &le) {
		var oe *openai.Error
		if errors.As(err, &oe) {
			return oe
		}
		s.log.Error("request failed without a known reason", "error", err)
		return openai.NewError(http.StatusInternalServerError, "internal", "internal error")
	}
	e := *le.err
	if !s.cfg.ExposeRouting {
		e.Message = scrub(e.Message)
	}
	e.Message = openai.Cut(e.Message, openai.MaxErrorText)
	switch {
	case le.fault == faultStatus && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden):
		e.Status, e.Type, e.Param = http.StatusBadGateway, openai.TypeAuth, ""
	case le.fault == faultStatus && e.Status < 500 && p.blame(le.role, &e):
		e.Status, e.Type, e.Param, e.Code = http.StatusBadGateway, openai.TypeUpstream, "", ""
	case le.fault == faultStatus && e.Status < 500 || le.fault == faultGone:
		if e.Status == http.StatusTooManyRequests {
			e.Type, e.RetryAfter = openai.TypeOverloaded, max(e.RetryAfter, time.Second)
		}
		return &e // the client's own mistake, in the worker's words
	case e.Status == http.StatusServiceUnavailable:
		e.RetryAfter = max(e.RetryAfter, time.Second)
	case e.Status != http.StatusGatewayTimeout:
		e.Status, e.Type = http.StatusBadGateway, openai.TypeUpstream
	}
	e.Message = fmt.Sprintf("%s worker: %s (disagg_request_id %d)", le.role, strings.TrimSuffix(e.Message, "."), le.id)
	return &e
}

// unavailable is the answer while the cluster cannot serve.
func unavailable(format string, args ...any) *openai.Error {
	e := openai.NewError(http.StatusServiceUnavailable, "", format, args...)
	e.RetryAfter = time.Second
	return e
}
