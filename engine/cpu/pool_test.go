package cpu

import (
	"testing"

	"golang.org/x/sys/unix"

	"tandem/engine/tensor"
)

// A shared pool is seen by who maps it, who cannot write or resize it.
func TestSharedPool(t *testing.T) {
	cfg := Config{
		Threads: 1, MaxRows: 16, Shared: true,
		KV: tensor.KVShape{Layers: 2, KVHeads: 1, HeadDim: 16, BlockTokens: 16, Blocks: 5, DType: tensor.BF16},
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	fd, size, ok := b.File()
	if !ok {
		t.Skip("this system has no shared memory")
	}
	if want := int64(5 * len(b.Block(0))); size != want {
		t.Fatalf("%d bytes, want %d", size, want)
	}
	other, err := unix.Mmap(int(fd), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(other)
	b.Block(3)[7] = 42
	if at := 3*len(b.Block(0)) + 7; other[at] != 42 {
		t.Error("block 3 is not where it should be")
	}
	if _, err := unix.Mmap(int(fd), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("others may write")
	}
	if err := unix.Ftruncate(int(fd), 4096); err == nil {
		t.Error("the pool can be cut off")
	}
	cfg.Shared = false
	private, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer private.Close()
	if _, _, ok := private.File(); ok {
		t.Error("a private pool has a descriptor")
	}
}
