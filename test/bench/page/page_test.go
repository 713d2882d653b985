package page

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"tandem/test/bench/result"
)

func TestReplace(t *testing.T) {
	const marks = "# A\n<!-- a -->\nold\n<!-- end of a -->\ntext\n<!-- b-c -->\n<!-- end of b-c -->\n"
	for _, c := range []struct{ name, page, part, text, want, wrong string }{
		{"the old text goes", marks, "a", "\nnew\n\n", "# A\n<!-- a -->\nnew\n<!-- end of a -->\ntext\n<!-- b-c -->\n<!-- end of b-c -->\n", ""},
		{"an empty part", marks, "b-c", "| 1 |", "# A\n<!-- a -->\nold\n<!-- end of a -->\ntext\n<!-- b-c -->\n| 1 |\n<!-- end of b-c -->\n", ""},
		{"no such part", marks, "b", "x", "", `"<!-- b -->"`},
		{"no end", "<!-- a -->\n", "a", "x", "", `"<!-- end of a -->"`},
		{"end before begin", "<!-- end of a -->\n<!-- a -->\n", "a", "x", "", "no place for a"},
		{"twice", marks + marks, "a", "x", "", "once"},
		{"within a line", "see <!-- a --> and <!-- end of a -->", "a", "x", "", "no place for a"},
	} {
		got, err := Replace(c.page, c.part, c.text)
		if got != c.want || (err == nil) != (c.wrong == "") || (err != nil && !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

// What was put in is what is found, wherever it stands and however often it is put there; the rest stays.
func TestReplacedPartsAreFound(t *testing.T) {
	words := rapid.StringMatching(`[a-z |\n<!>-]{0,20}`).Filter(func(s string) bool { return !strings.Contains(s, "<!--") })
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,6}(-[a-z]{1,6})?`), 1, 4, rapid.ID).Draw(t, "names")
		var page strings.Builder
		for _, n := range names {
			page.WriteString(words.Draw(t, "between") + "\n" + begin(n) + words.Draw(t, "old") + "\n" + end(n) + "\n")
		}
		before, err := Parts(page.String())
		if err != nil {
			t.Fatal(err)
		}
		i := rapid.IntRange(0, len(names)-1).Draw(t, "which")
		text := words.Draw(t, "new")
		once, err := Replace(page.String(), names[i], text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Replace(once, names[i], text)
		if err != nil || again != once {
			t.Fatalf("%q, then %q, %v", once, again, err)
		}
		after, err := Parts(once)
		if before[i].Text = strings.TrimSpace(text); err != nil || !slices.Equal(before, after) {
			t.Fatalf("%q, want %q, %v", after, before, err)
		}
	})
}

func TestPartsAreWhole(t *testing.T) {
	for _, c := range []struct{ page, wrong string }{
		{"<!-- a -->\n<!-- b -->\n", "b begins, and a has not ended"},
		{"<!-- a -->\n<!-- end of b -->\n", "b ends, and did not begin"},
		{"<!-- end of a -->\n", "a ends, and did not begin"},
		{"text\n<!-- a -->\n", "a does not end"},
	} {
		if _, err := Parts(c.page); err == nil || err.Error() != c.wrong {
			t.Errorf("%q: %v, want %q", c.page, err, c.wrong)
		}
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := Write(path, "a", "x"); err == nil {
		t.Error("a page that is not there was written")
	}
	if err := os.WriteFile(path, []byte("<!-- a -->\n<!-- end of a -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, "b", "x"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if err := Write(path, "a", "x"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(path); string(text) != "<!-- a -->\nx\n<!-- end of a -->\n" {
		t.Errorf("%q %v", text, err)
	}
}

func TestMachine(t *testing.T) {
	got := Machine(result.Hardware{CPU: "Chip", OS: "linux/amd64", Load: "1 2 3"}, 4)
	if !strings.HasPrefix(got, "Chip, 4 threads, linux/amd64; load average 1 2 3 before, ") {
		t.Error(got)
	}
}

func TestVersion(t *testing.T) {
	dir := t.TempDir()
	if got := Version(filepath.Join(dir, "bin", "a-b")); got != "" {
		t.Errorf("%q of what is not there", got)
	}
	if err := os.MkdirAll(filepath.Join(dir, "lib", "python3.11", "site-packages", "a_b-1.2.3.dist-info"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := Version(filepath.Join(dir, "bin", "a-b")); got != "1.2.3" {
		t.Errorf("%q", got)
	}
}

func TestTable(t *testing.T) {
	got := Table([]string{"", "µs"}, []string{"one", "10 µs", "more"}, []string{})
	const want = "|     | µs    |      |\n|-----|-------|------|\n| one | 10 µs | more |\n|     |       |      |\n"
	if got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}
