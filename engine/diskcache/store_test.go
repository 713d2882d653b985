package diskcache

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tandem/engine/blockhash"
)

func open(t testing.TB, dir, identity string, size int) (*Store, Found) {
	t.Helper()
	s, found, err := Open(Config{Dir: dir, Identity: identity, BlockBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, found
}

func entry(i byte) Entry {
	return Entry{Hash: blockhash.Hash{i, 9}, Parent: blockhash.Hash{i - 1, 9}, Priority: 35}
}

func block(i byte, n int) []byte { return bytes.Repeat([]byte{i}, n) }

func write(t testing.TB, s *Store, i byte, n int) {
	t.Helper()
	if err := s.Write(entry(i), block(i, n)); err != nil {
		t.Fatal(err)
	}
}

func TestBlocksOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	s, found := open(t, dir, "model a", 100)
	if len(found.Entries)+found.Bad > 0 {
		t.Fatalf("%+v", found)
	}
	at := time.Now().Add(-time.Hour)
	for i := byte(1); i <= 4; i++ {
		write(t, s, i, 100)
		at = at.Add(time.Minute)
		if err := os.Chtimes(s.path(entry(i).Hash), at, at); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	if err := s.Read(entry(2).Hash, buf); err != nil || !bytes.Equal(buf, block(2, 100)) {
		t.Fatalf("%v: %v", err, buf[:4])
	}
	if err := s.Remove(entry(3).Hash); err != nil {
		t.Fatal(err)
	}
	s.Close()
	again, found := open(t, dir, "model a", 100)
	if want := []Entry{entry(1), entry(4), entry(2)}; !slices.Equal(found.Entries, want) || found.Bad != 0 {
		t.Errorf("%+v, want the one read last at the end", found)
	}
	if again.Folder() != s.Folder() {
		t.Errorf("%s, not %s", again.Folder(), s.Folder())
	}
	if err := again.Clear(); err != nil {
		t.Fatal(err)
	}
	if err := again.Read(entry(1).Hash, buf); !errors.Is(err, ErrCorrupt) {
		t.Errorf("after clearing: %v", err)
	}
	if err := again.Remove(entry(1).Hash); err != nil {
		t.Errorf("a file that is gone: %v", err)
	}
}

func TestFoldersAreNotShared(t *testing.T) {
	dir := t.TempDir()
	a, _ := open(t, dir, "model a", 100)
	write(t, a, 1, 100)
	second, found := open(t, dir, "model a", 100)
	if len(found.Entries) > 0 || second.Folder() == a.Folder() {
		t.Errorf("two stores share %s", a.Folder())
	}
	other, found := open(t, dir, "model b", 100)
	if len(found.Entries) > 0 {
		t.Error("another model's blocks are listed")
	}
	// A file that came to the wrong folder is not believed.
	from, to := a.path(entry(1).Hash), other.path(entry(1).Hash)
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, data, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := other.Read(entry(1).Hash, make([]byte, 100)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a block of another model: %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(path string, data []byte) error
		listed bool // the header is good, so only reading finds it
	}{
		{"a bit of the block", func(p string, d []byte) error { d[len(d)-3] ^= 1; return os.WriteFile(p, d, 0o600) }, true},
		{"a bit of the header", func(p string, d []byte) error { d[30] ^= 1; return os.WriteFile(p, d, 0o600) }, false},
		{"cut", func(p string, d []byte) error { return os.WriteFile(p, d[:len(d)-1], 0o600) }, false},
		{"cut in the header", func(p string, d []byte) error { return os.WriteFile(p, d[:20], 0o600) }, false},
		{"empty", func(p string, _ []byte) error { return os.WriteFile(p, nil, 0o600) }, false},
		{"longer", func(p string, d []byte) error { return os.WriteFile(p, append(d, 0), 0o600) }, false},
		{"another's name", func(p string, _ []byte) error { return os.Rename(p, p[:len(p)-4]+"1"+suffix) }, false},
		{"not finished", func(p string, _ []byte) error { return os.Rename(p, p+unfinished) }, false},
	} {
		dir := t.TempDir()
		s, _ := open(t, dir, "model", 64)
		write(t, s, 1, 64)
		write(t, s, 2, 64)
		path := s.path(entry(1).Hash)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := tc.damage(path, data); err != nil {
			t.Fatal(err)
		}
		if err := s.Read(entry(1).Hash, make([]byte, 64)); tc.name != "longer" && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: read: %v", tc.name, err)
		}
		s.Close()
		_, found := open(t, dir, "model", 64)
		bad, left := 1, 1
		if tc.listed {
			bad, left = 0, 2
		}
		if found.Bad != bad || len(found.Entries) != left {
			t.Errorf("%s: %+v", tc.name, found)
		}
	}
}

func TestWhatIsNoFileIsErased(t *testing.T) {
	dir, buf := t.TempDir(), make([]byte, 100)
	s, _ := open(t, dir, "model", 100)
	for name, put := range map[string]func(path string) error{
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"device":    func(path string) error { return os.Symlink(os.DevNull, path) },
	} {
		write(t, s, 1, 100) // makes the folder
		path := s.path(entry(1).Hash)
		for _, at := range []string{path, path + unfinished} {
			_ = os.Remove(path)
			if err := put(at); err != nil {
				t.Fatal(err)
			}
			if err := s.Read(entry(1).Hash, buf); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s: read: %v", name, err)
			}
			s.Close()
			var found Found
			s, found = open(t, dir, "model", 100)
			if len(found.Entries) > 0 || found.Bad != 1 {
				t.Errorf("%s: %+v", name, found)
			}
			if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: still there: %v", name, err)
			}
		}
	}
}

func TestWriteThatFailsLeavesNothing(t *testing.T) {
	s, _ := open(t, t.TempDir(), "model", 64)
	if err := s.Write(entry(1), make([]byte, 63)); err == nil {
		t.Error("a block of another size was written")
	}
	path := s.path(entry(1).Hash)
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(entry(1), make([]byte, 64)); err == nil || errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are left: %v", len(files), err)
	}
	if _, _, err := Open(Config{Dir: filepath.Join(path, "in the way"), BlockBytes: 0}); err == nil {
		t.Error("blocks without bytes")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(Config{Dir: file, BlockBytes: 1}); err == nil {
		t.Error("a file as a folder")
	}
}

func TestSizeIsWhatIsCharged(t *testing.T) {
	s, _ := open(t, t.TempDir(), "model", 640)
	write(t, s, 1, 640)
	info, err := os.Stat(s.path(entry(1).Hash))
	if err != nil || info.Size() != FileBytes("model", 640) {
		t.Errorf("%d bytes, charged %d: %v", info.Size(), FileBytes("model", 640), err)
	}
}

// FuzzHeader feeds foreign bytes to the parser: what it takes it must give back.
func FuzzHeader(f *testing.F) {
	h := header{Entry: entry(1), Bytes: 64, Sum: 7, Identity: "model"}
	good := h.append(nil)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(magic))
	f.Add([]byte(strings.Repeat("x", 200)))
	for _, at := range []int{8, 12, 56, 64} {
		bad := slices.Clone(good)
		bad[at]++
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parseHeader(data)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if out := h.append(nil); !bytes.Equal(out, data[:len(out)]) {
			t.Fatalf("%x became %x", data, out)
		}
	})
}

// BenchmarkRead and BenchmarkWrite move blocks of the size that a small model has;
// the system's cache holds all of them.
func BenchmarkWrite(b *testing.B) { benchBlocks(b, true) }

func BenchmarkRead(b *testing.B) { benchBlocks(b, false) }

func benchBlocks(b *testing.B, writes bool) {
	const size = 368640
	s, _ := open(b, b.TempDir(), "model", size)
	data := block(3, size)
	for i := range byte(64) {
		write(b, s, i+1, size)
	}
	b.SetBytes(size)
	for i := byte(0); b.Loop(); i = (i + 1) % 64 {
		var err error
		if writes {
			err = s.Write(entry(i+1), data)
		} else {
			err = s.Read(entry(i+1).Hash, data)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
