package tokenizer

import "errors"

var (
	// ErrUnsupported is wrapped by constructors when a file is well formed but
	// asks for a tokenizer this package does not implement.
	ErrUnsupported = errors.New("unsupported tokenizer")
	// ErrMalformed is wrapped by constructors when a file contradicts itself or
	// is not what it claims to be.
	ErrMalformed = errors.New("malformed tokenizer")
	// ErrTooLong is wrapped by Encode when the text exceeds MaxTextBytes.
	ErrTooLong = errors.New("text too long to tokenize")
	// ErrPattern is wrapped by Encode when a pre-tokenizer pattern gave up on
	// the text (its backtracking bound was reached).
	ErrPattern = errors.New("pre-tokenizer pattern failed")
)
