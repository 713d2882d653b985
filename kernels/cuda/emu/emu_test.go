package emu

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// library builds the emulator of the test kernels.
func library(t *testing.T) Library {
	t.Helper()
	lib, err := Build(testKernels...)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func TestBuildIsCached(t *testing.T) {
	lib := library(t)
	before, err := os.Stat(lib.CUDA())
	if err != nil {
		t.Fatal(err)
	}
	if again := library(t); again != lib {
		t.Fatalf("second build lies in %s, the first in %s", again.Dir, lib.Dir)
	}
	after, err := os.Stat(lib.CUDA())
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) {
		t.Fatal("the second build compiled again")
	}
}

func TestKernelsOfASource(t *testing.T) {
	b := &builder{emu: "."}
	got, err := b.kernels("testdata/basic.cu")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 5 || got[0] != "td_add" {
		t.Fatalf("kernels of basic.cu: %v", got)
	}
}

var testKernels = []string{"testdata/basic.cu", "testdata/faults.cu"}

// scenarios builds testdata/*.cpp against the emulator, once.
var scenarios = sync.OnceValues(func() (string, error) {
	lib, err := build(testKernels)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "cuda-emu-test")
	if err != nil {
		return "", err
	}
	built = dir
	return filepath.Join(dir, "scenarios"), compileScenarios(lib, filepath.Join(dir, "scenarios"))
})

func compileScenarios(lib Library, bin string) error {
	sources, err := filepath.Glob("testdata/*.cpp")
	if err != nil {
		return err
	}
	args := append([]string{"-std=gnu++17", "-Wall", "-pthread", "-I../include", "-o", bin}, sources...)
	for _, o := range others {
		args = append(args, filepath.Join(lib.Dir, o.name))
	}
	return gxx(append(args, lib.CUDA(), "-Wl,-rpath,"+lib.Dir)...)
}

// built is the folder of the scenarios, once they are built.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

func program(t *testing.T) string {
	t.Helper()
	bin, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// scenario runs one in a process of its own and returns what it printed.
func scenario(t *testing.T, bin, name string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, "testdata/test.ptx", name)
	cmd.Env = append(os.Environ(), "TANDEM_EMU_DEVICES=2", "TANDEM_EMU_MEMORY=8M", "TANDEM_EMU_STREAMS=", "TANDEM_EMU_ORDER=")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "FAIL") || !strings.HasSuffix(string(out), "done\n") {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// modes are the two kinds of streams, each with orders of threads.
var modes = []struct {
	name string
	env  []string
}{
	{"eager", []string{"TANDEM_EMU_STREAMS=eager"}},
	{"lazy reverse", []string{"TANDEM_EMU_STREAMS=lazy", "TANDEM_EMU_ORDER=reverse"}},
	{"lazy random", []string{"TANDEM_EMU_STREAMS=lazy", "TANDEM_EMU_ORDER=7"}},
}

// TestScenarios runs everything in testdata, where programs check themselves.
func TestScenarios(t *testing.T) {
	bin := program(t)
	list, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modes {
		for name := range strings.FieldsSeq(string(list)) {
			if strings.HasSuffix(name, "_child") {
				continue
			}
			t.Run(m.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				scenario(t, bin, name, m.env...)
			})
		}
	}
}

// TestReports compares the words of the reports with what an engineer needs to find the fault.
func TestReports(t *testing.T) {
	bin := program(t)
	const lazy = "TANDEM_EMU_STREAMS=lazy"
	for _, c := range []struct {
		name, env, want string
	}{
		{"missing_barrier", "TANDEM_EMU_ORDER=forward", "found in 32 of 64"},
		{"missing_barrier", "TANDEM_EMU_ORDER=reverse", "found in 32 of 64"},
		{"missing_second_barrier", "TANDEM_EMU_ORDER=reverse", "found in some"},
		{"divergent_barrier", "", "thread (16,0,0) is at "},
		{"deadlock", lazy, "threads 32-34 36-63; at barrier "},
		{"exited_lane", "", "thread (7,0,0) exited while thread (0,0,0) waits for it"},
		{"masks_differ", "", "lanes disagree on the mask"},
		{"shuffle_source_outside", "", "faults.cu:"},
		{"stack_overflow", "", "the thread's local memory is used up"},
		{"division_by_zero", "", "integer division by zero"},
		{"device_assert", "", "thread (20,0,0): assertion threadIdx.x < n at "},
		{"shared_overrun", "", "wrote behind its dynamic shared memory of 128 bytes, at offset 128"},
		{"out_of_bounds_block_index", "", "block (64,0,0), thread (0,0,0): an illegal memory access"},
		{"out_of_bounds_block_index", lazy, "0 bytes behind the allocation of 256 bytes"},
		{"use_after_free", "", "inside the freed allocation of 256 bytes"},
		{"peer_access_not_enabled", lazy, "points to memory of device 1, which device 0 was not allowed to reach"},
		{"double_free", "", "double free of 0x"},
		{"missing_event_wait", lazy, "\nfound"},
		{"unpinned_async_copy", "", "needs pinned host memory"},
		{"pinned_memory_freed_too_early", lazy, "\n700\n"},
		{"stale_ptx", "", "parameters of (8,8,8,4) bytes in the PTX, of (8,8,4,4) in the source"},
		{"synchronise_in_capture", "", "900 operation not permitted when stream is capturing: waited for"},
		{"gemm_out_of_bounds", lazy, "D: the range of "},
		{"nccl_ranks_disagree", lazy, "rank 0 calls all-reduce of 32 elements of type 2, rank 1 calls all-reduce of 64"},
		{"query_makes_progress", lazy, "\nlazy"},
		{"query_makes_progress", "", "\neager"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if out := "\n" + scenario(t, bin, c.name, c.env); !strings.Contains(out, c.want) {
				t.Errorf("got %s\nwant %q in it", out, c.want)
			}
		})
	}
}

// The second way to switch between fibers, for processors other than x86-64, finds the same.
func TestPortableSwitch(t *testing.T) {
	lib, err := build(testKernels, "-DTDEMU_UCONTEXT")
	if err != nil {
		t.Fatal(err)
	}
	bin := program(t)
	for _, name := range []string{
		"add", "warp_ops", "mma", "divergent_barrier", "deadlock", "stack_overflow", "division_by_zero",
		"use_after_free", "shared_overrun",
	} {
		// The preloaded library has the name that the program asks for.
		scenario(t, bin, name, "LD_PRELOAD="+lib.CUDA())
	}
}
