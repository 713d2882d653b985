// Command gen compiles the kernels to PTX: `go run ./kernels/cuda/gen CACHE`, in
// the module's root. It installs NVIDIA's compiler by name from the package
// index that pip uses into the folder CACHE, compiles sources whose PTX is
// stale, and writes what ptxas says of every kernel to ptx/ptxas.log.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"tandem/kernels/cuda"
)

// PTX of a later compiler than 13.0 is refused by drivers of 13.0.
var wheels = []string{
	"nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88",
	"nvidia-cuda-runtime==13.0.96", "nvidia-cuda-cccl==13.0.85",
}

const folder = "kernels/cuda"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen CACHE")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(cache string) error {
	bin, err := toolkit(cache)
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(folder + "/*.cu")
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	var lines []string
	slots := make(chan struct{}, runtime.NumCPU())
	for _, target := range cuda.Targets {
		for _, source := range sources {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				got, err := module(bin, source, target)
				mu.Lock()
				defer mu.Unlock()
				lines = append(lines, got...)
				if err != nil && first == nil {
					first = err
				}
			})
		}
	}
	wg.Wait()
	if first != nil {
		return first
	}
	slices.Sort(lines)
	return os.WriteFile(folder+"/ptx/ptxas.log", []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// toolkit returns the folder of nvcc and ptxas.
func toolkit(cache string) (string, error) {
	bin := filepath.Join(cache, "nvidia/cu13/bin")
	if _, err := os.Stat(filepath.Join(bin, "nvcc")); err == nil {
		return bin, nil
	}
	args := append([]string{"-m", "pip", "install", "--no-deps", "--target", cache}, wheels...)
	cmd := exec.Command("python3", args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("install the compiler with pip: %w", err)
	}
	return bin, nil
}

// module compiles a source unless its PTX is of the same sources, and returns a
// line for each of its kernels.
func module(bin, source string, target int) ([]string, error) {
	name := strings.TrimSuffix(filepath.Base(source), ".cu")
	out := fmt.Sprintf("%s/ptx/%s.sm%d.ptx", folder, name, target)
	stamp, err := cuda.Stamp(os.DirFS(folder), name+".cu", cuda.Flags(target))
	if err != nil {
		return nil, err
	}
	if old, err := os.ReadFile(out); err == nil && bytes.HasPrefix(old, []byte(stamp+"\n")) {
		if lines := logged(name, target, stamp); len(lines) > 0 {
			return lines, nil
		}
	} else {
		if err := compile(bin, source, out, stamp, target); err != nil {
			return nil, err
		}
	}
	object, err := os.CreateTemp("", "kernels-*.cubin")
	if err != nil {
		return nil, err
	}
	_ = object.Close()
	defer func() { _ = os.Remove(object.Name()) }()
	text, err := exec.Command(filepath.Join(bin, "ptxas"), "-v", fmt.Sprintf("-arch=sm_%d", target), out, "-o", object.Name()).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("ptxas %s: %w\n%s", out, err, text)
	}
	return usage(string(text), name, target, stamp), nil
}

// logged returns the lines that an earlier run wrote of the same code.
func logged(name string, target int, stamp string) []string {
	old, err := os.ReadFile(folder + "/ptx/ptxas.log")
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(old)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, fmt.Sprintf("sm_%d %s ", target, name)) && strings.HasSuffix(line, "sources "+short(stamp)) {
			lines = append(lines, line)
		}
	}
	return lines
}

// short is the beginning of a stamp's hash.
func short(stamp string) string { return stamp[strings.LastIndexByte(stamp, ' ')+1:][:12] }

func compile(bin, source, out, stamp string, target int) error {
	tmp := out + ".tmp"
	defer func() { _ = os.Remove(tmp) }()
	args := append(cuda.Flags(target), source, "-o", tmp)
	if text, err := exec.Command(filepath.Join(bin, "nvcc"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("nvcc %s: %w\n%s", source, err, text)
	}
	ptx, err := os.ReadFile(tmp)
	if err != nil {
		return err
	}
	return os.WriteFile(out, append([]byte(stamp+"\n"), trim(ptx)...), 0o644)
}

var comment = regexp.MustCompile(`(?m)^[ \t]*//.*\n|[ \t]*//.*$`)

// trim leaves out the compiler's comments, which make a third of the text.
func trim(ptx []byte) []byte { return comment.ReplaceAll(ptx, nil) }

var entry = regexp.MustCompile(`(?s)Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)`)

var shared = regexp.MustCompile(`(\d+) bytes smem`)

// usage makes one line for each kernel of ptxas' report.
func usage(text, name string, target int, stamp string) []string {
	var lines []string
	for _, m := range entry.FindAllStringSubmatch(text, -1) {
		smem := "0"
		if s := shared.FindStringSubmatch(m[6]); s != nil {
			smem = s[1]
		}
		lines = append(lines, fmt.Sprintf("sm_%d %s %s: registers %s, stack %s, spill stores %s, spill loads %s, shared %s, sources %s",
			target, name, m[1], m[5], m[2], m[3], m[4], smem, short(stamp)))
	}
	return lines
}
