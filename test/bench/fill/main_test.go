package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const empty = "above\n<!-- a -->\nold\n<!-- end of a -->\nbelow\n"

func TestFill(t *testing.T) {
	for _, c := range []struct{ name, script, part, begins, wrong string }{
		{"a table", "echo progress >&2; echo; echo '| 1 |'", "a", "| 1 |\n\n`make bench-a` took ", ""},
		{"figures miss", "echo '| 1 |'; exit 1", "a", "| 1 |\n\n`make bench-a` took ", "make bench-a: exit status 1"},
		{"nothing", "exit 0", "a", "old", "printed no table; part a stays"},
		{"help", "echo 'Usage: a | b'", "a", "old", "printed no table; part a stays"},
		{"failed", "exit 3", "a", "old", "exit status 3; part a stays"},
		{"no such part", "echo '| 1 |'", "b", "old", "no place for b"},
	} {
		path := filepath.Join(t.TempDir(), "page.md")
		if err := os.WriteFile(path, []byte(empty), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		err := fill(t.Context(), options{path, c.part, "make bench-a"}, []string{"sh", "-c", c.script}, &out, io.Discard)
		if (err == nil) != (c.wrong == "") || (err != nil && !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(text), "above\n<!-- a -->\n"+c.begins) || !strings.HasSuffix(string(text), "\n<!-- end of a -->\nbelow\n") {
			t.Errorf("%s: %q, %v", c.name, text, err)
		}
		if strings.Contains(string(text)+out.String(), "progress") {
			t.Errorf("%s: progress is in the table", c.name)
		}
	}
}

func TestFillWithoutPage(t *testing.T) {
	var out strings.Builder
	if err := fill(t.Context(), options{part: "a", command: "make bench-a"}, []string{"echo", "| 1 |"}, &out, io.Discard); err != nil || !strings.Contains(out.String(), "| 1 |\n\n`make bench-a`") {
		t.Errorf("%q %v", out.String(), err)
	}
	if err := fill(t.Context(), options{part: "a"}, []string{"echo"}, &out, io.Discard); err == nil {
		t.Error("no command, and no error")
	}
}
