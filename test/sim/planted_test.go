//go:build !race && !invariants

package sim

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// plant is a bug that is put into a copy of a source file.
type plant struct {
	name, file, line, bug string
}

// plants are bugs that engines like this one have had. Each stands behind the
// switch of its name, so that one binary has them all.
var plants = []plant{
	{
		"a forgotten release", "core.go", "\tc.kv.Release(s.Table)\n",
		"\tif planted != %q || s.choice == 0 {\n\t\tc.kv.Release(s.Table)\n\t}\n",
	},
	{
		"a release while a step runs", "core.go", "\tif s.State != request.Closed || s.holds != 0 {\n",
		"\tholds := s.holds\n\tif planted == %q {\n\t\tholds &^= holdStep\n\t}\n\tif s.State != request.Closed || holds != 0 {\n",
	},
	{
		"a missing salt in the hash", "core.go", "\th := blockhash.Root(c.cfg.Namespace, \"\", salt)\n",
		"\tof := salt\n\tif planted == %q {\n\t\tof = \"\"\n\t}\n\th := blockhash.Root(c.cfg.Namespace, \"\", of)\n",
	},
	{
		"a lease without a local deadline", "deadline.go", "\t\tdue = s.lease.expires\n\tcase request.CtxWaitPeer:\n",
		"\t\tif planted != %q {\n\t\t\tdue = s.lease.expires\n\t\t}\n\tcase request.CtxWaitPeer:\n",
	},
	{
		"a commit before the result is applied", "plan.go", "\t\tc.fly(s, len(b.Rows), &b.Rows[len(b.Rows)-1])\n",
		"\t\tc.fly(s, len(b.Rows), &b.Rows[len(b.Rows)-1])\n\t\tif done := s.done; planted == %q && !s.Ahead {\n\t\t\ts.done = s.Computed\n\t\t\tc.commit(s)\n\t\t\ts.done = done\n\t\t}\n",
	},
}

const plantSwitch = "package executor\n\nimport \"os\"\n\nvar planted = os.Getenv(\"TANDEM_PLANTED\")\n"

// plantAll compiles this package's tests with all plants and returns the binary.
func plantAll(t *testing.T) string {
	t.Helper()
	dir, core := t.TempDir(), filepath.Join("..", "..", "engine", "executor")
	core, err := filepath.Abs(core)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{"planted.go": plantSwitch}
	for _, p := range plants {
		if texts[p.file] == "" {
			data, err := os.ReadFile(filepath.Join(core, p.file))
			if err != nil {
				t.Fatal(err)
			}
			texts[p.file] = string(data)
		}
		if strings.Count(texts[p.file], p.line) != 1 {
			t.Fatalf("%s has not exactly one line %q any more: plant %s elsewhere", p.file, p.line, p.name)
		}
		texts[p.file] = strings.Replace(texts[p.file], p.line, strings.Replace(p.bug, "%q", `"`+p.name+`"`, 1), 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for file, text := range texts {
		to := filepath.Join(dir, file)
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[filepath.Join(core, file)] = to
	}
	data, err := json.Marshal(overlay)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// TestPlantedBugsAreFound proves that TestFaultStorm finds each plant within its
// first hundred seeds, a few seconds, and tells how to see it again, and that it
// finds nothing without one.
func TestPlantedBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles the core anew")
	}
	bin := plantAll(t)
	storm := func(plant string, seeds string) (string, error) {
		cmd := exec.CommandContext(t.Context(), bin, "-test.run=TestFaultStorm$", "-seeds="+seeds)
		cmd.Env = append(os.Environ(), "TANDEM_PLANTED="+plant)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := storm("", "3"); err != nil {
		t.Fatalf("without a plant: %v\n%s", err, out)
	}
	for _, p := range plants {
		out, err := storm(p.name, "100")
		if err == nil || !strings.Contains(out, "reproduce: go test") {
			t.Errorf("%s: not found (%v)\n%s", p.name, err, out)
			continue
		}
		t.Logf("%s:\n%s", p.name, out)
	}
}
