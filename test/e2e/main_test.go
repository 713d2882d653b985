//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tandem/test/etcd"
)

// The binaries under test and the model they serve; set by TestMain.
var (
	engineBin, frontendBin string
	modelName              = "smollm2-135m-instruct"
	binFolder              string
)

// binEnv names a folder that has the binaries already.
const binEnv = "TANDEM_E2E_BIN"

func TestMain(m *testing.M) {
	if dir := os.Getenv(binEnv); dir != "" {
		setBinaries(dir)
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "tandem-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := 1
	if err := build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	etcd.Remove()
	os.Exit(code)
}

// build compiles both binaries once for all tests.
func build(dir string) error {
	cmd := exec.Command("go", "build", "-tags", buildTags, "-o", dir+string(filepath.Separator), "./cmd/engine", "./cmd/frontend")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	setBinaries(dir)
	return nil
}

func setBinaries(dir string) {
	binFolder, engineBin, frontendBin = dir, filepath.Join(dir, "engine"), filepath.Join(dir, "frontend")
}

// needModel skips where the default model was not fetched; make test-e2e fetches it.
func needModel(t *testing.T) {
	t.Helper()
	out, err := exec.Command(engineBin, "model", "path", modelName).CombinedOutput()
	if err == nil {
		return
	}
	text := fmt.Sprintf("%s is not here (make model fetches it): %s", modelName, strings.TrimSpace(string(out)))
	if os.Getenv("CI") == "true" {
		t.Fatal(text)
	}
	t.Skip(text)
}
