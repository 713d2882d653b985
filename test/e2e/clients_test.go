//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPythonClient runs the scenarios with the openai package for Python.
func TestPythonClient(t *testing.T) {
	folder := clientFolder(t, "python")
	clientScenarios(t, folder, filepath.Join(folder, "bin", "python"), "clients/python/scenarios.py")
}

// TestNodeClient runs the scenarios with the openai package for Node.
func TestNodeClient(t *testing.T) {
	clientScenarios(t, clientFolder(t, "node"), "node", "clients/node/scenarios.mjs")
}

// clientFolder is where clients/install put a package. CI must have it.
func clientFolder(t *testing.T, kind string) string {
	t.Helper()
	folder := filepath.Join(os.Getenv("TANDEM_CLIENTS"), kind)
	_, err := os.Stat(filepath.Join(folder, ".installed"))
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("the openai package for %s is not in TANDEM_CLIENTS (make clients installs it): %v", kind, err)
	default:
		t.Skipf("the openai package for %s is not in TANDEM_CLIENTS (make clients installs it): %v", kind, err)
	}
	return folder
}

func clientScenarios(t *testing.T, folder, interpreter, script string) {
	t.Helper()
	c := startCluster(t, workerConfig{}, "")
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, script, c.url, modelName)
	cmd.Env = append(os.Environ(), "TANDEM_CLIENT_FOLDER="+folder, "NO_PROXY=127.0.0.1", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	t.Logf("%s:\n%s", script, out)
	if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	if n := bytes.Count(out, []byte("ok  ")); n != 12 {
		t.Errorf("%d of 12 scenarios passed", n)
	}
	waitClean(t, settleLimit, c.ctx, c.gen)
}
