package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName = regexp.MustCompile("`((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)`")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z][A-Za-z0-9]*)\(`)
)

// TestNamedTestsExist looks for every test that docs/testing.md names, and for the acceptance scenarios, each of which has a row.
func TestNamedTestsExist(t *testing.T) {
	have := map[string]bool{}
	for _, s := range load(t) {
		if !s.test {
			continue
		}
		for _, m := range testFunc.FindAllStringSubmatch(s.text, -1) {
			have[m[1]] = true
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "testing.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range testName.FindAllStringSubmatch(string(page), -1) {
		if !have[m[1]] {
			t.Errorf("docs/testing.md names %s, which is not there", m[1])
		}
	}
	for n := 1; n <= 48; n++ {
		if row := fmt.Sprintf("\n| `TestScenario%02d` |", n); strings.Count(string(page), row) != 1 {
			t.Errorf("docs/testing.md has not one row of scenario %d", n)
		}
	}
}
