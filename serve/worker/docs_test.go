package worker

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestPageHasTheErrors compares the table of errors in docs/api.md with the statuses of engine errors.
func TestPageHasTheErrors(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n## Errors\n")
	if !ok {
		t.Fatal("docs/api.md has no errors")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	for code, status := range statuses {
		if row := "\n| `" + string(code) + "` | " + strconv.Itoa(status) + " | "; !strings.Contains(part, row) {
			t.Errorf("docs/api.md lacks the row%s", row)
		}
	}
}
