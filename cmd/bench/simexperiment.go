package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/test/bench/experiment"
	"tandem/test/bench/result"
)

// experimentFlags choose presets of bench sim.
type experimentFlags struct {
	ids   []string
	arms  []string
	seeds int
	time  float64
	jobs  int
	trace string
}

func (f *experimentFlags) add(fs *pflag.FlagSet) {
	var names []string
	for _, e := range experiment.List() {
		names = append(names, e.ID)
	}
	fs.StringSliceVar(&f.ids, "experiment", nil, "presets instead of a cluster: all, or some of "+strings.Join(names, ", "))
	fs.StringArrayVar(&f.arms, "arm", nil, "with --experiment: run the arm of this name only, and check nothing (repeat it for more)")
	fs.IntVar(&f.seeds, "seeds", 5, "with --experiment: runs of each arm")
	fs.Float64Var(&f.time, "time", 1, "with --experiment: factor on virtual times")
	fs.StringVar(&f.trace, "traces", "", "with --experiment e12: folder of the recorded traces, empty = loads of their shapes")
	fs.IntVar(&f.jobs, "jobs", 1, "with --experiment: runs at a time")
}

// run runs the presets, and writes ID.json for each into dir.
func (f *experimentFlags) run(ctx context.Context, log, out io.Writer, dir string) error {
	if f.seeds < 1 || !(f.time > 0 && f.time <= 1000) || f.jobs < 1 {
		return fmt.Errorf("--seeds %d, --time %g and --jobs %d must be above 0, --time 1000 at most", f.seeds, f.time, f.jobs)
	}
	if len(f.ids) == 0 {
		return errors.New("--experiment: names none; all runs all of them")
	}
	if f.trace != "" {
		if st, err := os.Stat(f.trace); err != nil || !st.IsDir() {
			return fmt.Errorf("--traces %s: want a folder that is there", f.trace)
		}
	}
	list := experiment.List()
	if len(f.ids) != 1 || f.ids[0] != "all" {
		list = list[:0:0]
		for _, id := range f.ids {
			e, err := experiment.Find(strings.ToLower(id))
			if err != nil {
				return fmt.Errorf("--experiment: %w", err)
			}
			list = append(list, e)
		}
	}
	if dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, e := range list {
		before := spent()
		r, err := e.Run(experiment.Options{Seeds: f.seeds, Time: f.time, Jobs: f.jobs, Arms: f.arms, Traces: f.trace, Stop: ctx.Err, Progress: func(arm string, seed uint64, took time.Duration) {
			_, _ = fmt.Fprintf(log, "%s: %s, seed %d: %v\n", e.ID, arm, seed, took.Round(time.Millisecond))
		}})
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(log, "%s: %v\n", e.ID, spent().since(before))
		r.Print(out)
		if dir == "" {
			continue
		}
		doc := map[string]any{
			"experiment": e.ID, "title": e.Title, "simulated": true, "seeds": r.Seeds, "time": f.time, "values": r.Values(), "verdicts": r.Verdicts(),
		}
		if err := result.SaveJSON(dir, e.ID+".json", doc); err != nil {
			return err
		}
		if c := r.Chart(); c != nil {
			if err := os.WriteFile(filepath.Join(dir, e.ID+".svg"), c.SVG(), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
