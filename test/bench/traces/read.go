package traces

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"tandem/test/bench/workload"
)

// Format names how a trace is written.
type Format string

// The formats.
const (
	Auto           Format = "auto" // by the first record
	Native         Format = "native"
	Mooncake       Format = "mooncake" // with its multi-turn, delta and agentic members
	Weka           Format = "weka"
	AppliedCompute Format = "applied-compute"
	Azure          Format = "azure"
	BurstGPT       Format = "burstgpt"
	ShareGPT       Format = "sharegpt"
	Prompts        Format = "prompts" // lines of {"text": ...} or {"turns": [...]}
)

// Formats are all that can be read.
var Formats = []Format{Native, Mooncake, Weka, AppliedCompute, Azure, BurstGPT, ShareGPT, Prompts}

// Options say how to read a trace.
type Options struct {
	Name    string // of the file, for errors
	Format  Format
	Lenient bool // leave out what is wrong, and count it
	// Count counts the tokens of a text, for formats that have texts; nil = four thirds of its words.
	Count func(text string) int
	// Output is the length of answers where the format tells none.
	Output int
	Seed   uint64
}

// maxFile bounds a trace, uncompressed.
const maxFile = 4 << 30

// ErrTrace is what all errors about the content of a trace are.
var ErrTrace = errors.New("trace")

// Error is something wrong in a file.
type Error struct {
	File  string
	Line  int    // from 1
	Field string // empty = the whole record
	Text  string
}

// Error names file, line and field.
func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text)
	}
	return fmt.Sprintf("%s:%d: %s %s", e.File, e.Line, e.Field, e.Text)
}

// Unwrap makes it an ErrTrace.
func (e *Error) Unwrap() error { return ErrTrace }

// reader is a file that is being read.
type reader struct {
	o     Options
	w     *workload.Workload
	lines []place // of each request
	bad   []*Error
	links []link // wait_for by name, joined at the end

	skipped int // rows that the format's own limits leave out

	conversations map[string]*conversation
	predecessor   map[uint64]uint64 // of hash ids
}

// place is where a request is.
type place struct {
	file string
	line int
}

// link is what a request waits for by name.
type link struct {
	request int
	ids     []string
}

// Read reads a trace, compressed by gzip or not. The workload is complete and checked; with Lenient the report has what was
// left out.
func Read(in io.Reader, o Options) (*workload.Workload, *Report, error) {
	return ReadParts([]Part{{o.Name, in}}, o)
}

// Part is one file of a trace.
type Part struct {
	Name string
	In   io.Reader
}

// ReadParts reads a trace that is in several files, in their order.
func ReadParts(parts []Part, o Options) (*workload.Workload, *Report, error) {
	r := &reader{
		o: o, w: &workload.Workload{Source: o.Name, Seed: o.Seed},
		conversations: map[string]*conversation{}, predecessor: map[uint64]uint64{},
	}
	for _, p := range parts {
		r.o.Name = p.Name
		if err := r.part(p.In); err != nil {
			return nil, nil, err
		}
	}
	r.o.Name = o.Name
	return r.finish()
}

func (r *reader) part(in io.Reader) error {
	data, err := Content(in)
	if err != nil {
		return fmt.Errorf("%s: %w", r.o.Name, err)
	}
	if r.o.Format == Auto || r.o.Format == "" { // the first file tells for all
		if r.o.Format, err = detect(data); err != nil {
			return fmt.Errorf("%s: %w", r.o.Name, err)
		}
	}
	parse, ok := map[Format]func([]byte) error{
		Native: r.native, Mooncake: r.mooncake, Weka: r.weka, AppliedCompute: r.applied, Azure: r.azure, BurstGPT: r.burst,
		ShareGPT: r.sharegpt, Prompts: r.prompts,
	}[r.o.Format]
	if !ok {
		return fmt.Errorf("%w: format %q: want one of %v", ErrTrace, r.o.Format, Formats)
	}
	r.w.Name = string(r.o.Format)
	return parse(data)
}

// Content reads all of a file of a trace, through gzip if need be. Of a gzip file without an end it returns the lines that are
// whole.
func Content(in io.Reader) ([]byte, error) {
	buf := bufio.NewReader(in)
	if magic, _ := buf.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(buf)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		data, err := limited(z)
		if errors.Is(err, io.ErrUnexpectedEOF) && len(data) > 0 {
			// The writer did not end the file: what is whole can be used.
			return data[:bytes.LastIndexByte(data, '\n')+1], nil
		}
		return data, err
	}
	return limited(buf)
}

func limited(in io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("is larger than %d GiB", maxFile>>30)
	}
	return data, err //nolint:wrapcheck // the caller names the file
}

// detect tells the format by what the first record has.
func detect(data []byte) (Format, error) {
	first, _, _ := bytes.Cut(bytes.TrimSpace(data), []byte("\n"))
	has := func(s string) bool { return bytes.Contains(first, []byte(s)) }
	if len(first) > 0 && first[0] != '{' && first[0] != '[' {
		switch {
		case has("ContextTokens"):
			return Azure, nil
		case has("Request tokens"):
			return BurstGPT, nil
		}
	}
	head := data[:min(len(data), 64<<10)]
	anywhere := func(s string) bool { return bytes.Contains(head, []byte(`"`+s+`"`)) }
	switch {
	case anywhere("trace-header"), anywhere("request_id") && anywhere("timestamp_ms"):
		return Native, nil
	case anywhere("input_prompt_length"):
		return AppliedCompute, nil
	case anywhere("requests") && anywhere("block_size"):
		return Weka, nil
	case anywhere("conversations") && anywhere("from"):
		return ShareGPT, nil
	case anywhere("input_length"):
		return Mooncake, nil
	case anywhere("text"), anywhere("turns"):
		return Prompts, nil
	}
	return "", fmt.Errorf("%w: the format cannot be told: name one of %v", ErrTrace, Formats)
}

// fail notes an error about a line. Without Lenient it ends the reading.
func (r *reader) fail(line int, field, format string, args ...any) error {
	return r.failAt(place{r.o.Name, line}, field, format, args...)
}

// failAt is fail with the file.
func (r *reader) failAt(at place, field, format string, args ...any) error {
	e := &Error{at.file, at.line, field, fmt.Sprintf(format, args...)}
	if r.o.Lenient {
		r.bad = append(r.bad, e)
		return nil
	}
	return e
}

// wanted names a type for people.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	}
	return t.String()
}

// each decodes the JSON values of a file, be they lines, one array, or values one after the other, and calls do with the
// line on which each begins. Members that are not known are left alone: the formats grow.
func each[T any](r *reader, data []byte, do func(line int, v *T) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	line, at := 1, 0
	count := func(to int) {
		if to = min(to, len(data)); to > at {
			line += bytes.Count(data[at:to], []byte("\n"))
			at = to
		}
	}
	array := false
	if rest := bytes.TrimLeft(data, " \t\r\n\ufeff"); len(rest) > 0 && rest[0] == '[' {
		array = true
		if _, err := dec.Token(); err != nil {
			return &Error{r.o.Name, 1, "", err.Error()}
		}
	}
	for dec.More() {
		begin := int(dec.InputOffset())
		for begin < len(data) && bytes.IndexByte([]byte(" \t\r\n,"), data[begin]) >= 0 {
			begin++
		}
		count(begin)
		var v T
		err := dec.Decode(&v)
		var wrong *json.UnmarshalTypeError
		switch {
		case errors.As(err, &wrong):
			if err := r.fail(line, cmp.Or(wrong.Field, "the record"), "is a JSON %s, want %s", wrong.Value, wanted(wrong.Type)); err != nil {
				return err
			}
			continue
		case err != nil:
			count(int(dec.InputOffset()))
			return &Error{r.o.Name, line, "", err.Error()}
		}
		if err := do(line, &v); err != nil {
			return err
		}
	}
	if array {
		if _, err := dec.Token(); err != nil {
			return &Error{r.o.Name, line, "", "the array has no end: " + err.Error()}
		}
	}
	return nil
}
