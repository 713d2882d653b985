//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// hookedBin is a frontend whose routers choose the rank that TANDEM_TEST_RANK names, and which waits after a ctx reply
// until the client has left if TANDEM_TEST_HOLD is set.
var hookedBin = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(binFolder, "hooked", "frontend")
	cmd := exec.Command("go", "build", "-tags", "testhooks", "-o", bin, "./cmd/frontend")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return bin, nil
})

func buildHooked(t *testing.T) string {
	t.Helper()
	bin, err := hookedBin()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// TestScenario46: a rank that the router chose goes to a worker unless that places by conversation itself and knows one.
func TestScenario46(t *testing.T) {
	t.Setenv("TANDEM_TEST_RANK", "2") // so the scenario does not run beside others
	bin := buildHooked(t)
	for _, c := range []struct {
		name           string
		affinity, able bool // engine_conv_affinity, adp_conversation_affinity
		session        bool
		want           string
	}{
		{"a session and a capable worker", true, true, true, ""},
		{"no session", true, true, false, "2"},
		{"a worker that is not capable", true, false, true, "2"},
		{"the flag is off", false, true, true, "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := rigOf{bin: bin, before: func(r *rig) {
				for _, s := range []*stub{r.ctx[0], r.gen[0]} {
					s.mu.Lock()
					s.info["adp_size"], s.info["adp_conversation_affinity"] = 4, c.able
					s.mu.Unlock()
				}
			}}
			if c.affinity {
				o.yaml = "engine_conv_affinity: true\n"
			}
			r := newRig(t, o)
			var headers []string
			if c.session {
				headers = []string{"X-Session-ID", "s"}
			}
			r.ask(t, textPath, helloText, headers...).wantOK(t, "ABC")
			for _, s := range []*stub{r.ctx[0], r.gen[0]} {
				if got := wantLegs(t, s, 1)[0].header.Get("X-Disagg-DP-Rank"); got != c.want {
					t.Errorf("%s got the rank %q, want %q", s.name, got, c.want)
				}
			}
		})
	}
}
