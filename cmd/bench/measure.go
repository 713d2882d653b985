package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/test/bench/load"
	"tandem/test/bench/result"
	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// outFlags say what becomes of a measurement.
type outFlags struct {
	dir, topology string
	detailed      bool
	quiet         bool
	goodput       []string
	accelerators  int
	warmup        int
	salt          int64
	actual        bool
}

func (f *outFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.dir, "output", "o", "", "folder for result files and the report, empty = none")
	fs.BoolVar(&f.detailed, "detailed", false, "add the values of single requests to summary.json")
	fs.BoolVarP(&f.quiet, "quiet", "q", false, "no progress and no charts")
	fs.StringSliceVar(&f.goodput, "goodput", nil, "limits of a good request: NAME:MILLISECONDS of ttft, tpot, e2el, tfat, ttst, itl_p99, or a preset: chat, rag, agent, completion, code")
	fs.IntVar(&f.accelerators, "accelerators", 0, "accelerators of all instances, ctx and gen, for rates per accelerator")
	fs.StringVar(&f.topology, "topology", "", "what serves, for the result files, like 3xCTX-DEP4|1xGEN-DEP8")
	fs.IntVar(&f.warmup, "warmup", 2, "requests before the first step that are not counted")
	fs.Int64Var(&f.salt, "salt", -1, "makes prompts new to the server's prefix cache: -1 = a new one each time, 0 = the same texts in every run of a seed, others = that one")
	fs.BoolVar(&f.actual, "actual-replies", false, "put the server's answers into later prompts of their conversations, instead of synthetic ones of the wanted length")
}

// measurement is a run of one command.
type measurement struct {
	out     outFlags
	limits  result.Limits
	run     *result.Run
	origin  time.Time
	salt    uint64
	grace   time.Duration
	log     io.Writer // progress
	words   io.Writer // tables
	colour  bool
	records *result.Recorder
	lost    error // of the records file
	steps   []result.Step
}

// begin makes the folder and the record of the run. stream: answers come in pieces.
func (f *outFlags) begin(tool string, seed uint64, stream bool, log, words io.Writer) (*measurement, error) {
	limits, err := result.ParseLimits(f.goodput)
	if err != nil {
		return nil, err
	}
	if key := limits.Streamed(); key != "" && !stream {
		return nil, fmt.Errorf("--goodput %s: answers in one piece (--stream=false) tell e2el only", key)
	}
	if f.accelerators < 0 || f.warmup < 0 {
		return nil, fmt.Errorf("--accelerators %d and --warmup %d must not be negative", f.accelerators, f.warmup)
	}
	if f.dir != "" {
		if err := result.Folder(f.dir); err != nil {
			return nil, err
		}
	}
	m := &measurement{out: *f, limits: limits, origin: time.Now(), log: log, words: words, salt: uint64(f.salt)}
	m.run = result.NewRun(tool, os.Args)
	m.run.Seed, m.run.Topology = seed, f.topology
	m.run.Started = m.origin.Format(time.RFC3339Nano)
	m.run.Cache = "texts of the seed, which the server may know"
	if f.salt == -1 {
		m.salt = uint64(m.origin.UnixNano())
	}
	if f.salt != 0 {
		m.run.Cache = fmt.Sprintf("new texts, salt %d", m.salt)
	}
	if m.records, err = result.NewRecorder(f.dir); err != nil {
		return nil, err
	}
	m.colour = isTerminal(words)
	return m, nil
}

// isTerminal tells whether a person looks at what is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// describe notes what is sent.
func (m *measurement) describe(w *workload.Workload, loadModel string) {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(w) // plain values into a hash
	block := w.BlockSize
	if block == 0 {
		block = 16
	}
	m.run.Workload = result.Load{
		Name: w.Name, Source: w.Source, Hash: hex.EncodeToString(h.Sum(nil)[:8]), Requests: len(w.Requests), Seed: w.Seed,
		Model: loadModel, Reuse: w.Reuse(block, 0),
	}
}

// warm sends some requests that are not counted.
func (m *measurement) warm(ctx context.Context, s *server, w *workload.Workload) error {
	if m.out.warmup <= 0 {
		return nil
	}
	first := &workload.Workload{Name: w.Name, Seed: w.Seed + 1<<63}
	for i := range w.Requests {
		if r := w.Requests[i]; len(r.After) == 0 && len(first.Requests) < m.out.warmup {
			r.Arrival = workload.NoArrival
			first.Requests = append(first.Requests, r)
		}
	}
	o := m.options(s, first, schedule.Options{Mode: schedule.Concurrency, Concurrency: max(1, min(m.out.warmup, len(first.Requests)))}, -1)
	o.Phase = result.Warmup
	records, err := load.Run(ctx, o)
	for _, r := range records {
		if err == nil && r.Outcome != result.OK {
			err = fmt.Errorf("warm-up: %w: %s", load.ErrProbe, r.Error)
		}
	}
	return err
}

// options of one run against a server.
func (m *measurement) options(s *server, w *workload.Workload, so schedule.Options, step int) load.Options {
	p := *s.prompts
	if m.salt != 0 {
		p.Salt = workload.Mix(m.salt, uint64(step+1))
	}
	return load.Options{
		Client: s.client, Prompts: &p, Workload: w, Schedule: so, Origin: m.origin, Grace: m.grace, Step: max(0, step), Target: s.info.Name,
		ActualReplies: m.out.actual,
		OnRecord: func(r *result.Record) {
			if err := m.records.Write(r); err != nil && m.lost == nil {
				m.lost = err
			}
		},
		Progress: &load.Progress{},
	}
}

// step runs one load and prints its summary. An interrupt ends it, and what was measured until then is still reported.
func (m *measurement) step(ctx context.Context, s *server, w *workload.Workload, so schedule.Options, name string) (*result.Step, error) {
	st, err := m.one(ctx, s, w, so, name, len(m.steps))
	if st == nil {
		return nil, err
	}
	m.steps = append(m.steps, *st)
	if perr := result.Print(m.words, st, m.colour); perr != nil {
		return nil, perr
	}
	return &m.steps[len(m.steps)-1], err
}

// underloaded is the flag of a step with fewer requests or conversations than it wanted at once.
const underloaded = "underloaded"

// one runs one load; content and records have the step's number.
func (m *measurement) one(ctx context.Context, s *server, w *workload.Workload, so schedule.Options, name string, number int) (*result.Step, error) {
	o := m.options(s, w, so, number)
	stop, began := m.watch(o.Progress, name, so.Duration), time.Now()
	records, err := load.Run(ctx, o)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		return nil, err
	}
	clocked := (so.Mode == schedule.Rate || so.Mode == schedule.Constant) && !math.IsInf(so.Rate, 1)
	sum := result.SummaryOptions{Accelerators: m.out.accelerators, Limits: m.limits, OpenLoop: clocked || so.Mode == schedule.Fixed}
	if clocked {
		sum.RequestRate = so.Rate
	}
	if so.Duration > 0 && err == nil && so.Requests == 0 && time.Since(began) >= so.Duration { // else all was sent before
		sum.Window = so.Duration.Seconds()
	}
	st := &result.Step{Name: name, Load: words(&so), Records: records, Summary: result.Summarize(records, sum)}
	if o.Progress.Spare.Load() > 0 && err == nil {
		st.Summary.Flags = append(st.Summary.Flags, underloaded)
	}
	if o.Progress.Cut.Load() > 0 {
		st.Summary.Flags = append(st.Summary.Flags, "cut_off")
	}
	m.run.AddFlags(st.Summary.Flags...)
	return st, err
}

// end writes the files and shows the chart.
func (m *measurement) end(err error) error {
	interrupted := errors.Is(err, context.Canceled)
	if len(m.steps) == 0 {
		return errors.Join(err, m.records.Discard())
	}
	if err != nil && !interrupted {
		return errors.Join(err, m.records.Close())
	}
	if interrupted {
		m.run.AddFlags("interrupted")
	}
	if !m.out.quiet {
		_, _ = fmt.Fprintf(m.words, "\n%s", result.Chart(m.steps).Text(78, 14, m.colour))
	}
	if m.out.dir == "" {
		return err
	}
	if e := errors.Join(m.lost, m.records.Close(), result.Save(m.out.dir, m.run, m.steps, m.out.detailed)); e != nil {
		return e
	}
	_, _ = fmt.Fprintf(m.words, "\nwritten to %s: open %s/%s in a browser\n", m.out.dir, strings.TrimRight(m.out.dir, "/"), result.ReportFile)
	return err
}
