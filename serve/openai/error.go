package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Values of error.type.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuth           = "internal_auth_error"
	TypeOverloaded     = "overloaded"
	TypeUnavailable    = "service_unavailable"
	TypeUpstream       = "upstream_error"
	TypeTimeout        = "timeout"
	TypeInternal       = "internal_error"
	TypeCancelled      = "cancelled"
)

// Values of error.code that do not come from the engine.
const (
	CodeInvalidRequest   = "invalid_request"
	CodeModelNotFound    = "model_not_found"
	CodeContextLength    = "context_length_exceeded"
	CodeBodyTooLarge     = "request_too_large"
	CodeBodyTimeout      = "request_timeout"
	CodeNotFound         = "not_found"
	CodeUnauthorized     = "unauthorized"
	CodeInvalidAPIKey    = "invalid_api_key"
	CodeNotSupported     = "not_supported"
	CodeMethodNotAllowed = "method_not_allowed"
)

// StatusClientClosed is the status of a request whose client went away.
const StatusClientClosed = 499

// MaxErrorText is the most bytes of a peer's error text that are passed on.
const MaxErrorText = 2048

// Error is an OpenAI error object with the HTTP status it travels under.
type Error struct {
	Status     int
	Message    string
	Type       string
	Param      string        // the request field to blame, or empty
	Code       string        // machine-readable reason, or empty
	RetryAfter time.Duration // > 0: sent as Retry-After, whole seconds
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("%d %s: %s: %s", e.Status, e.Type, e.Param, e.Message)
	}
	return fmt.Sprintf("%d %s: %s", e.Status, e.Type, e.Message)
}

// TypeOf returns the error.type that belongs to a status.
func TypeOf(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return TypeOverloaded
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return TypeAuth
	case status == StatusClientClosed:
		return TypeCancelled
	case status == http.StatusBadGateway:
		return TypeUpstream
	case status == http.StatusServiceUnavailable:
		return TypeUnavailable
	case status == http.StatusGatewayTimeout:
		return TypeTimeout
	case status >= 500:
		return TypeInternal
	}
	return TypeInvalidRequest
}

// NewError makes an error of a status and code, with the type of the status.
func NewError(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Type: TypeOf(status), Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes a 400 that blames a field. The message says what to do.
func Invalid(param, format string, args ...any) *Error {
	e := NewError(http.StatusBadRequest, CodeInvalidRequest, format, args...)
	e.Param = param
	return e
}

// Unsupported makes a 400 for a feature of the OpenAI schema that is not
// implemented: it is refused, never silently ignored.
func Unsupported(param, format string, args ...any) *Error {
	e := Invalid(param, format, args...)
	e.Code = CodeNotSupported
	return e
}

// PromptTooLong makes the 400 for a prompt of n tokens that leaves no room for an answer within limit.
func PromptTooLong(param string, n, limit int) *Error {
	e := Invalid(param, "the prompt has %d tokens and the context length is %d, of which at least one is for the answer: shorten the prompt by %d tokens",
		n, limit, n-limit+1)
	e.Code = CodeContextLength
	return e
}

// AppendJSON appends the body {"error": {...}}; empty param and code are null.
func (e *Error) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = AppendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendStringOrNull(dst, e.Code)
	return append(dst, `}}`...)
}

func appendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}

// WriteError answers a request whose headers are not sent yet. An error that
// is no *Error becomes a 500 without its text, which may hold internals.
func WriteError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = NewError(http.StatusInternalServerError, "internal", "internal error")
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		secs := int64((e.RetryAfter + time.Second - 1) / time.Second)
		h.Set("Retry-After", strconv.FormatInt(secs, 10))
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(e.AppendJSON(nil), '\n'))
}

// maxErrorWord bounds what a peer may say in an error beside the message, which goes into answers and logs.
const maxErrorWord = 256

// ParseError reads the error a peer answered with. A body that is no OpenAI
// error object is quoted, cut at MaxErrorText.
func ParseError(status int, h http.Header, body []byte) *Error {
	e := &Error{Status: status, Type: TypeOf(status), RetryAfter: retryAfter(h)}
	var obj struct {
		Error *struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Param   any    `json:"param"`
			Code    any    `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &obj) == nil && obj.Error != nil && obj.Error.Message != "" {
		e.Message = Cut(obj.Error.Message, MaxErrorText)
		if obj.Error.Type != "" {
			e.Type = Cut(obj.Error.Type, maxErrorWord)
		}
		e.Param, e.Code = Cut(scalarText(obj.Error.Param), maxErrorWord), Cut(scalarText(obj.Error.Code), maxErrorWord)
		return e
	}
	e.Message = Cut(strings.TrimSpace(string(body)), MaxErrorText)
	if e.Message == "" {
		e.Message = fmt.Sprintf("status %d with an empty body", status)
	}
	return e
}

func retryAfter(h http.Header) time.Duration {
	secs, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || secs < 0 || secs > 86400 {
		return 0
	}
	return time.Duration(secs) * time.Second
}

func scalarText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return ""
}

// Cut shortens s to at most limit bytes at a character boundary.
func Cut(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "")
}
