package diskcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"tandem/engine/blockhash"
)

// Config says where a Store is and what is in it.
type Config struct {
	// Dir is the place, made if it is missing. The Store takes a folder below it.
	Dir string
	// Identity describes whatever the bytes of a block depend on besides its content:
	// model, layout, element type, arithmetic. Files of another identity are not read.
	Identity string
	// BlockBytes is the size of a block.
	BlockBytes int
}

// Found is what a Store had when it was opened.
type Found struct {
	// Entries are the good files, the least recently used first. Only their headers
	// were read.
	Entries []Entry
	// Bad counts files that were removed since they are incomplete or damaged.
	Bad int
}

// Store is an open folder of blocks. Its methods may be called from several
// goroutines; who reads a file while another writes or removes it gets the old
// content, the new or ErrCorrupt.
type Store struct {
	cfg    Config
	folder string
	lock   *os.File
}

const (
	suffix     = ".kv"
	unfinished = ".tmp"
	maxStores  = 1024 // of one identity at one place
)

// FileBytes is the size of the file of a block.
func FileBytes(identity string, blockBytes int) int64 {
	return int64(headerBytes(identity) + blockBytes)
}

// Open takes a folder below the place and lists its files.
func Open(cfg Config) (*Store, Found, error) {
	if cfg.BlockBytes < 1 || cfg.Dir == "" || len(cfg.Identity) > maxIdentity {
		return nil, Found{}, fmt.Errorf("diskcache: %d bytes a block in %q with an identity of %d bytes", cfg.BlockBytes, cfg.Dir, len(cfg.Identity))
	}
	sum := sha256.Sum256([]byte(cfg.Identity))
	s := &Store{cfg: cfg}
	for i := range maxStores {
		s.folder = filepath.Join(cfg.Dir, fmt.Sprintf("%x.%d", sum[:8], i))
		ok, err := s.claim()
		if err != nil {
			return nil, Found{}, fmt.Errorf("diskcache: %w", err)
		}
		if ok {
			found, err := s.list()
			if err != nil {
				s.Close()
				return nil, Found{}, fmt.Errorf("diskcache: %w", err)
			}
			return s, found, nil
		}
	}
	return nil, Found{}, fmt.Errorf("diskcache: %s has %d folders of this model, all in use", cfg.Dir, maxStores)
}

// Folder is where the files are.
func (s *Store) Folder() string { return s.folder }

// claim makes the folder and locks it; false if it is somebody else's.
func (s *Store) claim() (bool, error) {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return false, err
	}
	f, err := os.OpenFile(filepath.Join(s.folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false, err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		s.lock = f
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = f.Close()
		return false, nil
	default:
		_ = f.Close()
		return false, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
}

// Close gives the folder to whoever opens it next. The files stay.
func (s *Store) Close() {
	if s.lock != nil {
		_ = s.lock.Close() // which ends the lock
		s.lock = nil
	}
}

func (s *Store) path(h blockhash.Hash) string {
	name := hex.EncodeToString(h[:])
	return filepath.Join(s.folder, name[:2], name+suffix)
}

// Write makes the file of a block. It replaces one that is there.
func (s *Store) Write(e Entry, block []byte) error {
	if len(block) != s.cfg.BlockBytes {
		return fmt.Errorf("diskcache: a block of %d bytes, want %d", len(block), s.cfg.BlockBytes)
	}
	h := header{Entry: e, Bytes: uint64(len(block)), Sum: crc32.Checksum(block, castagnoli), Identity: s.cfg.Identity}
	path := s.path(e.Hash)
	temp := path + unfinished
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("diskcache: %w", err)
	}
	err := writeFile(temp, h.append(nil), block)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // it may not even be there
		return fmt.Errorf("diskcache: %w", err)
	}
	return nil
}

func writeFile(path string, parts ...[]byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := f.Write(p); err != nil {
			_ = f.Close()
			return err
		}
	}
	return f.Close()
}

// Read fills block with that of h and proves its checksum. An error that wraps
// ErrCorrupt says that the file is of no use, any other that the disk may be in
// trouble. After an error the block holds anything.
func (s *Store) Read(h blockhash.Hash, block []byte) error {
	path := s.path(h)
	f, _, err := openFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err != nil {
		return fmt.Errorf("diskcache: %w", err)
	}
	defer f.Close()
	head, err := s.header(f)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(f, block); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is too short", ErrCorrupt)
	} else if err != nil {
		return fmt.Errorf("diskcache: %w", err)
	}
	if head.Hash != h || head.Bytes != uint64(len(block)) || head.Sum != crc32.Checksum(block, castagnoli) {
		return fmt.Errorf("%w: checksum of the block", ErrCorrupt)
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // the order of use outlives the process, if it can
	return nil
}

// openFile opens a file to read it. What is no file, and might never answer, is ErrCorrupt.
func openFile(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // else a pipe waits for a writer
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: it is no file", ErrCorrupt)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Remove erases the file of h, if there is one.
func (s *Store) Remove(h blockhash.Hash) error {
	if err := os.Remove(s.path(h)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("diskcache: %w", err)
	}
	return nil
}

// Clear erases all files.
func (s *Store) Clear() error {
	var errs []error
	err := filepath.WalkDir(s.folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, suffix) {
			errs = append(errs, os.Remove(path))
		}
		return err
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("diskcache: %w", err)
	}
	return nil
}
