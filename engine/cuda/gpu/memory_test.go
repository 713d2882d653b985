//go:build cuda

package gpu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMemory(t *testing.T) {
	on(t, func(b *bench) {
		free, total, err := b.d.MemInfo()
		b.must(err)
		if free <= 0 || free > total || total != b.d.Info().Total {
			b.Errorf("free %d of %d, the device says %d", free, total, b.d.Info().Total)
		}
		p := b.alloc(1 << 20)
		if p%256 != 0 {
			b.Errorf("address %#x", p)
		}
		data := bytes.Repeat([]byte{1, 2, 3, 4}, 100)
		b.must(b.d.Write(p.At(16), data))
		b.must(b.s.Copy(p.At(1024), p.At(16), 400))
		b.must(b.s.Fill(p.At(1024), 9, 2))
		b.must(b.s.Fill32(p.At(1028), 0x07060504, 2))
		b.must(b.s.Sync())
		got := make([]byte, 400)
		b.must(b.d.Read(got, p.At(1024)))
		copy(data, []byte{9, 9, 3, 4, 4, 5, 6, 7, 4, 5, 6, 7})
		if !bytes.Equal(got, data) {
			b.Errorf("read %v", got[:16])
		}
		b.must(errors.Join(b.d.Write(p, nil), b.d.Read(nil, p), b.s.Copy(p, p, 0), b.s.Fill(p, 0, 0)))
		b.must(b.d.Free(p))
		for _, n := range []int64{0, -1} {
			if _, err := b.d.Alloc(n); err == nil {
				b.Errorf("Alloc(%d) succeeded", n)
			}
		}
	})
}

func TestOutOfMemoryIsTold(t *testing.T) {
	on(t, func(b *bench) {
		_, err := b.d.Alloc(1 << 46)
		if !errors.Is(err, ErrOutOfMemory) || errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), "bytes are free on device 0") {
			b.Errorf("Alloc: %v", err)
		}
		if _, err := b.s.AllocAsync(1 << 46); !errors.Is(err, ErrOutOfMemory) {
			b.Errorf("AllocAsync: %v", err)
		}
		b.must(b.d.Free(b.alloc(64))) // still usable
	})
}

func TestMemoryInStreamOrder(t *testing.T) {
	on(t, func(b *bench) {
		b.must(b.d.KeepPool(1 << 20))
		x := b.floats(1, 2)
		for range 3 {
			p, err := b.s.AllocAsync(8)
			b.must(err)
			b.scale(b.s, p, x, 2, 2)
			b.scale(b.s, x, p, 2, 1)
			b.must(b.s.FreeAsync(p))
		}
		b.must(b.s.Sync())
		b.equal("doubled thrice", read[float32](b, x, 2), []float32{8, 16})
	})
}

func TestPinnedMemory(t *testing.T) {
	on(t, func(b *bench) {
		m, err := b.d.AllocPinned(64)
		b.must(err)
		p := b.alloc(64)
		for i := range m.Bytes() {
			m.Bytes()[i] = byte(i)
		}
		b.must(b.s.Write(p, m.All()))
		b.must(b.s.Read(m.Slice(32, 8), p.At(4)))
		b.must(b.s.Sync())
		b.equal("range", m.Slice(32, 8).Bytes(), []byte{4, 5, 6, 7, 8, 9, 10, 11})
		b.must(m.Free())
		b.must(m.Free())
	})
}

func TestPinnedMapping(t *testing.T) {
	file, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	must(t, err)
	defer func() { must(t, unix.Munmap(file)) }()
	on(t, func(b *bench) {
		m, err := b.d.Pin(file)
		b.must(err)
		p := b.alloc(1 << 16)
		file[1000] = 7
		b.must(b.s.Write(p, m.All()))
		b.must(b.s.Read(m.Slice(0, 4), p.At(1000)))
		b.must(b.s.Sync())
		b.equal("first byte", file[0], 7)
		b.must(m.Free())
	})
}

func TestPeers(t *testing.T) {
	if all, err := Devices(); err != nil || len(all) < 2 {
		t.Skipf("one device: %v", err)
	}
	other := open(t, 1)
	var far Ptr
	must(t, other.Do(func() (err error) {
		if far, err = other.Alloc(64); err != nil {
			return err
		}
		return other.Write(far, bytes.Repeat([]byte{5}, 64))
	}))
	on(t, func(b *bench) {
		near := b.alloc(64)
		b.must(b.s.CopyPeer(near, other, far, 64))
		b.must(b.s.Sync())
		b.equal("copied", read[byte](b, near, 2), []byte{5, 5})
		can, err := b.d.CanReach(other)
		b.must(err)
		if !can {
			return
		}
		b.must(b.d.Reach(other))
		b.must(b.d.Reach(other))
		b.must(b.d.Reach(b.d))
		out := b.floats(0)
		b.scale(b.s, out, far, 1, 1) // a kernel reads the other's memory
		b.must(b.s.Sync())
		b.equal("read by a kernel", read[byte](b, out, 4), []byte{5, 5, 5, 5})
	})
	must(t, other.Do(func() error { return other.Free(far) }))
}

var roles = map[string]func(){"reader": reader, "crash": crash}

func child(t *testing.T, name string, stdin io.Reader) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), role+"="+name)
	cmd.Stdin = stdin
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// reader opens what another process shares, adds one to its first byte and tells what it saw.
func reader() {
	err := func() error {
		var m Shared
		if err := json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&m); err != nil {
			return err
		}
		d, err := Open(0)
		if err != nil {
			return err
		}
		return errors.Join(d.Do(func() error {
			base, err := d.OpenShared(m)
			if err != nil {
				return err
			}
			buf := make([]byte, 4)
			if err := d.Read(buf, base.At(m.Offset)); err != nil {
				return err
			}
			fmt.Printf("%d %v", m.Size, buf)
			buf[0]++
			return errors.Join(d.Write(base.At(m.Offset), buf), d.CloseShared(base))
		}), d.Close())
	}()
	if err != nil {
		fmt.Print(err)
	}
}

func TestSharedBetweenProcesses(t *testing.T) {
	on(t, func(b *bench) {
		p := b.alloc(4 << 20)
		b.must(b.d.Write(p.At(512), []byte{1, 2, 3, 4}))
		m, err := b.d.Share(p.At(512))
		b.must(err)
		if m.Offset != 512 || m.Size != 4<<20 {
			b.Errorf("shared %d bytes, offset %d", m.Size, m.Offset)
		}
		var text bytes.Buffer
		b.must(json.NewEncoder(&text).Encode(m))
		b.equal("the other process saw", child(b.T, "reader", &text), "4194304 [1 2 3 4]")
		b.equal("it wrote", read[byte](b, p.At(512), 4), []byte{2, 2, 3, 4})
		b.must(b.d.Free(p))
	})
}

// crash lets a kernel write where nothing is, which costs the process its context.
func crash() {
	d, err := Open(0)
	if err != nil {
		fmt.Print(err)
		return
	}
	err = d.Do(func() error {
		ptx, err := os.ReadFile("testdata/probe.ptx")
		if err != nil {
			return err
		}
		m, err := d.Load(ptx)
		if err != nil {
			return err
		}
		k, err := m.Kernel("td_probe_count")
		if err != nil {
			return err
		}
		s, err := d.NewStream(0)
		if err != nil {
			return err
		}
		var a Args
		if err := s.Launch(k, Shape{Block: Dim{X: 1}}, a.Ptr(0x10)); err != nil && !errors.Is(err, ErrBroken) {
			return err
		}
		return s.Sync()
	})
	_, again := Devices() // a process can still look
	fmt.Println(errors.Is(err, ErrBroken), again == nil, err)
	_ = d.Close()
}

func TestBrokenContextIsTold(t *testing.T) {
	out := child(t, "crash", nil)
	if !strings.HasPrefix(out, "true true ") || !strings.Contains(out, "CUDA_ERROR_ILLEGAL_ADDRESS (700)") {
		t.Errorf("the child: %s", out)
	}
}
