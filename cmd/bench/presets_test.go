package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"tandem/test/bench/result"
	"tandem/test/bench/stub"
)

// parsed are the flags of bench serve.
func parsed(t *testing.T, args ...string) *serveFlags {
	t.Helper()
	var f serveFlags
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.target.add(fs)
	f.workload.add(fs)
	f.load.add(fs)
	f.agentx.add(fs)
	f.out.add(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &f
}

func TestPathologiesAreSentAsTheySay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	url := stubServer(t, &stub.Server{Overhead: 3})
	out, log, err := bench("serve", url, "-w", "pathology-head-of-line", "--isl", "48", "-o", dir, "-q")
	if err != nil {
		t.Fatalf("%v: %s", err, log)
	}
	if m := readSummary(t, dir); m["completed"] != 29.0 || m["load_model"] != "by the trace" {
		t.Errorf("%v completed, load %v:\n%s", m["completed"], m["load_model"], out)
	}
	out, log, err = bench("sim", "--cluster", "1xMIXED", "-w", "pathology-aborts", "--isl", "64", "--blocks", "2000", "--warm-up", "0s", "--duration", "50s")
	if err != nil || !strings.Contains(out, "1201 requests") {
		t.Errorf("%v: %s\n%s", err, log, out)
	}
	for name, p := range pathologies {
		f := parsed(t, "-w", name)
		a, err := f.axis()
		if err != nil || (a.name == "speed") != p.timed || !p.timed && p.load == nil {
			t.Errorf("%s: %v, %v", name, a, err)
		}
		if w, err := f.workload.make(0); err != nil || w.Name != name {
			t.Errorf("%s makes %v, %v", name, w, err)
		}
	}
}

func TestGridHasItsLengthsAndLoads(t *testing.T) {
	if _, err := parsed(t, "-w", gridName).workload.make(0); err == nil || !strings.Contains(err.Error(), "for bench serve") {
		t.Errorf("a command that goes through no shapes: %v", err)
	}
	f := parsed(t, "-w", gridName)
	a, err := f.axis()
	if err != nil || a.name != "max_concurrency" || len(a.values) != 8 || a.values[7] != 512 {
		t.Fatalf("%v, %v", a, err)
	}
	shapes, err := f.workload.shapes()
	if err != nil || len(shapes) != 3 || shapes[1].name != "1024/8192" || shapes[2].in.String() != shapes[1].out.String() {
		t.Fatalf("%v, %v", shapes, err)
	}
	if a, err := parsed(t, "-w", gridName, "--concurrency", "2").axis(); err != nil || len(a.values) != 1 {
		t.Errorf("a load of its own: %v, %v", a, err)
	}
	if _, err := parsed(t, "-w", gridName, "--isl", "5").workload.shapes(); err == nil || !strings.Contains(err.Error(), "--isl") {
		t.Errorf("lengths of its own: %v", err)
	}
}

func TestAgentXRefusesWhatBreaksItsRules(t *testing.T) {
	for want, args := range map[string][]string{
		"want agentx":      {"--preset", "agenty"},
		"needs --preset":   {"--gap-cap", "10s"},
		"15m at least":     {"--preset", "agentx", "--duration", "5m"},
		"the load is":      {"--preset", "agentx", "--rate", "2"},
		"--think-scale":    {"--preset", "agentx", "--think-scale", "0"},
		"--ramp-up":        {"--preset", "agentx", "--ramp-up", "1s"},
		"--bisect":         {"--preset", "agentx", "--bisect"},
		"--stream=false":   {"--preset", "agentx", "--stream=false"},
		"--ignore-eos":     {"--preset", "agentx", "--ignore-eos=false"},
		"--actual-replies": {"--preset", "agentx", "--actual-replies"},
		"--salt 0":         {"--preset", "agentx", "--salt", "0"},
		"--gap-cap must":   {"--preset", "agentx", "--gap-cap", "-1s"},
	} {
		f := parsed(t, append(args, "-w", "c4")...)
		if _, err := f.axis(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if _, err := parsed(t, "--preset", "agentx").axis(); err == nil || !strings.Contains(err.Error(), "the workload is c4") {
		t.Errorf("random requests: %v", err)
	}
}

func TestAgentXRunsByItsRules(t *testing.T) {
	f := parsed(t, "--preset", "agentx-v1", "-w", "c4", "--conversations", "6", "--trees", "4")
	a, err := f.axis()
	if err != nil {
		t.Fatal(err)
	}
	if o := a.make(4); o.Duration != 30*time.Minute || o.Concurrency != 4 || !o.Recycle {
		t.Errorf("%+v", o)
	}
	w, err := f.workload.make(0)
	if err != nil {
		t.Fatal(err)
	}
	warm := 0
	for _, r := range f.agentx.apply(w, 4, 1).Requests {
		if r.Warm {
			warm++
		}
		if r.Delay+r.ToolWait > 10*time.Second {
			t.Errorf("%s waits for %v", r.ID, r.Delay+r.ToolWait)
		}
	}
	if warm == 0 || warm > 4 {
		t.Errorf("%d lanes begin midway", warm)
	}
}

func TestAgentXStampsRuns(t *testing.T) {
	long := &result.Record{Phase: result.Measured, Status: 400, Error: "status 400: the maximum context length is 100 tokens"}
	good := &result.Record{Phase: result.Measured, Status: 200}
	for _, c := range []struct {
		records     []*result.Record
		interrupted bool
		why         string
	}{
		{[]*result.Record{good}, false, ""},
		{[]*result.Record{good}, true, "interrupted"},
		{[]*result.Record{good, long}, false, "context_overflow: 50.0 %"},
	} {
		var words strings.Builder
		f := agentxFlags{preset: "agentx"}
		m := &measurement{run: &result.Run{Seed: 7}, words: &words, steps: []result.Step{{Name: "trees 4", Records: c.records}}}
		f.stamp(m, c.interrupted)
		if got := strings.Join(m.run.Invalid, ";"); m.run.Scenario != "agentx" || !strings.HasPrefix(got, c.why) || (got == "") != (c.why == "") {
			t.Errorf("%q, want %q", got, c.why)
		}
		if want := map[bool]string{true: "agentx: valid, seed 7", false: "agentx: not valid: "}[c.why == ""]; !strings.Contains(words.String(), want) {
			t.Errorf("%q", words.String())
		}
	}
}
