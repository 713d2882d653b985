package metamorphic

import (
	"slices"
	"testing"

	"tandem/engine/runner"
	"tandem/test/tinymodel"
)

func passes(st runner.Stats) bool { return st.WindowFreed > 0 }

// TestWindowsAreAlwaysTheSame does it with a model that gives back what its windows
// have passed, and with one of which only the first layer has a window.
func TestWindowsAreAlwaysTheSame(t *testing.T) {
	names := []string{
		"alone", "mixed", "chunk 16", "block 8", "block 32", "overlap, chunks of 16, reuse", "pauses, reuse and overlap",
		"split, blocks of 32, chunks of 64, reuse", "split, blocks of 8 from 32", "split, blocks of 32 from 8", "split, pauses and overlap",
	}
	var list []variant
	for _, v := range variants {
		if slices.Contains(names, v.name) {
			list = append(list, v)
		}
	}
	if len(list) != len(names) {
		t.Fatalf("%d variants of %d", len(list), len(names))
	}
	list = append(list,
		variant{name: "host", change: below(400, ""), twice: true, happened: onboards},
		variant{name: "host, split", change: below(400, ""), split: true, twice: true, happened: onboards},
	)
	l := load{requests: 16, tokens: 30, prompt: 150, pool: 8192, tight: 320, vocab: 512}
	for _, m := range []struct {
		name  string
		write func(string, uint64) error
		all   bool
	}{{"mistral", tinymodel.WriteServableMistral, true}, {"gemma", tinymodel.WriteServableGemma, false}} {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := m.write(dir, 7); err != nil {
				t.Fatal(err)
			}
			own := slices.Clone(list)
			for i := range own {
				happened := own[i].happened
				own[i].happened = func(st runner.Stats) bool { return passes(st) == m.all && (happened == nil || happened(st)) }
			}
			compare(t, dir, l, own)
		})
	}
}
