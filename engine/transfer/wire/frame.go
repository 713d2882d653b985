package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// castagnoli is CRC-32C, which amd64 and arm64 compute in hardware.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A data frame is a header and the bytes of one block, all little-endian:
//
//	seq u32 | block u32 | layer from u16 | layer to u16 | bytes u32 | crc32c u32
//
// block counts from the start of the prompt. The checksum covers the first 16
// bytes of the header and the payload.
type frameHeader struct {
	seq, block         uint32
	layerFrom, layerTo uint16
	bytes              uint32
	crc                uint32
}

const frameHeaderBytes = 20

func (h *frameHeader) put(b *[frameHeaderBytes]byte) {
	binary.LittleEndian.PutUint32(b[0:], h.seq)
	binary.LittleEndian.PutUint32(b[4:], h.block)
	binary.LittleEndian.PutUint16(b[8:], h.layerFrom)
	binary.LittleEndian.PutUint16(b[10:], h.layerTo)
	binary.LittleEndian.PutUint32(b[12:], h.bytes)
	binary.LittleEndian.PutUint32(b[16:], h.crc)
}

func parseFrameHeader(b *[frameHeaderBytes]byte) frameHeader {
	return frameHeader{
		seq:       binary.LittleEndian.Uint32(b[0:]),
		block:     binary.LittleEndian.Uint32(b[4:]),
		layerFrom: binary.LittleEndian.Uint16(b[8:]),
		layerTo:   binary.LittleEndian.Uint16(b[10:]),
		bytes:     binary.LittleEndian.Uint32(b[12:]),
		crc:       binary.LittleEndian.Uint32(b[16:]),
	}
}

// seal writes the header of a payload with its checksum and returns the latter.
func (h *frameHeader) seal(b *[frameHeaderBytes]byte, payload []byte) uint32 {
	h.crc = 0
	h.bytes = uint32(len(payload))
	h.put(b)
	h.crc = frameSum(b, payload)
	h.put(b)
	return h.crc
}

func frameSum(b *[frameHeaderBytes]byte, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:16], castagnoli), castagnoli, payload)
}

// addFrameSum extends the FIN checksum of a pull by one frame's.
func addFrameSum(sum, frame uint32) uint32 {
	return crc32.Update(sum, castagnoli, binary.LittleEndian.AppendUint32(nil, frame))
}

// readFrame reads the frame that must come next into payload, which has the
// exact size of the block. Nothing the peer says makes it allocate or write
// elsewhere.
func readFrame(r io.Reader, want frameHeader, payload []byte) (uint32, error) {
	var b [frameHeaderBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, fmt.Errorf("header of frame %d: %w", want.seq, err)
	}
	h := parseFrameHeader(&b)
	want.bytes, want.crc = uint32(len(payload)), h.crc
	if h != want {
		return 0, fmt.Errorf("frame %d: %w: got header %+v, want %+v", want.seq, errCorrupt, h, want)
	}
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, fmt.Errorf("payload of frame %d: %w", want.seq, err)
	}
	if frameSum(&b, payload) != h.crc {
		return 0, fmt.Errorf("frame %d, block %d: %w: checksum differs", want.seq, want.block, errCorrupt)
	}
	return h.crc, nil
}

// errCorrupt marks bytes that are not what the peer was asked for.
var errCorrupt = errors.New("corrupt data")

// pullRequest is what a puller writes to start the byte path of a transfer:
//
//	magic "TPL1" | token 16 | first block u32 | blocks u32 |
//	layer from u16 | layer to u16 | head runs u16 | {from u16, to u16}...
//
// Blocks count from the start of the prompt, layers and heads are half-open
// ranges. No head runs means all heads.
type pullRequest struct {
	token              token
	first, blocks      uint32
	layerFrom, layerTo uint16
	heads              [][2]uint16
}

const (
	pullMagic      = "TPL1"
	pullFixedBytes = 4 + tokenBytes + 14
	maxHeadRuns    = 256
)

func (p *pullRequest) encode() []byte {
	b := make([]byte, 0, pullFixedBytes+4*len(p.heads))
	b = append(b, pullMagic...)
	b = append(b, p.token[:]...)
	b = binary.LittleEndian.AppendUint32(b, p.first)
	b = binary.LittleEndian.AppendUint32(b, p.blocks)
	b = binary.LittleEndian.AppendUint16(b, p.layerFrom)
	b = binary.LittleEndian.AppendUint16(b, p.layerTo)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.heads)))
	for _, run := range p.heads {
		b = binary.LittleEndian.AppendUint16(b, run[0])
		b = binary.LittleEndian.AppendUint16(b, run[1])
	}
	return b
}

// readPull reads one pull request. io.EOF means the peer closed an unused
// connection.
func readPull(r io.Reader) (*pullRequest, error) {
	var b [pullFixedBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	if string(b[:4]) != pullMagic {
		return nil, fmt.Errorf("pull request: %w: bad magic %q", errCorrupt, b[:4])
	}
	p := &pullRequest{token: token(b[4 : 4+tokenBytes])}
	rest := b[4+tokenBytes:]
	p.first = binary.LittleEndian.Uint32(rest[0:])
	p.blocks = binary.LittleEndian.Uint32(rest[4:])
	p.layerFrom = binary.LittleEndian.Uint16(rest[8:])
	p.layerTo = binary.LittleEndian.Uint16(rest[10:])
	runs := binary.LittleEndian.Uint16(rest[12:])
	if runs > maxHeadRuns || p.layerFrom >= p.layerTo || p.blocks > maxBlocksInPull || p.first > maxBlocksInPull {
		return nil, fmt.Errorf("pull request: %w: %d head runs, layers %d..%d, blocks %d+%d",
			errCorrupt, runs, p.layerFrom, p.layerTo, p.first, p.blocks)
	}
	for range runs {
		var run [4]byte
		if _, err := io.ReadFull(r, run[:]); err != nil {
			return nil, fmt.Errorf("pull request: head runs: %w", err)
		}
		from, to := binary.LittleEndian.Uint16(run[:]), binary.LittleEndian.Uint16(run[2:])
		if from >= to {
			return nil, fmt.Errorf("pull request: %w: head run %d..%d", errCorrupt, from, to)
		}
		p.heads = append(p.heads, [2]uint16{from, to})
	}
	return p, nil
}
