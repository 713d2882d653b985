package guided

import (
	"bytes"
	"slices"
)

// Vocab are the tokens of a model in the order of their bytes, so that those that
// begin alike are looked at together.
type Vocab struct {
	size   int
	ids    []int32
	tokens [][]byte
	alike  []int // leading bytes that token i has in common with the one before it
	bytes  [][]byte
}

// NewVocab makes the vocabulary of size ids. bytesOf tells the bytes of a token; none
// for those that are never text, such as special ones: no grammar allows them.
func NewVocab(size int, bytesOf func(id int32) []byte) *Vocab {
	v := &Vocab{size: size, bytes: make([][]byte, size)}
	for id := range int32(size) {
		if b := bytesOf(id); len(b) > 0 {
			v.bytes[id] = b
			v.ids = append(v.ids, id)
		}
	}
	slices.SortFunc(v.ids, func(a, b int32) int { return bytes.Compare(v.bytes[a], v.bytes[b]) })
	var before []byte
	for _, id := range v.ids {
		t, n := v.bytes[id], 0
		for n < min(len(t), len(before)) && t[n] == before[n] {
			n++
		}
		v.tokens, v.alike, before = append(v.tokens, t), append(v.alike, n), t
	}
	return v
}
