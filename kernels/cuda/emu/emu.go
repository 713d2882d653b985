package emu

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Library is a built emulator.
type Library struct {
	Dir string // the folder of the shared libraries
}

// CUDA is the path of the driver's stand-in.
func (l Library) CUDA() string { return filepath.Join(l.Dir, "libcuda.so.1") }

// Env returns the variables, as KEY=VALUE, that point the engine to the emulator.
func (l Library) Env() []string {
	env := []string{"TANDEM_LIBCUDA=" + l.CUDA()}
	for _, o := range others {
		env = append(env, o.key+"="+filepath.Join(l.Dir, o.name))
	}
	return env
}

// Setenv sets the variables of [Library.Env] in this process, for a TestMain.
func (l Library) Setenv() error {
	for _, kv := range l.Env() {
		k, v, _ := strings.Cut(kv, "=")
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	return nil
}

// Build makes the emulator of the given kernel sources, by default kernels/cuda/*.cu, and returns
// where it lies. The result is cached in the user's cache folder under a hash of everything that
// goes into it, so that a second call is quick; processes that build at the same time wait for one
// another. It needs g++ 12 or later and the module's source tree, found from the working folder.
func Build(sources ...string) (Library, error) { return build(sources) }

func build(sources []string, defines ...string) (Library, error) {
	root, err := moduleRoot()
	if err != nil {
		return Library{}, err
	}
	sources = slices.Clone(sources)
	if len(sources) == 0 {
		if sources, err = filepath.Glob(filepath.Join(root, "kernels/cuda/*.cu")); err != nil {
			return Library{}, err
		}
	}
	for i := range sources {
		if sources[i], err = filepath.Abs(sources[i]); err != nil {
			return Library{}, err
		}
	}
	b := &builder{emu: filepath.Join(root, "kernels/cuda/emu"), sources: sources, defines: defines}
	if b.cache, err = cacheDir(); err != nil {
		return Library{}, err
	}
	key, err := b.hash()
	if err != nil {
		return Library{}, err
	}
	lib := Library{Dir: filepath.Join(b.cache, key)}
	if b.present(lib) {
		return lib, nil
	}
	unlock, err := lockFile(lib.Dir + ".lock")
	if err != nil {
		return Library{}, err
	}
	defer unlock()
	if b.present(lib) {
		return lib, nil
	}
	prune(b.cache, time.Now().Add(-keep))
	return lib, b.build(lib.Dir)
}

// keep is how long a build that nobody uses stays in the cache.
const keep = 14 * 24 * time.Hour

// present reports a finished build and marks it as used.
func (b *builder) present(lib Library) bool {
	now := time.Now()
	return os.Chtimes(lib.CUDA(), now, now) == nil
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "kernels/cuda/emu/src/fiber.cpp")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("cuda emulator: %s lies outside the source tree", dir)
		}
	}
}

func cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "tandem", "cuda-emu")
	return dir, os.MkdirAll(dir, 0o755)
}

func lockFile(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda emulator: lock of the cache: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// prune removes builds and objects that were last used before the given time.
func prune(cache string, before time.Time) {
	old, _ := filepath.Glob(filepath.Join(cache, "*", "libcuda.so.1"))
	objects, _ := filepath.Glob(filepath.Join(cache, "obj", "*"))
	locks, _ := filepath.Glob(filepath.Join(cache, "*.lock"))
	for _, p := range slices.Concat(old, objects, locks) {
		st, err := os.Stat(p)
		if err != nil || st.ModTime().After(before) {
			continue
		}
		if filepath.Base(p) == "libcuda.so.1" {
			p = filepath.Dir(p)
		}
		_ = os.RemoveAll(p)
	}
}

// hash covers the compiler, its flags, the emulator and every header or source beside the kernels.
func (b *builder) hash() (string, error) {
	h := sha256.New()
	version, err := compilerVersion()
	if err != nil {
		return "", err
	}
	_, _ = fmt.Fprintln(h, version, flags(), b.defines, b.sources)
	var files []string
	dirs := []string{filepath.Join(b.emu, "include"), filepath.Join(b.emu, "src"), filepath.Join(b.emu, "lib"), filepath.Join(b.emu, "../include")}
	for _, s := range b.sources {
		dirs = append(dirs, filepath.Dir(s))
	}
	slices.Sort(dirs)
	for _, d := range slices.Compact(dirs) {
		for _, ext := range []string{"*.h", "*.cpp", "*.cu", "*.cuh"} {
			m, err := filepath.Glob(filepath.Join(d, ext))
			if err != nil {
				return "", err
			}
			files = append(files, m...)
		}
	}
	for _, f := range append(files, b.sources...) {
		if err := hashFile(h, f); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:32], nil
}

func hashFile(h io.Writer, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cuda emulator: %w", err)
	}
	_, _ = fmt.Fprintln(h, path, len(data))
	_, err = h.Write(data)
	return err
}
