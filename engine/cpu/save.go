package cpu

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	kernels "tandem/kernels/cpu"
)

// What ends the names of files in the folder of packed weights: the weights, and
// those that are being written.
const (
	savedSuffix = ".packed"
	tempSuffix  = ".tmp"
	lockName    = "lock"
)

// toSave is a matrix that is to be written.
type toSave struct {
	key    string
	matrix *kernels.Matrix
}

// save writes the matrices, unless another process has just done so. What goes
// wrong is told to the log only: the weights are in memory, and the next start
// packs them again.
func (c *Saved) save(ctx context.Context, list []toSave) {
	// Writing a gigabyte must not slow the first requests. The thread ends with the
	// goroutine, so that nothing else runs at its priority.
	runtime.LockOSThread()
	if runtime.GOOS == "linux" {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 15)
	}
	start := time.Now()
	n, err := c.write(ctx, list)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.log().Warn("packed weights are not kept: the next start packs them again", "file", c.Path, "error", err)
	case n > 0:
		c.log().Info("packed weights are kept for the next start", "file", c.Path, "MiB", n>>20, "took", time.Since(start).Round(time.Millisecond))
	}
}

// write returns the bytes of the file, 0 if it was there.
func (c *Saved) write(ctx context.Context, list []toSave) (int64, error) {
	dir := filepath.Dir(c.Path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return 0, err
	}
	lock, err := lockFolder(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close() // which unlocks
	sweep(dir)
	if f, err := openSaved(c); err == nil { // by a process that started at the same time
		f.close()
		return 0, nil
	}
	total := int64(savedHead)
	for _, w := range list {
		total += int64(w.matrix.Bytes()) + savedAlign
	}
	if err := room(dir, total); err != nil {
		return 0, err
	}
	f, err := os.CreateTemp(dir, filepath.Base(c.Path)+".*"+tempSuffix)
	if err != nil {
		return 0, err
	}
	total, err = c.fill(ctx, f, list)
	if err = errors.Join(err, f.Close()); err == nil {
		// Readers have the old file or the new one. It is not synced: after a crash of
		// the machine the checksums tell.
		err = os.Rename(f.Name(), c.Path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return total, err
}

// fill writes the matrices, the index, and then the head that makes it a file.
func (c *Saved) fill(ctx context.Context, f *os.File, list []toSave) (int64, error) {
	x := savedIndex{Identity: c.Identity, Source: c.Source, Layout: kernels.Layout}
	at := int64(savedHead)
	for _, w := range list {
		e := w.entry(at)
		data := w.matrix.Data()
		for from := 0; from < len(data); from += savedPiece {
			piece := data[from:min(len(data), from+savedPiece)]
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			e.Sums = append(e.Sums, crc32.Checksum(piece, castagnoli))
			if _, err := f.WriteAt(piece, at+int64(from)); err != nil {
				return 0, err
			}
		}
		at = (at + e.Bytes + savedAlign - 1) / savedAlign * savedAlign
		x.Entries = append(x.Entries, e)
	}
	raw, err := json.Marshal(&x)
	if err != nil {
		return 0, err
	}
	head := []byte(savedMagic)
	le := binary.LittleEndian
	head = le.AppendUint32(head, savedVersion)
	head = le.AppendUint32(head, crc32.Checksum(raw, castagnoli))
	head = le.AppendUint64(head, uint64(at))
	head = le.AppendUint64(head, uint64(len(raw)))
	if _, err := f.WriteAt(raw, at); err != nil {
		return 0, err
	}
	_, err = f.WriteAt(head, 0)
	return at + int64(len(raw)), err
}

func (w *toSave) entry(at int64) savedEntry {
	e := savedEntry{Key: w.key, Cols: w.matrix.Cols, GateUp: w.matrix.Interleaved, Offset: at, Bytes: int64(w.matrix.Bytes())}
	e.DTypes, e.Rows = w.matrix.Parts()
	return e
}

// lockFolder waits until no other process writes to a folder. The lock of one
// that dies goes with it.
func lockFolder(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-again.C:
		}
	}
}

// sweep removes what nobody will use: files that a process left unfinished, and
// weights of models that are gone. The caller has the lock.
func sweep(dir string) {
	list, _ := os.ReadDir(dir)
	for _, d := range list {
		path := filepath.Join(dir, d.Name())
		switch {
		case strings.HasSuffix(d.Name(), savedSuffix) && sourceGone(path), strings.Contains(d.Name(), savedSuffix+".") && strings.HasSuffix(d.Name(), tempSuffix):
			_ = os.Remove(path)
		}
	}
}

func sourceGone(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false
	}
	x, err := readIndex(f, info.Size())
	if err != nil {
		return false
	}
	_, err = os.Stat(x.Source)
	return errors.Is(err, fs.ErrNotExist)
}

// keptFree is what a file must leave of a disk of so many bytes.
var keptFree = func(disk uint64) uint64 { return max(1<<30, disk/20) }

// room refuses to fill a disk.
func room(dir string, bytes int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	block := uint64(st.Bsize)
	free, keep := uint64(st.Bavail)*block, keptFree(uint64(st.Blocks)*block)
	if free < keep || free-keep < uint64(bytes) {
		return fmt.Errorf("%d MiB are free on the disk, %d are needed and %d stay free", free>>20, bytes>>20, keep>>20)
	}
	return nil
}
