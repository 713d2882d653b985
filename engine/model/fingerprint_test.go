package model

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFingerprint(t *testing.T) {
	fingerprint := func(dir string) string {
		t.Helper()
		ck, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		return ck.Fingerprint()
	}
	dir := copyModel(t, "qwen3")
	base := fingerprint(dir)
	if len(base) != 64 || base != fingerprint(copyModel(t, "qwen3")) {
		t.Fatalf("fingerprint %q depends on the path", base)
	}
	seen := map[string]string{base: "nothing"}
	differs := func(change string) {
		t.Helper()
		fp := fingerprint(dir)
		if other, dup := seen[fp]; dup {
			t.Errorf("changing %s gives the fingerprint of changing %s", change, other)
		}
		seen[fp] = change
	}
	edit(t, dir, "config.json", map[string]any{"_name_or_path": "x"})
	if fingerprint(dir) != base {
		t.Error("the name changes the fingerprint")
	}
	write(t, dir, "tokenizer.json", `{}`)
	differs("tokenizer.json")
	write(t, dir, "chat_template.jinja", "J")
	differs("the template")
	edit(t, dir, "config.json", map[string]any{"rms_norm_eps": 1e-4})
	differs("epsilon")
	path := filepath.Join(dir, "model.safetensors")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)-1] ^= 1
	write(t, dir, "model.safetensors", string(data))
	differs("a weight")
}

// Files that were written anew are others, whatever is in them.
func TestIdentityIsOfTheFiles(t *testing.T) {
	dir := copyModel(t, "qwen3")
	identity := func() string {
		t.Helper()
		ck, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer ck.Close()
		return ck.Identity()
	}
	before := identity()
	if again := identity(); again != before {
		t.Errorf("%s, then %s", before, again)
	}
	if err := os.Chtimes(filepath.Join(dir, singleName), time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if identity() == before {
		t.Error("the same after a change")
	}
}

// Released data can be read again; what is not of the files is left alone.
func TestReleaseKeepsTheBytes(t *testing.T) {
	ck, err := Open(copyModel(t, "qwen3"))
	if err != nil {
		t.Fatal(err)
	}
	defer ck.Close()
	for _, h := range ck.Tensors() {
		before, own := bytes.Clone(h.Data), bytes.Clone(h.Data)
		ck.Release(h.Data)
		ck.Release(own)
		if !bytes.Equal(h.Data, before) || !bytes.Equal(own, before) {
			t.Fatalf("%s: other bytes", h.Name)
		}
	}
	ck.Release(nil)
}
