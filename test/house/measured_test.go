package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tandem/test/bench/page"
)

var (
	makeCommand = regexp.MustCompile("`make ([a-z-]+)")
	makeRule    = regexp.MustCompile(`(?m)^([a-z-]+):[^=].*\n((?:\t.*\n)*)`)
	filledPart  = regexp.MustCompile(`\$\(FILL\) ([a-z-]+)`)
)

// rules are the Makefile's targets with their recipes.
func rules(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range makeRule.FindAllStringSubmatch(string(text), -1) {
		out[m[1]] = m[2]
	}
	return out
}

// TestMeasuredPartsNameTheirCommand looks at what stands between marks in the pages: each part names a target of the Makefile.
func TestMeasuredPartsNameTheirCommand(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	targets := rules(t)
	for _, path := range pages {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		parts, err := page.Parts(string(text))
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		for _, p := range parts {
			m := makeCommand.FindStringSubmatch(p.Text)
			if m == nil {
				t.Errorf("%s: the part %s does not tell which target of make fills it", filepath.Base(path), p.Name)
			} else if _, ok := targets[m[1]]; !ok {
				t.Errorf("%s: the part %s names make %s, which is not there", filepath.Base(path), p.Name, m[1])
			}
		}
	}
}

// TestBenchFillsThePerformancePage compares the parts of docs/performance.md with what make bench fills: the same, in the same
// order, each by the target that it names.
func TestBenchFillsThePerformancePage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	parts, err := page.Parts(string(text))
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(makefile), "\nPARTS   := ")
	list, _, _ = strings.Cut(list, "\n")
	targets := rules(t)
	var want, got []string
	for _, target := range strings.Fields(list) {
		part := filledPart.FindStringSubmatch(targets[target])
		if part == nil {
			t.Fatalf("make bench runs %s, which fills nothing", target)
		}
		want = append(want, part[1]+" by "+target)
		if !strings.Contains(string(text), "\n| `make "+target+"` |") {
			t.Errorf("docs/performance.md does not list make %s", target)
		}
	}
	for _, p := range parts {
		by := "nothing"
		if m := makeCommand.FindStringSubmatch(p.Text); m != nil {
			by = m[1]
		}
		got = append(got, p.Name+" by "+by)
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the page has\n%s\nand make bench fills\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
