package result

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Files of a run in its folder.
const (
	RunFile     = "run.json"
	SummaryFile = "summary.json"
	RecordsFile = "records.jsonl"
	AIPerfFile  = "aiperf.json"
	ReportFile  = "report.html"
)

// ErrExists says that a folder has a run already.
var ErrExists = errors.New("the folder has the files of a run already")

// Folder makes the folder of a run. It refuses one that has a run.
func Folder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("result folder: %w", err)
	}
	for _, name := range []string{RunFile, RecordsFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s: %w: name another one", dir, ErrExists)
		}
	}
	return nil
}

// Recorder writes records.jsonl while a run lasts, so that little is lost if it is cut short. A nil Recorder writes nothing.
type Recorder struct {
	file *os.File
	buf  *bufio.Writer
	enc  *json.Encoder
}

// NewRecorder makes the file in dir; nil if dir is empty.
func NewRecorder(dir string) (*Recorder, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // a nil Recorder is one that is off
	}
	f, err := os.Create(filepath.Join(dir, RecordsFile))
	if err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	r := &Recorder{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	r.enc = json.NewEncoder(r.buf)
	return r, nil
}

// Write adds a line.
func (r *Recorder) Write(rec *Record) error {
	if r == nil {
		return nil
	}
	if err := r.enc.Encode(rec); err != nil {
		return fmt.Errorf("records: %w", err)
	}
	return nil
}

// Close ends the file.
func (r *Recorder) Close() error {
	if r == nil {
		return nil
	}
	if err := errors.Join(r.buf.Flush(), r.file.Close()); err != nil {
		return fmt.Errorf("records: %w", err)
	}
	return nil
}

// Discard ends the file of a run that measured nothing and removes it, so that the folder can be named again.
func (r *Recorder) Discard() error {
	if r == nil {
		return nil
	}
	if err := errors.Join(r.file.Close(), os.Remove(r.file.Name())); err != nil {
		return fmt.Errorf("records: %w", err)
	}
	return nil
}

// ReadRecords reads the lines of a Recorder. Errors name the line.
func ReadRecords(in io.Reader) ([]*Record, error) {
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, 64<<20) // a long answer has many gaps
	var out []*Record
	for n := 1; sc.Scan(); n++ {
		if len(sc.Bytes()) == 0 {
			continue
		}
		r := &Record{}
		if err := json.Unmarshal(sc.Bytes(), r); err != nil {
			return nil, fmt.Errorf("records, line %d: %w", n, err)
		}
		out = append(out, r)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("records: %w", err)
	}
	return out, nil
}

// Save writes all files of a run into dir but the records, which a Recorder has written. detailed adds the values of
// single requests to the summary, as other tools' scripts want them.
func Save(dir string, run *Run, steps []Step, detailed bool) error {
	page, err := Report(run, steps)
	if err != nil {
		return err
	}
	var summary any
	if len(steps) == 1 {
		summary = flat(run, &steps[0], detailed)
	} else {
		list := make([]any, len(steps))
		for i := range steps {
			list[i] = flat(run, &steps[i], detailed)
		}
		summary = map[string]any{"schema": SummarySchema, "steps": list}
	}
	err = errors.Join(
		writeJSON(dir, SummaryFile, summary),
		writeJSON(dir, AIPerfFile, aiperf(run, steps)),
		writeFile(dir, ReportFile, page),
	)
	if err != nil {
		return err
	}
	return writeJSON(dir, RunFile, run) // the last: a folder with it is complete
}

// SaveJSON writes one more file of a run.
func SaveJSON(dir, name string, v any) error { return writeJSON(dir, name, v) }

func writeJSON(dir, name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return writeFile(dir, name, append(data, '\n'))
}

func writeFile(dir, name string, data []byte) error {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		_ = os.Remove(path) // a part of a file is taken for one
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
