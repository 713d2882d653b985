package main

import (
	"slices"
	"testing"

	"tandem/engine/tensor"
)

func TestByLayer(t *testing.T) {
	var all []tensor.Host
	for _, name := range []string{"token_embd.weight", "blk.0.b", "blk.10.a", "blk.2.a", "blk.0.a", "a.weight"} {
		all = append(all, tensor.Host{Name: name})
	}
	var got []string
	for _, h := range byLayer(all) {
		got = append(got, h.Name)
	}
	if want := []string{"a.weight", "blk.0.a", "blk.0.b", "blk.2.a", "blk.10.a", "token_embd.weight"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if all[1].Name != "blk.0.b" {
		t.Error("the checkpoint's own list was sorted")
	}
}
