package emu

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// builder makes one set of libraries.
type builder struct {
	emu     string   // kernels/cuda/emu
	sources []string // *.cu
	cache   string
	defines []string // more flags, for tests
}

// other is a library beside libcuda.so.1: one source file, and the variable that names it.
type other struct{ name, source, key string }

var others = []other{
	{"libcublasLt.so.13", "lib/cublaslt.cpp", "TANDEM_CUBLASLT"},
	{"libnccl.so.2", "lib/nccl.cpp", "TANDEM_NCCL"},
}

func compiler() string {
	if cxx := os.Getenv("CXX"); cxx != "" {
		return cxx
	}
	return "g++"
}

var compilerVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(compiler(), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("cuda emulator: the C++ compiler %q is needed (CXX names another): %w", compiler(), err)
	}
	return string(out), nil
})

// flags: contraction to fused multiply-add is on, as nvcc has it. Thread-local variables are shared
// memory and may be large, hence the dynamic TLS model with descriptors.
var flags = sync.OnceValue(func() []string {
	f := []string{
		"-std=gnu++17", "-O2", "-g1", "-fPIC", "-pthread", "-fno-extern-tls-init", "-fno-strict-aliasing",
		"-fvisibility-inlines-hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-function",
		"-Wno-unused-parameter",
	}
	if runtime.GOARCH == "amd64" {
		f = append(f, "-mtls-dialect=gnu2")
		if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil && bytes.Contains(cpu, []byte(" avx2 ")) &&
			bytes.Contains(cpu, []byte(" fma ")) && bytes.Contains(cpu, []byte(" bmi2 ")) {
			f = append(f, "-march=x86-64-v3")
		}
	}
	return f
})

func (b *builder) args(more ...string) []string {
	inc := []string{
		"-I" + filepath.Join(b.emu, "include"), "-I" + filepath.Join(b.emu, "src"),
		"-I" + filepath.Join(b.emu, "../include"),
	}
	return slices.Concat(flags(), b.defines, inc, more)
}

// build compiles into a temporary folder and renames it, so that a finished folder is complete.
func (b *builder) build(dir string) error {
	tmp, err := os.MkdirTemp(b.cache, "tmp-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.MkdirAll(filepath.Join(b.cache, "obj"), 0o755); err != nil {
		return err
	}
	runtimeSrc, err := filepath.Glob(filepath.Join(b.emu, "src/*.cpp"))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var objects []string
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(1, runtime.NumCPU()))
	run := func(f func() (string, error)) {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			o, err := f()
			mu.Lock()
			defer mu.Unlock()
			objects, errs = append(objects, o), append(errs, err)
		})
	}
	for _, s := range runtimeSrc {
		run(func() (string, error) { return b.object(s, tmp) })
	}
	for _, s := range b.sources {
		run(func() (string, error) { return b.kernelObject(s, tmp) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.Sort(objects)
	if err := b.link(tmp, objects); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (b *builder) link(tmp string, objects []string) error {
	link := func(name string, in ...string) error {
		args := append([]string{"-shared", "-pthread", "-Wl,-z,defs", "-Wl,-soname," + name, "-Wl,-rpath,$ORIGIN", "-o", filepath.Join(tmp, name)}, in...)
		return gxx(append(args, "-ldl", "-lrt")...)
	}
	if err := link("libcuda.so.1", objects...); err != nil {
		return err
	}
	for _, o := range others {
		obj, err := b.object(filepath.Join(b.emu, o.source), tmp)
		if err != nil {
			return err
		}
		if err := link(o.name, obj, filepath.Join(tmp, "libcuda.so.1")); err != nil {
			return err
		}
	}
	return nil
}

// object compiles one source, or finds it compiled: the key is the preprocessed text.
func (b *builder) object(source, tmp string) (string, error) {
	text := filepath.Join(tmp, filepath.Base(source)+".ii")
	if err := gxx(b.args("-E", source, "-o", text)...); err != nil {
		return "", err
	}
	data, err := os.ReadFile(text)
	if err := errors.Join(err, os.Remove(text)); err != nil {
		return "", err
	}
	version, err := compilerVersion()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(fmt.Sprintln(version, flags(), b.defines)), data...))
	obj := filepath.Join(b.cache, "obj", hex.EncodeToString(sum[:16])+".o")
	now := time.Now()
	if os.Chtimes(obj, now, now) == nil {
		return obj, nil
	}
	part := filepath.Join(tmp, filepath.Base(source)+".o")
	if err := gxx(b.args("-c", source, "-o", part)...); err != nil {
		return "", err
	}
	return obj, os.Rename(part, obj)
}

// kernelObject compiles a kernel source together with the registration of its kernels.
func (b *builder) kernelObject(source, tmp string) (string, error) {
	abs, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	names, err := b.kernels(abs)
	if err != nil {
		return "", err
	}
	var s strings.Builder
	fmt.Fprintf(&s, "#include %q\n#include \"table.h\"\n", abs)
	for _, n := range names {
		fmt.Fprintf(&s, "TDEMU_KERNEL(%s)\n", n)
	}
	// A fixed path, because the preprocessed text that makes the object's key names it.
	sum := sha256.Sum256([]byte(s.String()))
	reg := filepath.Join(b.cache, "obj", hex.EncodeToString(sum[:16])+".cpp")
	if err := os.WriteFile(reg, []byte(s.String()), 0o644); err != nil {
		return "", err
	}
	return b.object(reg, tmp)
}

var kernelDef = regexp.MustCompile(`__tdemu_global__\s+(?:__attribute__\s*\(\([^;{]*?\)\)\s*)?void\s+(?:__attribute__\s*\(\([^;{]*?\)\)\s*)?(\w+)\s*\(`)

// kernels lists the entry functions of a source. It reads the preprocessed text, so kernels that
// macros define are found.
func (b *builder) kernels(source string) ([]string, error) {
	args := b.args("-DTDEMU_SCAN", "-E", "-P", "-x", "c++", source)
	out, err := exec.Command(compiler(), args...).Output()
	if err != nil {
		return nil, fmt.Errorf("cuda emulator: preprocess %s: %w%s", source, err, stderrOf(err))
	}
	var names []string
	for _, m := range kernelDef.FindAllSubmatch(out, -1) {
		names = append(names, string(m[1]))
	}
	if n := bytes.Count(out, []byte("__tdemu_global__")); n != len(names) {
		return nil, fmt.Errorf("cuda emulator: %s has %d __global__ and %d recognised kernels %v", source, n, len(names), names)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func stderrOf(err error) string {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return "\n" + string(e.Stderr)
	}
	return ""
}

func gxx(args ...string) error {
	out, err := exec.Command(compiler(), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cuda emulator: %s %s: %w\n%s", compiler(), strings.Join(args, " "), err, out)
	}
	return nil
}
