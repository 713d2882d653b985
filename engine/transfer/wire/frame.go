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

// A data frame is a header, the bytes of one block and their checksum, all
// little-endian:
//
//	seq u32 | block u32 | layer from u16 | layer to u16 | bytes u32 | payload | crc32c u32
//
// block counts from the start of the prompt. The checksum covers header and
// payload and comes last, so that either side touches each piece of the payload
// once, while it is in the cache. It is 0 where the PULL wanted none.
type frameHeader struct {
	seq, block         uint32
	layerFrom, layerTo uint16
	bytes              uint32
}

const (
	frameHeaderBytes = 16
	frameSumBytes    = 4
	// sumChunk is how much of a payload is moved and summed at once.
	sumChunk = 256 << 10
)

func (h *frameHeader) put(b *[frameHeaderBytes]byte) {
	binary.LittleEndian.PutUint32(b[0:], h.seq)
	binary.LittleEndian.PutUint32(b[4:], h.block)
	binary.LittleEndian.PutUint16(b[8:], h.layerFrom)
	binary.LittleEndian.PutUint16(b[10:], h.layerTo)
	binary.LittleEndian.PutUint32(b[12:], h.bytes)
}

func parseFrameHeader(b *[frameHeaderBytes]byte) frameHeader {
	return frameHeader{
		seq:       binary.LittleEndian.Uint32(b[0:]),
		block:     binary.LittleEndian.Uint32(b[4:]),
		layerFrom: binary.LittleEndian.Uint16(b[8:]),
		layerTo:   binary.LittleEndian.Uint16(b[10:]),
		bytes:     binary.LittleEndian.Uint32(b[12:]),
	}
}

func addSum(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }

// frameReader reads the frames of one connection. Nothing the peer says makes it
// allocate, or write elsewhere than where it is told to.
type frameReader struct {
	in    io.Reader
	plain bool // without checksums
	// tail is a frame's checksum and the header of the next one, which are read
	// together; header says that the latter is there.
	tail   [frameSumBytes + frameHeaderBytes]byte
	header bool
	broken error // that came with the header
}

// next reads the frame that must come next into payload, which has the exact size
// of the block. more says that another one follows it without being asked for.
func (r *frameReader) next(want frameHeader, payload []byte, more bool) error {
	head := (*[frameHeaderBytes]byte)(r.tail[frameSumBytes:])
	err := r.broken
	if !r.header && err == nil {
		_, err = io.ReadFull(r.in, head[:])
	}
	if err != nil {
		return fmt.Errorf("header of frame %d: %w", want.seq, err)
	}
	r.header = false
	want.bytes = uint32(len(payload))
	if h := parseFrameHeader(head); h != want {
		return fmt.Errorf("frame %d: %w: got header %+v, want %+v", want.seq, errCorrupt, h, want)
	}
	sum, err := r.payload(addSum(0, head[:]), payload)
	if err != nil {
		return fmt.Errorf("payload of frame %d: %w", want.seq, err)
	}
	end := r.tail[:frameSumBytes]
	if more {
		end = r.tail[:]
	}
	n, err := io.ReadFull(r.in, end)
	if n < frameSumBytes {
		return fmt.Errorf("checksum of frame %d: %w", want.seq, err)
	}
	r.header, r.broken = more, err
	if got := binary.LittleEndian.Uint32(end); !r.plain && got != sum || r.plain && got != 0 {
		return fmt.Errorf("frame %d, block %d: %w: checksum differs", want.seq, want.block, errCorrupt)
	}
	return nil
}

// payload reads the bytes of a block and adds them to the checksum.
func (r *frameReader) payload(sum uint32, b []byte) (uint32, error) {
	for len(b) > 0 {
		n, err := r.in.Read(b[:min(len(b), r.chunk())])
		if !r.plain {
			sum = addSum(sum, b[:n])
		}
		if b = b[n:]; err != nil && len(b) > 0 {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
	}
	return sum, nil
}

func (r *frameReader) chunk() int {
	if r.plain {
		return readChunk
	}
	return sumChunk
}

// errCorrupt marks bytes that are not what the peer was asked for.
var errCorrupt = errors.New("corrupt data")

// pullRequest is what a puller writes to start the byte path of a transfer:
//
//	magic "TPL2" | token 16 | first block u32 | blocks u32 |
//	layer from u16 | layer to u16 | plain u16 | head runs u16 | {from u16, to u16}...
//
// plain is 1 for frames without checksums: between processes of one host they
// would guard a copy in memory. Blocks count from the start of the prompt, layers and heads are half-open
// ranges. No head runs means all heads.
type pullRequest struct {
	token              token
	first, blocks      uint32
	layerFrom, layerTo uint16
	plain              bool
	heads              [][2]uint16
}

// order turns a request for blocks into one for the next n of them.
func (p *pullRequest) order(n int) {
	p.first += p.blocks
	p.blocks = uint32(n)
}

// frame is the header of a frame that answers the request, without its payload's.
func (p *pullRequest) frame(seq uint32) frameHeader {
	return frameHeader{seq: seq, block: p.first + seq, layerFrom: p.layerFrom, layerTo: p.layerTo}
}

const (
	pullMagic      = "TPL2"
	pullFixedBytes = 4 + tokenBytes + 16
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
	b = binary.LittleEndian.AppendUint16(b, flag(p.plain))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(p.heads)))
	for _, run := range p.heads {
		b = binary.LittleEndian.AppendUint16(b, run[0])
		b = binary.LittleEndian.AppendUint16(b, run[1])
	}
	return b
}

func flag(b bool) uint16 {
	if b {
		return 1
	}
	return 0
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
	plain := binary.LittleEndian.Uint16(rest[12:])
	p.plain = plain == 1
	runs := binary.LittleEndian.Uint16(rest[14:])
	if plain > 1 || runs > maxHeadRuns || p.layerFrom >= p.layerTo || p.blocks > maxBlocksInPull || p.first > maxBlocksInPull {
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
