package trace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Limits of Lines: what one run leaves on the disk is bounded.
const (
	linesBytes = 64 << 20 // of one file
	linesFiles = 16
)

// Lines writes lines of text to files of bounded size and number. Safe for concurrent use. A nil Lines takes none.
type Lines struct {
	dir, name string
	start     time.Time
	bytes     int64

	mu   sync.Mutex
	n    int // files begun
	file *os.File
	size int64
}

// NewLines begins the first file in dir, which is made if it is not there; name is what the files begin with. It is nil if
// dir is empty.
func NewLines(dir, name string, start time.Time) (*Lines, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // a nil Lines is one that is off
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	l := &Lines{dir: dir, name: name, start: start, bytes: linesBytes}
	return l, l.next()
}

func (l *Lines) path(n int) string {
	return filepath.Join(l.dir, fmt.Sprintf("%s-%s-%d-%04d.jsonl", l.name, l.start.UTC().Format("20060102T150405"), os.Getpid(), n))
}

// next begins another file and deletes the one that is too many. The caller holds mu, or nobody else knows l.
func (l *Lines) next() error {
	l.n++
	f, err := os.OpenFile(l.path(l.n), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	l.file, l.size = f, 0
	if old := l.n - linesFiles; old > 0 {
		_ = os.Remove(l.path(old)) // somebody else may have taken it away
	}
	return nil
}

// Write adds one line, which has no line break.
func (l *Lines) Write(line []byte) (int, error) {
	if l == nil {
		return len(line), nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return 0, fmt.Errorf("%s: %w", l.name, os.ErrClosed)
	}
	if l.size > 0 && l.size+int64(len(line)) >= l.bytes {
		if err := errors.Join(l.file.Close(), l.next()); err != nil {
			l.file = nil
			return 0, err
		}
	}
	n, err := l.file.Write(append(line[:len(line):len(line)], '\n'))
	l.size += int64(n)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", l.name, err)
	}
	return len(line), nil
}

// Close ends the last file.
func (l *Lines) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	if l.file = nil; err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	return nil
}
