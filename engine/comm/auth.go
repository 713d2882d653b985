package comm

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// Purposes of a MAC. A MAC made for one message is worthless in another.
const (
	purposeJoin    = "tandem/comm/join"
	purposeWelcome = "tandem/comm/welcome"
)

// secret is 16 random bytes: a nonce, or the token of a byte path.
func secret() []byte {
	b := make([]byte, tokenBytes)
	_, _ = rand.Read(b) // never fails
	return b
}

// sign returns the HMAC-SHA-256 over purpose, both nonces and the ranks, nil
// without a key. The nonces make it worthless on another stream.
func sign(key []byte, purpose string, root, leaf []byte, ranks Span) []byte {
	if len(key) == 0 {
		return nil
	}
	m := hmac.New(sha256.New, key)
	for _, part := range [][]byte{[]byte(purpose), root, leaf} {
		m.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(part))))
		m.Write(part)
	}
	m.Write(binary.LittleEndian.AppendUint64(nil, uint64(ranks.First)))
	m.Write(binary.LittleEndian.AppendUint64(nil, uint64(ranks.Last)))
	return m.Sum(nil)
}

// signed reports whether mac is right; any is without a key.
func signed(key []byte, purpose string, root, leaf []byte, ranks Span, mac []byte) bool {
	return len(key) == 0 || hmac.Equal(mac, sign(key, purpose, root, leaf, ranks))
}
