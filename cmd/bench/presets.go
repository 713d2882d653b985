package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"tandem/test/bench/schedule"
	"tandem/test/bench/workload"
)

// pathology is a load that went wrong elsewhere, with how much of it comes at once.
type pathology struct {
	make  func(f *workloadFlags, seed uint64) *workload.Workload
	timed bool             // its requests have times of their own
	load  func(*loadFlags) // else what holds if no flag says how much at once
}

// pathologies are the guards of bench sim that a load can show by itself, by the name of the workload.
var pathologies = map[string]pathology{
	"pathology-one-sided": {
		make: func(_ *workloadFlags, seed uint64) *workload.Workload { return workload.OneSided(seed) },
		load: func(f *loadFlags) { f.rate = "1" },
	},
	"pathology-pinned-groups": {
		make: func(_ *workloadFlags, seed uint64) *workload.Workload { return workload.PinnedGroups(seed) },
		load: func(f *loadFlags) { f.concurrency = "16" },
	},
	"pathology-head-of-line": {timed: true, make: func(f *workloadFlags, seed uint64) *workload.Workload {
		return workload.HeadOfLine(f.long(24000), max(1, f.long(24000)/12), seed)
	}},
	"pathology-aborts": {timed: true, make: func(f *workloadFlags, seed uint64) *workload.Workload {
		return workload.Aborts(f.long(2000), seed)
	}},
}

// long is the length of a pathology's prompts: --isl, where it is given.
func (f *workloadFlags) long(otherwise int) int {
	if f.given == nil || !f.given("isl") {
		return otherwise
	}
	return f.isl.Int(rand.New(rand.NewPCG(f.seed, 0)), 1) //nolint:gosec // a length, no secret
}

// gridName is the workload of the lengths and loads that public comparisons of engines have.
const gridName = "isl-osl-grid"

// gridLoads are the requests in flight of the grid.
const gridLoads = "4,8,16,32,64,128,256,512"

// gridPerSlot is how many requests a step of the grid has at least for each of those in flight.
const gridPerSlot = 10

// shape is one pair of lengths; of workloads without a grid it is what the flags say.
type shape struct {
	name    string // empty = the only one
	in, out dist
}

// shapes are the pairs of lengths to go through.
func (f *workloadFlags) shapes() ([]shape, error) {
	if f.name != gridName {
		return []shape{{in: f.isl, out: f.osl}}, nil
	}
	if f.given("isl") || f.given("osl") {
		return nil, errors.New("--isl and --osl: the grid has lengths of its own; use --workload random for others")
	}
	var out []shape
	for _, l := range [][2]int{{1024, 1024}, {1024, 8192}, {8192, 1024}} {
		out = append(out, shape{
			fmt.Sprintf("%d/%d", l[0], l[1]), dist{workload.Spread(float64(l[0]), 0.2)}, dist{workload.Spread(float64(l[1]), 0.2)},
		})
	}
	return out, nil
}

// names lists shapes.
func names(shapes []shape) string {
	out := make([]string, len(shapes))
	for i, sh := range shapes {
		out[i] = sh.name
	}
	return strings.Join(out, ", ")
}

// defaults sets what a workload sends at once if no flag says it. timed: by its own times.
func (f *workloadFlags) defaults(l *loadFlags) (timed bool) {
	switch p := pathologies[f.name]; {
	case l.any():
	case p.timed:
		return true
	case p.load != nil:
		p.load(l)
	case f.name == gridName:
		l.concurrency = gridLoads
	}
	return false
}

// byItself is the load of a workload whose requests have times of their own.
func byItself(seed uint64) *axis {
	return &axis{name: "speed", values: []float64{1}, make: func(v float64) schedule.Options {
		return schedule.Options{Mode: schedule.Fixed, Seed: seed, Speed: v}
	}}
}
