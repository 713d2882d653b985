package cpu

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	kernels "tandem/kernels/cpu"
)

// Saved says where a Store keeps its packed matrices between starts. A file of
// them is mapped instead of packing again; processes that map the same file have
// its pages in memory once.
type Saved struct {
	// Path of the file; its folder is made when needed. Processes may share it.
	Path string
	// Source is the path of the model. Files of models that are gone are removed.
	Source string
	// Identity of the model's bytes and of what is loaded of them: a file of another
	// one is stale and gets replaced.
	Identity string
	// MinBytes is the size below which weights are packed faster than it is worth
	// to keep them.
	MinBytes int
	// Logger, if set, is told what was mapped, written, or could not be.
	Logger *slog.Logger
}

func (c *Saved) log() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// The file is a head of savedHead bytes, the matrices, each on a boundary of
// savedAlign, and an index in JSON. The head is magic, version and checksum of the
// index, both uint32, then its offset and its length, both uint64, little-endian.
const (
	savedMagic   = "TNDMPACK"
	savedVersion = 1
	savedHead    = 4096
	savedAlign   = 64
	savedPiece   = 16 << 20 // bytes that have a checksum
	maxIndex     = 256 << 20
)

type savedIndex struct {
	Identity string
	Source   string
	Layout   int // kernels.Layout
	Entries  []savedEntry
}

// savedEntry is a packed matrix.
type savedEntry struct {
	Key           string // as in Store.entries
	DTypes, Rows  []int  // of its parts
	Cols          int
	GateUp        bool
	Offset, Bytes int64
	Sums          []uint32 // of pieces of savedPiece bytes
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errStale   = errors.New("it is of another model, or of another version of the program")
)

// readIndex reads and checks the index of a file of size bytes; only the
// matrices' own checksums are not looked at.
func readIndex(f io.ReaderAt, size int64) (*savedIndex, error) {
	head := make([]byte, 32)
	if _, err := f.ReadAt(head, 0); err != nil || size < savedHead {
		return nil, errors.New("it is too short")
	}
	le := binary.LittleEndian
	at, n := le.Uint64(head[16:]), le.Uint64(head[24:])
	switch {
	case string(head[:8]) != savedMagic:
		return nil, errors.New("it does not begin as such a file does")
	case le.Uint32(head[8:]) != savedVersion:
		return nil, errStale
	case n > maxIndex || at > uint64(size) || n != uint64(size)-at || at < savedHead:
		return nil, fmt.Errorf("its index of %d bytes at %d is not the end of %d bytes", n, at, size)
	}
	raw := make([]byte, n)
	if _, err := f.ReadAt(raw, int64(at)); err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	if crc32.Checksum(raw, castagnoli) != le.Uint32(head[12:]) {
		return nil, errors.New("the checksum of its index is wrong")
	}
	x := new(savedIndex)
	if err := json.Unmarshal(raw, x); err != nil {
		return nil, fmt.Errorf("its index: %w", err)
	}
	for i := range x.Entries {
		if err := x.Entries[i].check(int64(at)); err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
	}
	return x, nil
}

// check checks the place of an entry against the end of the matrices.
func (e *savedEntry) check(end int64) error {
	if e.Offset < savedHead || e.Offset%savedAlign != 0 || e.Bytes < 1 || e.Bytes > end-savedHead || e.Offset > end-e.Bytes {
		return fmt.Errorf("%d bytes at %d", e.Bytes, e.Offset)
	}
	if want := (e.Bytes + savedPiece - 1) / savedPiece; int64(len(e.Sums)) != want || len(e.DTypes) != len(e.Rows) {
		return fmt.Errorf("%d checksums, must be %d, of %d and %d parts", len(e.Sums), want, len(e.DTypes), len(e.Rows))
	}
	return nil
}

// savedFile is a mapped file whose checksums are right.
type savedFile struct {
	region  kernels.Region
	entries map[string]*savedEntry
}

// openSaved maps the file that c names. The error is errStale if there is a good
// one of something else.
func openSaved(c *Saved) (*savedFile, error) {
	f, err := os.Open(c.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping outlives the descriptor
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	x, err := readIndex(f, info.Size())
	switch {
	case err != nil:
		return nil, err
	case x.Identity != c.Identity || x.Layout != kernels.Layout:
		return nil, errStale
	case len(x.Entries) == 0:
		return nil, errors.New("it is empty")
	}
	s := &savedFile{entries: map[string]*savedEntry{}}
	if s.region, err = kernels.MapFile(f, int(info.Size())); err != nil {
		return nil, err
	}
	if err := s.verify(x.Entries); err != nil {
		s.close()
		return nil, err
	}
	for i := range x.Entries {
		s.entries[x.Entries[i].Key] = &x.Entries[i]
	}
	return s, nil
}

// verify compares all checksums, on all processors. It also brings the file into
// memory.
func (s *savedFile) verify(entries []savedEntry) error {
	type piece struct {
		data []byte
		sum  uint32
	}
	var pieces []piece
	for i := range entries {
		e := &entries[i]
		data := s.data(e)
		for j, sum := range e.Sums {
			pieces = append(pieces, piece{data[j*savedPiece : min(len(data), (j+1)*savedPiece)], sum})
		}
	}
	var next atomic.Int64
	var bad atomic.Bool
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(pieces) && !bad.Load(); i = next.Add(1) - 1 {
				if crc32.Checksum(pieces[i].data, castagnoli) != pieces[i].sum {
					bad.Store(true)
				}
			}
		})
	}
	if all.Wait(); bad.Load() {
		return errors.New("the checksum of a matrix is wrong")
	}
	return nil
}

func (s *savedFile) data(e *savedEntry) []byte {
	return s.region.Bytes[e.Offset : e.Offset+e.Bytes : e.Offset+e.Bytes]
}

// matrix makes the matrix of an entry.
func (s *savedFile) matrix(e *savedEntry, to *kernels.Weights) (weight, error) {
	parts := make([]kernels.Part, len(e.Rows))
	for i := range parts {
		parts[i] = kernels.Part{DType: e.DTypes[i], Rows: e.Rows[i]}
	}
	m, err := to.Map(parts, e.Cols, e.GateUp, s.data(e))
	if err != nil {
		return weight{}, err
	}
	return weight{matrix: m, bytes: m.Bytes()}, nil
}

func (s *savedFile) close() { s.region.Close() }
