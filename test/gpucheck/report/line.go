// Package report reads the output of the GPU check and makes the tables of docs/performance-gpu.md
// of it.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"tandem/engine/cuda/measure"
)

// The kinds of lines, beside those of iterations, which test/bench/profile reads.
const (
	Machine = "machine" // the device
	Run     = "run"     // a step of the check: Name, Status, Seconds
	Measure = "measure" // a piece of the backend: Result
	Decode  = "decode"  // a decoding step: Batch, Context, Seconds, Bytes, Gap
	Prefill = "prefill" // a prompt: Rows, Seconds, Flop
	Serve   = "serve"   // a burst of requests: Latency
	Code    = "code"    // what the compiler made: Name, Note
)

// The states of a step.
const (
	OK      = "ok"
	Failed  = "failed"
	Skipped = "skipped"
)

// Line is one line of the output. Fields that mean nothing for its step are zero.
type Line struct {
	Step     string  `json:"step"`
	Status   string  `json:"status,omitempty"`
	Device   string  `json:"device,omitempty"`
	Emulator bool    `json:"emulator,omitempty"` // times mean nothing
	Model    string  `json:"model,omitempty"`
	Note     string  `json:"note,omitempty"`
	Gap      float64 `json:"gap_s,omitempty"` // that the device waits for the host between steps
	measure.Result
	*Latency
}

// Latency is what clients saw of a burst, in seconds.
type Latency struct {
	Requests int     `json:"requests"`
	Tokens   int     `json:"tokens"`
	Path     string  `json:"path"` // that requests took, as the frontend names it
	TTFT50   float64 `json:"ttft_p50_s"`
	TTFT95   float64 `json:"ttft_p95_s"`
	ITL50    float64 `json:"itl_p50_s"`
	ITL99    float64 `json:"itl_p99_s"`
}

// Write writes the line.
func (l Line) Write(w io.Writer) error { return json.NewEncoder(w).Encode(l) }

// Read reads the lines of an output; what is no JSON object, such as a tool's own words, is skipped.
// An output without a line about the machine is refused.
func Read(r io.Reader) ([]Line, error) {
	var all []Line
	machine := false
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		if len(in.Bytes()) == 0 || in.Bytes()[0] != '{' {
			continue
		}
		var l Line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		machine = machine || l.Step == Machine
		all = append(all, l)
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if !machine {
		return nil, fmt.Errorf("no line has \"step\": %q: this is no output of the GPU check, or it ended at once", Machine)
	}
	return all, nil
}
