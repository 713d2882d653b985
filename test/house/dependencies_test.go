package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	requireLine = regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`)
	toolLine    = regexp.MustCompile(`(?m)^\t(\S+)$`)
	useCell     = regexp.MustCompile("^\\| [^|]+ \\| `([^`]+)` (v\\S+) \\|")
)

// versions reads the requirements of a module file.
func versions(t *testing.T, path string) (text string, out map[string]string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	out = map[string]string{}
	for _, m := range requireLine.FindAllStringSubmatch(string(data), -1) {
		out[m[1]] = m[2]
	}
	return string(data), out
}

// moduleOf returns the longest module path that a package path begins with.
func moduleOf(pkg string, modules map[string]string) string {
	best := ""
	for m := range modules {
		if (pkg == m || strings.HasPrefix(pkg, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

// dependencyRows returns module to version as one section of docs/dependencies.md has it.
func dependencyRows(t *testing.T, headings ...string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, h := range headings {
		_, part, ok := strings.Cut(string(text), "\n"+h+"\n")
		if !ok {
			t.Fatalf("docs/dependencies.md has no heading %q", h)
		}
		part, _, _ = strings.Cut(part, "\n## ")
		for line := range strings.Lines(part) {
			if m := useCell.FindStringSubmatch(line); m != nil {
				rows[m[1]] = m[2]
			}
		}
	}
	return rows
}

func compareDependencies(t *testing.T, rows, want map[string]string) {
	t.Helper()
	for mod, version := range want {
		if rows[mod] != version {
			t.Errorf("docs/dependencies.md has %s %q, the build uses %q", mod, rows[mod], version)
		}
		delete(rows, mod)
	}
	for mod := range rows {
		t.Errorf("docs/dependencies.md has %s, which nothing imports", mod)
	}
}

func TestDependenciesAreExplained(t *testing.T) {
	_, modules := versions(t, "go.mod")
	shipped, tested := map[string]string{}, map[string]string{}
	for _, s := range load(t) {
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			mod := moduleOf(path, modules)
			switch {
			case mod == "":
			case s.test:
				tested[mod] = modules[mod]
			default:
				shipped[mod] = modules[mod]
			}
		}
	}
	for mod := range shipped {
		delete(tested, mod)
	}
	compareDependencies(t, dependencyRows(t, "## In the programs"), shipped)
	compareDependencies(t, dependencyRows(t, "## In tests only"), tested)
}

func TestToolsAreExplained(t *testing.T) {
	text, modules := versions(t, "tools/go.mod")
	_, block, _ := strings.Cut(text, "tool (\n")
	block, _, _ = strings.Cut(block, ")")
	want := map[string]string{}
	for _, m := range toolLine.FindAllStringSubmatch("\n"+block, -1) {
		mod := moduleOf(m[1], modules)
		want[mod] = modules[mod]
	}
	if len(want) == 0 {
		t.Fatal("tools/go.mod names no tools")
	}
	compareDependencies(t, dependencyRows(t, "## Tools"), want)
}
