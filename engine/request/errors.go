package request

import "fmt"

// Code is an engine error code; serve maps each to one HTTP status.
type Code string

// The codes of engine-core ER-3.
const (
	InvalidRequest   Code = "invalid_request"
	CapacityNever    Code = "capacity_never"
	Capacity         Code = "capacity"
	QueueFull        Code = "queue_full"
	QueueTimeout     Code = "queue_timeout"
	Cancelled        Code = "cancelled"
	DeadlineExceeded Code = "deadline_exceeded"
	TransferTimeout  Code = "transfer_timeout"
	TransferFailed   Code = "transfer_failed"
	LayoutMismatch   Code = "layout_mismatch"
	UnknownTransfer  Code = "unknown_transfer"
	InvalidGrammar   Code = "invalid_grammar"
	GrammarDeadEnd   Code = "grammar_dead_end"
	BadLogits        Code = "bad_logits"
	StepFailed       Code = "step_failed"
	EngineDead       Code = "engine_dead"
	Internal         Code = "internal"
)

// Error is a request-level error: it ends one request and nothing else.
type Error struct {
	Code    Code
	Param   string // the request field to blame, or empty
	Message string // what is wrong and what to do, for the client
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Param, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Errorf makes an Error without a parameter.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Invalid makes an InvalidRequest error that blames a field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{Code: InvalidRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}
