package chat

import (
	"path/filepath"
	"testing"

	"github.com/ardanlabs/jinja"
)

func TestWhitespaceEqualsReference(t *testing.T) {
	var cases []struct{ Source, Out string }
	readJSON(t, filepath.Join("testdata", "whitespace.json"), &cases)
	if len(cases) < 500 {
		t.Fatalf("only %d templates", len(cases))
	}
	bad := 0
	for i, c := range cases {
		tmpl, err := compile(c.Source)
		if err != nil {
			t.Errorf("template %d %q: %v", i, c.Source, err)
			continue
		}
		got, err := tmpl.RenderValues(map[string]jinja.Value{"x": jinja.NewString("X"), "n": jinja.NewInt(-3)})
		if err != nil || got != c.Out {
			if bad++; bad < 15 {
				t.Errorf("template %d %q:\n got %q, %v\nwant %q", i, c.Source, got, err, c.Out)
			}
		}
	}
	t.Logf("%d of %d differ", bad, len(cases))
}
