//go:build cuda

package drv

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A driver is loaded once in a process, so each case is a process: this test program again.
const child = "TANDEM_DRV_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	err := Load()
	fmt.Printf("%v\n%v\n%d %d\n", err, errors.Is(err, ErrAbsent), initResult(), countResult())
}

// inChild runs Load in a process with the variables and returns its error, whether it is
// ErrAbsent, and what cuInit and cuDeviceGetCount answer afterwards.
func inChild(t *testing.T, env ...string) (text, absent, calls string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "TANDEM_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, child+"=1"), env...)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(string(out), "\n")
	if err != nil || len(lines) != 4 {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	return lines[0], lines[1], lines[2]
}

// fakeDriver builds a library whose cuInit returns the given number.
func fakeDriver(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	src, lib := filepath.Join(dir, "fake.c"), filepath.Join(dir, "libfake.so")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-o", lib, src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return lib
}

const named = `int cuGetErrorName(int r, const char **s) { *s = "CUDA_ERROR_NO_DEVICE"; return 0; }
`

func TestLoadSaysWhyThereIsNoDevice(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("this is no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusing := fakeDriver(t, named+"int cuInit(unsigned f) { return 100; }")
	empty := fakeDriver(t, "int x;")
	for _, tc := range []struct {
		name string
		env  []string
		want string
	}{
		{"named library missing", []string{"TANDEM_LIBCUDA=/nowhere/libcuda.so.1"}, "no CUDA device: /nowhere/libcuda.so.1, named by TANDEM_LIBCUDA, not found"},
		{"switched off", []string{"TANDEM_NO_CUDA=1"}, "no CUDA device: switched off by TANDEM_NO_CUDA"},
		{"no library at all", []string{"TANDEM_LIBCUDA=" + text}, "no CUDA device: " + text + ": file too short"},
		{"driver without device", []string{"TANDEM_LIBCUDA=" + refusing}, "no CUDA device: " + refusing + ": cuInit failed with CUDA_ERROR_NO_DEVICE (100)"},
		{"library of something else", []string{"TANDEM_LIBCUDA=" + empty}, "no CUDA device: " + empty + ": the library has no cuInit"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, absent, calls := inChild(t, tc.env...)
			if !strings.HasPrefix(got, tc.want) || absent != "true" {
				t.Errorf("Load: %q, absent %s; want %q", got, absent, tc.want)
			}
			if calls != "0 34" {
				t.Errorf("cuInit and cuDeviceGetCount answer %s, want 0 and 34, the code of a stub", calls)
			}
		})
	}
}

func TestNoDriverInstalled(t *testing.T) {
	got, _, _ := inChild(t)
	if got == "<nil>" || !strings.Contains(got, "not found") {
		t.Skipf("this machine has a driver: %s", got)
	}
	if got != "no CUDA device: libcuda.so.1 not found" {
		t.Errorf("Load: %q", got)
	}
}

// TestLoadFillsTheTable also shows that a driver that lacks a function still serves the others.
func TestLoadFillsTheTable(t *testing.T) {
	for source, want := range map[string]string{
		"int cuInit(unsigned f) { return 0; } int cuDeviceGetCount(int *n) { return 77; }": "0 77",
		"int cuInit(unsigned f) { return 0; }":                                             "0 500",
	} {
		got, _, calls := inChild(t, "TANDEM_LIBCUDA="+fakeDriver(t, source))
		if got != "<nil>" || calls != want {
			t.Errorf("Load: %s; cuInit and cuDeviceGetCount answer %s, want %s", got, calls, want)
		}
	}
}

// TestProgramNeedsOnlyTheCLibrary reads what this program, which holds all trampolines, is linked to.
func TestProgramNeedsOnlyTheCLibrary(t *testing.T) {
	f, err := elf.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	libs, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	// Parts of the C library; older ones have files of their own.
	ours := []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "libresolv.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
	for _, l := range libs {
		if !slices.Contains(ours, l) {
			t.Errorf("the program needs %s", l)
		}
	}
}
