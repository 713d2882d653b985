package model

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash"
	"maps"
	"slices"
	"strings"

	"tandem/engine/tensor"
)

// sampleBytes is how much of a tensor's start, middle and end is hashed: enough
// to tell models apart, little enough not to read whole files at start.
const sampleBytes = 4096

// Fingerprint returns the SHA-256, in hex, by which two workers know that they
// run the same model: architecture, tokenizer, chat template, and of each
// tensor its name, type, shape and three samples. Neither the path nor the
// cache layout is part of it.
func (c *Checkpoint) Fingerprint() string {
	c.once.Do(func() { c.fingerprint = c.hash() })
	return c.fingerprint
}

func (c *Checkpoint) hash() string {
	d := digest{sha256.New()}
	config := c.Config
	config.Name = "" // a label; renaming a model does not change it
	d.json(config)
	d.text("f32")
	d.json(c.f32)
	d.tokenizer(&c.Tokenizer)
	tensors := slices.Clone(c.tensors)
	slices.SortFunc(tensors, func(a, b tensor.Host) int { return strings.Compare(a.Name, b.Name) })
	d.number(len(tensors))
	for _, t := range tensors {
		d.text(t.Name)
		d.text(t.DType.String())
		d.json(t.Shape)
		for _, s := range samples(t.Data) {
			d.bytes(s)
		}
	}
	return hex.EncodeToString(d.Sum(nil))
}

// Identity tells these very files from others that have the same Fingerprint: it
// has their sizes and the times when they were changed, too.
func (c *Checkpoint) Identity() string {
	d := digest{sha256.New()}
	d.text(c.Fingerprint())
	for _, m := range c.maps {
		d.number(len(m.data))
		d.number(int(m.mod.UnixNano()))
	}
	return hex.EncodeToString(d.Sum(nil))
}

// Release gives back memory that tensor data takes and that is not needed now. It
// may be used afterwards, which reads it again. Data that is not of the mapped
// files is left alone.
func (c *Checkpoint) Release(data []byte) {
	for _, m := range c.maps {
		m.release(data)
	}
}

func samples(data []byte) [][]byte {
	n := min(sampleBytes, len(data))
	mid := (len(data) - n) / 2
	return [][]byte{data[:n], data[mid : mid+n], data[len(data)-n:]}
}

// digest hashes fields with their lengths, so that no two lists of fields give
// the same bytes.
type digest struct{ hash.Hash }

func (d digest) number(n int) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	d.Write(b[:])
}

func (d digest) bytes(b []byte) {
	d.number(len(b))
	d.Write(b)
}

func (d digest) text(s string) { d.bytes([]byte(s)) }

func (d digest) json(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("fingerprint: " + err.Error()) // only finite numbers and strings are hashed
	}
	d.bytes(b)
}

func (d digest) tokenizer(t *TokenizerData) {
	for _, s := range []string{t.Model, t.Pre, t.ChatTemplate} {
		d.text(s)
	}
	for _, list := range [][]string{t.Tokens, t.Merges} {
		d.number(len(list))
		for _, s := range list {
			d.text(s)
		}
	}
	d.json(t.Types)
	d.json([]any{t.UNK, t.PAD, t.BOS, t.EOS, t.EOT, t.EOM, t.AddBOS, t.AddEOS, t.AddSpacePrefix})
	d.number(len(t.Scores))
	for _, s := range t.Scores {
		binary.Write(d, binary.LittleEndian, s) //nolint:errcheck // a hash cannot fail
	}
	for _, b := range [][]byte{t.JSON, t.ConfigJSON, t.SpecialTokens} {
		d.bytes(b)
	}
	d.number(len(t.ChatTemplates))
	for _, name := range slices.Sorted(maps.Keys(t.ChatTemplates)) {
		d.text(name)
		d.text(t.ChatTemplates[name])
	}
}
