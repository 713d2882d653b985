package main

import (
	"encoding/json/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// route runs the command with a script on standard input and returns what it
// prints, or its error.
func route(script string, args ...string) string {
	cmd := root()
	var out strings.Builder
	cmd.SetIn(strings.NewReader(script))
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{"route", "--script", "-"}, args...))
	if err := cmd.Execute(); err != nil {
		return "error: " + err.Error() + "\n"
	}
	return out.String()
}

// TestRoute compares what the command prints with testdata/route*.txt: text and
// json take a script, example a file of configs.
func TestRoute(t *testing.T) {
	for _, file := range []string{"testdata/route.txt", "testdata/route_errors.txt"} {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			script := d.Input
			var name string
			if d.MaybeScanArgs(t, "file", &name); name != "" {
				text, err := os.ReadFile(filepath.Join("../../configs", name))
				if err != nil {
					t.Fatal(err)
				}
				script = string(text)
			}
			switch d.Cmd {
			case "text":
				return route(script)
			case "json":
				out := route(script, "--json")
				var v any
				if err := json.Unmarshal([]byte(out), &v); err != nil && !strings.HasPrefix(out, "error: ") {
					t.Errorf("%v in %s", err, out)
				}
				return out
			}
			t.Fatalf("unknown command %s", d.Cmd)
			return ""
		})
	}
}

func TestRouteReadsItsFile(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := root()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"route"}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	if out, err := run("--script", "../../configs/route.json"); err != nil || !strings.Contains(out, "2 overflow") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "--script is missing") {
		t.Errorf("no script: %v", err)
	}
	if _, err := run("--script", "absent.json"); err == nil || !strings.Contains(err.Error(), "absent.json") {
		t.Errorf("no such file: %v", err)
	}
}

// FuzzRouteScript feeds any script: it must end in a result or an error.
func FuzzRouteScript(f *testing.F) {
	text, err := os.ReadFile("../../configs/route.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"cases":[{"id":1,"kind":"route","config":{"max_sessions":-1,"fair_share_multiplier":1e5},"batches":[{"rank_states":[{}],"requests":[{"id":1}]}]}]}`))
	f.Add([]byte(`{"cases":[{"id":1,"kind":"route","config":{"router":"conversation_aware","rehome":true,"rehome_min_gain":0,"rehome_gain":0,"rehome_cooldown":0,"rehome_copy_cost":1e6},"batches":[{"rank_states":[{},{}],"requests":[{"id":1,"conversation_id":"A","num_tokens":2147483647}]},{"rank_states":[{},{}]},{"rank_states":[{"queued_prefill_tokens":1125899906842624,"gen_requests":1073741824},{}],"requests":[{"id":1,"conversation_id":"A","num_tokens":2147483647}]}]}]}`))
	f.Fuzz(func(t *testing.T, script []byte) {
		results, err := replay(script)
		if err != nil {
			return
		}
		var out strings.Builder
		if err := printRoutes(&out, results); err != nil {
			t.Error(err)
		}
		if err := writeRoutes(&out, results); err != nil {
			t.Error(err)
		}
	})
}
