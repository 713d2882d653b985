package diskcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"tandem/engine/blockhash"
)

// A file is its header, then the bytes of the block. All numbers are little-endian:
//
//	0   8 bytes  magic
//	8   uint32   version
//	12  uint32   bytes of the header, checksum included
//	16  uint64   bytes of the block
//	24  16 bytes hash of the content
//	40  16 bytes hash of the block that it follows
//	56  uint32   retention priority
//	60  uint32   CRC-32C of the block
//	64  uint32   bytes of the identity
//	68  ...      identity
//	... uint32   CRC-32C of the header before it
const (
	magic       = "TANDEMKV"
	version     = 1
	fixedBytes  = 68
	maxIdentity = 4096
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrCorrupt is wrapped by errors about a file that does not hold what its name
// says, or is gone.
var ErrCorrupt = errors.New("the file does not hold its block")

// header is the first part of a file.
type header struct {
	Entry
	Bytes    uint64 // of the block
	Sum      uint32 // of the block
	Identity string
}

// Entry names the content of a file.
type Entry struct {
	Hash, Parent blockhash.Hash
	Priority     uint8
}

func headerBytes(identity string) int { return fixedBytes + len(identity) + 4 }

// append encodes the header.
func (h *header) append(b []byte) []byte {
	start := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(headerBytes(h.Identity)))
	b = binary.LittleEndian.AppendUint64(b, h.Bytes)
	b = append(b, h.Hash[:]...)
	b = append(b, h.Parent[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Priority))
	b = binary.LittleEndian.AppendUint32(b, h.Sum)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.Identity)))
	b = append(b, h.Identity...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// parseHeader reads what append wrote. Bytes behind the header are ignored.
func parseHeader(b []byte) (h header, err error) {
	le := binary.LittleEndian
	if len(b) < fixedBytes+4 || string(b[:8]) != magic {
		return h, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	if v := le.Uint32(b[8:]); v != version {
		return h, fmt.Errorf("%w: version %d", ErrCorrupt, v)
	}
	size, n := le.Uint32(b[12:]), le.Uint32(b[64:])
	if n > maxIdentity || size != fixedBytes+n+4 || int(size) > len(b) {
		return h, fmt.Errorf("%w: a header of %d bytes with an identity of %d", ErrCorrupt, size, n)
	}
	if le.Uint32(b[size-4:]) != crc32.Checksum(b[:size-4], castagnoli) {
		return h, fmt.Errorf("%w: checksum of the header", ErrCorrupt)
	}
	h.Bytes, h.Sum = le.Uint64(b[16:]), le.Uint32(b[60:])
	copy(h.Hash[:], b[24:])
	copy(h.Parent[:], b[40:])
	p := le.Uint32(b[56:])
	if p > 100 {
		return h, fmt.Errorf("%w: priority %d", ErrCorrupt, p)
	}
	h.Priority, h.Identity = uint8(p), string(b[fixedBytes:fixedBytes+n])
	return h, nil
}
