//go:build cuda

package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tandem/test/tinymodel"
)

// asEngine makes this test program behave as the engine.
const asEngine = "TANDEM_TEST_AS_ENGINE"

func TestMain(m *testing.M) {
	if os.Getenv(asEngine) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// engine starts a child with these arguments on a machine that shows no device.
func engine(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TANDEM_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, asEngine+"=1", "TANDEM_LIBCUDA=/nowhere/libcuda.so.1")
	return cmd
}

func tiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := tinymodel.WriteServable(dir, 1); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCUDAOnAMachineWithoutIsAClearError(t *testing.T) {
	out, err := engine(t, "serve", tiny(t), "--backend", "cuda", "--port", "0").CombinedOutput()
	want := "engine: no CUDA device: /nowhere/libcuda.so.1, named by TANDEM_LIBCUDA, not found; use --backend auto or cpu\n"
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasSuffix(string(out), want) {
		t.Errorf("%v, output %q; want it to end with %q", err, out, want)
	}
}

func TestAutoOnAMachineWithoutServesOnTheCPU(t *testing.T) {
	cmd := engine(t, "serve", tiny(t), "--backend", "auto", "--port", "0")
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	said := false
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		said = said || strings.Contains(lines.Text(), "running on the CPU") && strings.Contains(lines.Text(), "no CUDA device")
		if strings.Contains(lines.Text(), "msg=ready") {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !said {
		t.Errorf("exit %v, said why on the CPU: %v\n%s", err, said, log.String())
	}
}

// TestEngineNeedsOnlyTheCLibrary reads what this program, with all of the engine in it, is linked to.
func TestEngineNeedsOnlyTheCLibrary(t *testing.T) {
	f, err := elf.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libs, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	// The parts of the C library; older ones have more of them in files of their own.
	known := []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
	for _, l := range libs {
		if !slices.Contains(known, l) {
			t.Errorf("the program needs %s", l)
		}
	}
}
