package result

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"tandem/test/bench/plot"
)

// RunSchema names the layout of run.json, SummarySchema that of summary.json.
const (
	RunSchema     = "tandem-bench-run/1"
	SummarySchema = "tandem-bench-summary/1"
)

// Run is what a measurement was, for run.json.
type Run struct {
	Schema   string   `json:"schema"`
	Tool     string   `json:"tool"` // command that made it
	Version  string   `json:"tool_version"`
	Revision string   `json:"revision,omitempty"`
	Command  []string `json:"command"`
	Seed     uint64   `json:"seed"`
	Started  string   `json:"started"` // wall clock, RFC 3339 with nanoseconds, of time 0 of the records
	Clock    string   `json:"clock"`   // monotonic or virtual

	Simulated bool   `json:"simulated"`
	Profile   string `json:"profile,omitempty"` // of a simulated run, with its residual

	Workload Load     `json:"workload"`
	Targets  []Target `json:"targets"`
	Topology string   `json:"topology,omitempty"` // like 3xCTX-DEP4|1xGEN-DEP8
	Hardware Hardware `json:"client_hardware"`    // which for a local server is that of both
	Cache    string   `json:"prefix_cache"`       // what is known of it at the start: salted, as found, ...

	Flags []string `json:"flags"`

	// Scenario is a public benchmark whose rules were followed, empty = none; Invalid is why the run does not count for it.
	Scenario string   `json:"scenario,omitempty"`
	Invalid  []string `json:"submission_invalid_reasons,omitempty"`

	// Text and Charts are what a command adds to the head of the report.
	Text   string        `json:"-"`
	Charts []*plot.Chart `json:"-"`
}

// Load says what was sent.
type Load struct {
	Name     string  `json:"name"`
	Source   string  `json:"source"`
	Hash     string  `json:"hash"`
	Requests int     `json:"requests"`
	Seed     uint64  `json:"seed"`
	Model    string  `json:"load_model"`
	Reuse    float64 `json:"theoretical_reuse"` // share of prompt blocks that an endless cache would have
}

// Target is a server that was measured.
type Target struct {
	Name   string `json:"name"`
	URL    string `json:"url,omitempty"`
	Model  string `json:"model,omitempty"`
	Server string `json:"server,omitempty"`      // what it says that it is
	Config string `json:"config_hash,omitempty"` // SHA-256 of what /server_info says
}

// Hardware is a machine.
type Hardware struct {
	OS    string `json:"os"`
	CPU   string `json:"cpu,omitempty"`
	Cores int    `json:"cores"`
	Load  string `json:"load_average,omitempty"` // of 1, 5 and 15 minutes, at the start
}

// Step is one part of a run with a load of its own: a run that is no sweep has one.
type Step struct {
	Name    string
	Load    string // the load model in words
	X       float64
	XName   string // what a sweep varies, empty = nothing
	Summary *Summary
	Records []*Record
}

// NewRun fills in what the process knows of itself.
func NewRun(tool string, command []string) *Run {
	r := &Run{Schema: RunSchema, Tool: tool, Command: command, Version: "devel", Clock: "monotonic", Flags: []string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" {
			r.Version = v
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				r.Revision = s.Value
			}
		}
	}
	r.Hardware = Machine()
	return r
}

// Machine describes the one that this process runs on, as it is now. Times mean little when others use its processors.
func Machine() Hardware {
	return Hardware{OS: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuName(), Cores: runtime.NumCPU(), Load: loadAverage()}
}

// cpuName is what Linux calls the first processor, empty elsewhere.
func cpuName() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // absent: no name
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg") // absent: not known
	words := strings.Fields(string(text))
	return strings.Join(words[:min(3, len(words))], " ")
}

// AddFlags notes flags that the run does not have yet.
func (r *Run) AddFlags(flags ...string) {
	for _, f := range flags {
		if !slices.Contains(r.Flags, f) {
			r.Flags = append(r.Flags, f)
		}
	}
}

// Title is one line about the run.
func (r *Run) Title() string {
	names := make([]string, len(r.Targets))
	for i, t := range r.Targets {
		names[i] = t.Name
		if t.Model != "" {
			names[i] += " (" + t.Model + ")"
		}
	}
	out := fmt.Sprintf("%s: %s, %s", strings.Join(names, " against "), r.Workload.Name, r.Workload.Model)
	if r.Simulated {
		out = "simulated, " + out
	}
	return out
}
