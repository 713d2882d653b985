package tinymodel

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tandem/engine/model"
	"tandem/engine/tokenizer"
)

// Models of all kinds open; those with windows have them where they say.
func TestServableKinds(t *testing.T) {
	for name, x := range map[string]struct {
		write   func(string, uint64) error
		windows []int
	}{
		"experts": {WriteServableMoE, nil},
		"mistral": {WriteServableMistral, []int{Window, Window}},
		"gemma":   {WriteServableGemma, []int{Window, 0}},
	} {
		dir := t.TempDir()
		if err := x.write(dir, 7); err != nil {
			t.Fatal(err)
		}
		c, err := model.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.Config.Windows, x.windows) {
			t.Errorf("%s: windows %v", name, c.Config.Windows)
		}
		c.Close()
	}
}

// The servable model opens, its tokenizer gives back what it took, and the same seed gives the same files.
func TestServable(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		if err := WriteServable(dir, 7); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		a, err := os.ReadFile(filepath.Join(dirs[0], name))
		b, _ := os.ReadFile(filepath.Join(dirs[1], name))
		if err != nil || string(a) != string(b) {
			t.Errorf("%s differs, %v", name, err)
		}
	}
	c, err := model.Open(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := c.Tokenizer
	tok, err := tokenizer.FromJSON(data.JSON, data.ConfigJSON)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"one two", "größe €", " \n\x00\x7f"} {
		ids, err := tok.Encode(s, tokenizer.EncodeOptions{AddSpecial: true})
		if got := tok.Decode(ids, false); err != nil || got != s || len(ids) != len(s) {
			t.Errorf("%q: %d ids, %q, %v", s, len(ids), got, err)
		}
	}
	if eos := tok.EOS(); len(eos) != 1 || eos[0] != 0 {
		t.Errorf("end of text %v", eos)
	}
}
