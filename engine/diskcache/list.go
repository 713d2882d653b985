package diskcache

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// scanners is how many files are looked at at a time when a Store is opened: a disk
// that has not got them in memory is much faster then.
const scanners = 16

// list reads the headers of all files and removes what is not good.
func (s *Store) list() (Found, error) {
	var paths []string
	err := filepath.WalkDir(s.folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, suffix) && !strings.HasSuffix(path, unfinished) {
			return err
		}
		paths = append(paths, path)
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return Found{}, err
	}
	type file struct {
		Entry
		used time.Time
		bad  error // nil = good
	}
	files := make([]file, len(paths))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(scanners, len(paths)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				h, used, err := s.inspect(paths[i])
				files[i] = file{h.Entry, used, err}
			}
		})
	}
	wg.Wait()
	var found Found
	for i := range files {
		if files[i].bad != nil {
			found.Bad++
			if err := os.Remove(paths[i]); err != nil {
				return found, err
			}
		}
	}
	files = slices.DeleteFunc(files, func(f file) bool { return f.bad != nil })
	slices.SortStableFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		found.Entries = append(found.Entries, f.Entry)
	}
	return found, nil
}

// inspect judges a file by its name, size and header.
func (s *Store) inspect(path string) (h header, used time.Time, err error) {
	f, info, err := openFile(path)
	if err != nil {
		return h, used, err
	}
	defer f.Close()
	h, err = s.header(f)
	if err == nil && (path != s.path(h.Hash) || info.Size() != FileBytes(s.cfg.Identity, s.cfg.BlockBytes)) {
		err = fmt.Errorf("%w: %d bytes under another's name", ErrCorrupt, info.Size())
	}
	return h, info.ModTime(), err
}

// header reads the header of an open file, which must be one of this Store.
func (s *Store) header(r io.Reader) (h header, err error) {
	buf := make([]byte, headerBytes(s.cfg.Identity))
	if _, err = io.ReadFull(r, buf); err != nil {
		return h, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h, err = parseHeader(buf); err == nil && (h.Identity != s.cfg.Identity || h.Bytes != uint64(s.cfg.BlockBytes)) {
		err = fmt.Errorf("%w: it is of another model or layout", ErrCorrupt)
	}
	return h, err
}
