package house

import (
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// arrows reads the fenced block of ARCHITECTURE.md that lists allowed imports.
func arrows(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(text), "```arrows\n")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no block marked ```arrows")
	}
	block, _, _ = strings.Cut(block, "```")
	rules := make(map[string][]string)
	for line := range strings.Lines(block) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			rules[strings.TrimSpace(left)] = strings.Fields(right)
		}
	}
	return rules
}

// rulesFor returns the patterns that pkg may import: those of its own line, else
// those of the longest pattern that matches it.
func rulesFor(rules map[string][]string, pkg string) ([]string, bool) {
	if r, ok := rules[pkg]; ok {
		return r, true
	}
	var keys []string
	for k := range rules {
		if strings.Contains(k, "*") && matches(k, pkg) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil, false
	}
	sort.Slice(keys, func(i, j int) bool { return len(keys[i]) > len(keys[j]) })
	return rules[keys[0]], true
}

// matches compares pkg with a pattern in which * stands for any text.
func matches(pattern, pkg string) bool {
	head, tail, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == pkg
	}
	if !strings.HasPrefix(pkg, head) {
		return false
	}
	for i := len(head); i <= len(pkg); i++ {
		if matches(tail, pkg[i:]) {
			return true
		}
	}
	return false
}

func TestImportsFollowTheArrows(t *testing.T) {
	rules := arrows(t)
	for _, s := range load(t) {
		if s.test {
			continue
		}
		allowed, known := rulesFor(rules, s.pkg)
		if !known {
			t.Errorf("%s: package %s has no line among the arrows of ARCHITECTURE.md", s.path, s.pkg)
			continue
		}
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			to, ours := strings.CutPrefix(path, "tandem/")
			if !ours || to == s.pkg {
				continue
			}
			ok := false
			for _, pat := range allowed {
				ok = ok || matches(pat, to)
			}
			if !ok {
				t.Errorf("%s: %s must not import %s", s.path, s.pkg, to)
			}
		}
	}
}

// TestForeignPackagesStayInTheirPlace keeps libraries that shape code out of
// packages that must not know them.
func TestForeignPackagesStayInTheirPlace(t *testing.T) {
	places := map[string][]string{
		"github.com/spf13/viper":              {"serve/config"},
		"github.com/prometheus/client_golang": {"serve/metrics", "cmd/*"},
		"google.golang.org/grpc":              {"engine/transfer/*", "engine/comm*", "serve/discovery/etcd"},
		"go.etcd.io/etcd":                     {"serve/discovery/etcd"},
		"gorgonia.org/cu":                     {"engine/cuda/gpu"},
		"C":                                   {"kernels/*", "engine/cuda*", "engine/comm"},
	}
	for _, s := range load(t) {
		if s.test {
			continue
		}
		for _, imp := range s.file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			for lib, in := range places {
				if path != lib && !strings.HasPrefix(path, lib+"/") {
					continue
				}
				ok := false
				for _, pat := range in {
					ok = ok || matches(pat, s.pkg)
				}
				if !ok {
					t.Errorf("%s: %s belongs only in %s", s.path, lib, strings.Join(in, ", "))
				}
			}
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"engine/cpu*", "engine/cpu", true},
		{"engine/cpu*", "engine/cpu/x", true},
		{"engine/*pb", "engine/transfer/transferpb", true},
		{"engine/*pb", "engine/transfer", false},
		{"engine/request", "engine/requests", false},
	} {
		if got := matches(tc.pattern, tc.pkg); got != tc.want {
			t.Errorf("matches(%q, %q) = %v", tc.pattern, tc.pkg, got)
		}
	}
}
