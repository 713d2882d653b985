package cuda

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
)

// Targets are the compute capabilities that PTX is built for, ascending. Code
// for one runs on that and all later ones.
var Targets = []int{80, 90}

// What compiles the PTX at run time: the version of CUDA, 1000 x major + 10 x minor,
// that a driver must support at least, and the first driver that does.
const (
	Driver        = 13000
	DriverRelease = "580"
)

//go:embed ptx/*.ptx
var ptx embed.FS

// Module is the code of one source file for one target.
type Module struct {
	Name string // of the source, without .cu
	PTX  []byte
}

// Modules returns the code for a target. Loading a module compiles it, so a
// caller loads those whose kernels it uses; see [Kernel.Module].
func Modules(target int) ([]Module, error) {
	suffix := fmt.Sprintf(".sm%d.ptx", target)
	files, err := fs.Glob(ptx, "ptx/*"+suffix)
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no kernels for compute capability %d are built in; there are %v", target, Targets)
	}
	mods := make([]Module, len(files))
	for i, f := range files {
		text, err := ptx.ReadFile(f)
		if err != nil {
			return nil, err
		}
		mods[i] = Module{strings.TrimSuffix(strings.TrimPrefix(f, "ptx/"), suffix), text}
	}
	return mods, nil
}

// hashPrefix begins the first line of generated PTX; the hash of its sources follows.
const hashPrefix = "// sources sha256 "

// Stamp is the first line of PTX that is made of source (such as "rope.cu") in
// dir: it holds a hash of that file, of the headers beside it that it includes,
// and of the compiler's flags.
func Stamp(dir fs.FS, source string, flags []string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, flags)
	seen := map[string]bool{}
	var add func(file string) error
	add = func(file string) error {
		if seen[file] {
			return nil
		}
		seen[file] = true
		text, err := fs.ReadFile(dir, file)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(h, file, len(text))
		h.Write(text)
		for _, m := range include.FindAllSubmatch(text, -1) {
			if err := add(string(m[1])); err != nil {
				return err
			}
		}
		return nil
	}
	if err := add(source); err != nil {
		return "", err
	}
	return hashPrefix + hex.EncodeToString(h.Sum(nil)), nil
}

// include finds our own headers; those of the emulator do not reach the PTX.
var include = regexp.MustCompile(`(?m)^#include "(\w+\.cuh)"`)

// Flags are the compiler's for a target.
func Flags(target int) []string {
	return []string{"-O3", "-std=c++17", fmt.Sprintf("-arch=compute_%d", target), "-ptx"}
}
