// Package blockhash computes the hash chain that names KV blocks: one root per
// namespace, adapter and salt, then one link per full block of tokens. Engine
// and frontend use the same code, so a router can predict what a worker holds.
package blockhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is the identity of a block: the first 16 bytes of SHA-256 over the
// chain so far and the block's tokens.
type Hash [16]byte

// Wire returns the block's id on the wire, the first 8 bytes little-endian.
func (h Hash) Wire() uint64 { return binary.LittleEndian.Uint64(h[:8]) }

// Root returns the start of the chain for tokens of one namespace (served model
// and revision), adapter (name@generation) and client salt. Empty = absent.
func Root(namespace, lora, salt string) Hash {
	b := append(make([]byte, 0, 64), "KVR1"...)
	for i, s := range []string{namespace, lora, salt} {
		if s == "" {
			continue
		}
		b = append(b, byte(i+1))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return sum(b)
}

// Next returns the hash of the block that holds tokens after the chain parent.
func Next(parent Hash, tokens []int32) Hash {
	var stack [4 + 16 + 4 + 4*64]byte
	b := append(stack[:0], "KVB1"...)
	b = append(b, parent[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return sum(b)
}

func sum(b []byte) (h Hash) {
	s := sha256.Sum256(b)
	copy(h[:], s[:])
	return h
}
