package openai

import (
	"os"
	"strings"
	"testing"
)

// TestPageHasTheFields compares the table of request fields in docs/api.md with the tables that decode them.
func TestPageHasTheFields(t *testing.T) {
	text, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n## Request fields\n")
	if !ok {
		t.Fatal("docs/api.md has no request fields")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	want := map[string]string{}
	for name := range fields {
		want[name] = "both"
	}
	for e, word := range map[Endpoint]string{Chat: "chat", Completion: "completions"} {
		for name := range endpointFields[e] {
			if want[name] != "" && want[name] != word {
				word := "both"
				want[name] = word
				continue
			}
			want[name] = word
		}
	}
	for line := range strings.Lines(part) {
		cells := strings.Split(line, " | ")
		if len(cells) != 3 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for name := range strings.SplitSeq(strings.TrimPrefix(cells[0], "| "), ", ") {
			name = strings.Trim(name, "`")
			if want[name] != cells[1] {
				t.Errorf("docs/api.md says that %s belongs to %q, the code says %q", name, cells[1], want[name])
			}
			delete(want, name)
		}
	}
	for name, where := range want {
		t.Errorf("docs/api.md lacks %s (%s)", name, where)
	}
}
