package report

import (
	"fmt"
	"strings"

	"tandem/engine/cuda/measure"
)

// Targets of a step, as fractions of what the same device was measured to give at the most.
const (
	DecodeTarget  = 0.75    // of the bandwidth of copies
	PrefillTarget = 0.60    // of the rate of the largest product, for the longest prompt
	GapTarget     = 50 * µs // between decoding steps
)

const µs = 1e-6

// Report is the tables of an output.
type Report struct {
	lines []Line
	copy  float64 // bytes a second, 0 unless measured
	cube  float64 // operations a second
	// Emulated outputs have no times that mean anything, so none are compared.
	Emulated bool
	out      strings.Builder
}

// New finds the ceilings that the rest is compared with.
func New(lines []Line) *Report {
	r := &Report{lines: lines}
	for _, l := range lines {
		r.Emulated = r.Emulated || l.Emulator
		switch {
		case l.Step != Measure || l.Seconds <= 0:
		case l.Name == measure.Copy:
			r.copy = l.Bytes / l.Seconds
		case l.Name == measure.Cube || l.Name == measure.Cube+", own kernel" && r.cube == 0:
			r.cube = l.Flop / l.Seconds
		}
	}
	return r
}

// String is the report in Markdown.
func (r *Report) String() string {
	r.out.Reset()
	r.machine()
	r.steps()
	r.decode()
	r.prefill()
	r.serve()
	r.pieces()
	r.code()
	return strings.TrimSpace(r.out.String()) + "\n"
}

func (r *Report) printf(format string, args ...any) { fmt.Fprintf(&r.out, format, args...) }

// each calls fn for the lines of a step, the first time after the head of a table.
func (r *Report) each(step, title, head string, fn func(*Line)) {
	first := true
	for i := range r.lines {
		if r.lines[i].Step != step {
			continue
		}
		if first {
			r.printf("\n**%s**\n\n%s\n|%s\n", title, head, strings.Repeat("---|", strings.Count(head, "|")-1))
			first = false
		}
		fn(&r.lines[i])
	}
}

func (r *Report) machine() {
	for _, l := range r.lines {
		if l.Step == Machine {
			r.printf("%s. %s\n", l.Device, l.Note)
		}
	}
	switch {
	case r.Emulated:
		r.printf("\nTHIS IS AN EMULATOR: it shows that every step of the check runs. Its times mean nothing.\n")
	default:
		r.printf("\nCeilings of this device: %s, %s for a product of matrices of 8,192.\n", rate(r.copy, 1e9, "GB/s of copies"), rate(r.cube, 1e12, "TFLOP/s"))
	}
}

func (r *Report) steps() {
	r.each(Run, "Steps", "| step | result | seconds | |", func(l *Line) {
		r.printf("| %s | %s | %.0f | %s |\n", l.Name, l.Status, l.Seconds, strings.ReplaceAll(strings.TrimSpace(l.Note), "|", "\\|"))
	})
}

func (r *Report) decode() {
	head := "| model | batch | context | ms a step | tokens/s | floor, ms | of the floor | at least 75 % | gap, µs | at most 50 µs |"
	r.each(Decode, "Decode", head, func(l *Line) {
		if l.Status == Skipped {
			r.printf("| %s | %d | %d | %s | | | | | | |\n", l.Model, l.Batch, l.Context, l.Note)
			return
		}
		floor, part := "–", -1.0
		if r.copy > 0 && !r.Emulated {
			floor, part = fmt.Sprintf("%.2f", 1e3*l.Bytes/r.copy), l.Bytes/r.copy/l.Seconds
		}
		r.printf("| %s | %d | %d | %.2f | %.0f | %s | %s | %s | %.0f | %s |\n", l.Model, l.Batch, l.Context, 1e3*l.Seconds,
			float64(l.Batch)/l.Seconds, floor, percent(part), r.verdict(part >= DecodeTarget, part >= 0), l.Gap/µs, r.verdict(l.Gap <= GapTarget, true))
	})
}

func (r *Report) prefill() {
	longest := 0
	for _, l := range r.lines {
		if l.Step == Prefill {
			longest = max(longest, l.Rows)
		}
	}
	r.each(Prefill, "Prefill", "| model | tokens | ms | tokens/s | TFLOP/s | of the products' rate | at least 60 % |", func(l *Line) {
		if l.Status == Skipped {
			r.printf("| %s | %d | %s | | | | |\n", l.Model, l.Rows, l.Note)
			return
		}
		part := -1.0
		if r.cube > 0 && !r.Emulated {
			part = l.Flop / l.Seconds / r.cube
		}
		r.printf("| %s | %d | %.1f | %.0f | %.1f | %s | %s |\n", l.Model, l.Rows, 1e3*l.Seconds, float64(l.Rows)/l.Seconds,
			l.Flop/l.Seconds/1e12, percent(part), r.verdict(part >= PrefillTarget, part >= 0 && l.Rows == longest))
	})
}

func (r *Report) serve() {
	head := "| model | requests | tokens | path | TTFT p50, ms | p95 | ITL p50, ms | p99 |"
	r.each(Serve, "A burst over HTTP, ctx and gen worker as two processes on the device", head, func(l *Line) {
		if l.Latency == nil {
			return
		}
		t := l.Latency
		r.printf("| %s | %d | %d | %s | %.1f | %.1f | %.2f | %.2f |\n", l.Model, t.Requests, t.Tokens, t.Path,
			1e3*t.TTFT50, 1e3*t.TTFT95, 1e3*t.ITL50, 1e3*t.ITL99)
	})
}

func (r *Report) pieces() {
	r.each(Measure, "Pieces", "| piece | case | µs | GB/s | of copies | TFLOP/s | of the products' rate |", func(l *Line) {
		bytes, flop, ofCopy, ofCube := "", "", "", ""
		if l.Bytes > 0 && l.Seconds > 0 {
			bytes, ofCopy = fmt.Sprintf("%.0f", l.Bytes/l.Seconds/1e9), r.part(l.Bytes/l.Seconds, r.copy)
		}
		if l.Flop > 0 && l.Seconds > 0 {
			flop, ofCube = fmt.Sprintf("%.1f", l.Flop/l.Seconds/1e12), r.part(l.Flop/l.Seconds, r.cube)
		}
		r.printf("| %s | %s | %.1f | %s | %s | %s | %s |\n", l.Name, sizes(l), l.Seconds/µs, bytes, ofCopy, flop, ofCube)
	})
}

func (r *Report) code() {
	r.each(Code, "Machine code", "| what | |", func(l *Line) { r.printf("| %s | %s |\n", l.Name, l.Note) })
}

func (r *Report) part(v, of float64) string {
	if of <= 0 || r.Emulated {
		return ""
	}
	return percent(v / of)
}

func (r *Report) verdict(pass, known bool) string {
	switch {
	case !known || r.Emulated:
		return "–"
	case pass:
		return "pass"
	}
	return "FAIL"
}

func sizes(l *Line) string {
	var all []string
	for _, s := range []struct {
		name string
		v    int
	}{{"rows", l.Rows}, {"n", l.N}, {"k", l.K}, {"batch", l.Batch}, {"context", l.Context}} {
		if s.v > 0 {
			all = append(all, fmt.Sprintf("%s %d", s.name, s.v))
		}
	}
	return strings.Join(all, ", ")
}

func percent(v float64) string {
	if v < 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

func rate(v, unit float64, name string) string {
	if v <= 0 {
		return "no " + name + " measured"
	}
	return fmt.Sprintf("%.0f %s", v/unit, name)
}
