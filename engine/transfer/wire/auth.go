package wire

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"tandem/engine/transfer"
)

// token authorises the byte path of one accepted pull. It is drawn at random,
// sent only to the puller and void when the pull ends.
type token [tokenBytes]byte

const tokenBytes = 16

func newToken() (t token) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

// Purposes of a MAC. A MAC made for one message is worthless in another.
const (
	purposeAttach    = "tandem/transfer/attach"
	purposeKeepAlive = "tandem/transfer/keepalive"
	purposeCancel    = "tandem/transfer/cancel"
)

// sign returns the HMAC-SHA-256 over purpose, id and incarnation, nil without a
// key.
func sign(key []byte, purpose string, id transfer.ID, incarnation string) []byte {
	if len(key) == 0 {
		return nil
	}
	m := hmac.New(sha256.New, key)
	m.Write(append([]byte(purpose), 0))
	m.Write(binary.LittleEndian.AppendUint64(nil, uint64(id)))
	m.Write([]byte(incarnation))
	return m.Sum(nil)
}

// signed reports whether mac is right; any is without a key.
func signed(key []byte, purpose string, id transfer.ID, incarnation string, mac []byte) bool {
	return len(key) == 0 || hmac.Equal(mac, sign(key, purpose, id, incarnation))
}
