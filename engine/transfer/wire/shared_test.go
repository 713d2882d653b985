package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tandem/engine/transfer"
)

// shmPair is an owner whose pool can be mapped and a puller in what counts as
// another process.
func shmPair(t *testing.T, blocks int) (*owner, *gen) {
	cfg := Config{NoLocal: true}
	o := newOwner(t, cfg, newSharedPool(t, blocks, 1024).fill(3))
	return o, newGen(t, cfg, newPool(blocks, 1024))
}

func (g *gen) by(path string) uint64 { return g.traffic[pathIndex(path)].in.Load() }

// descriptorsNow counts this process's open files that are memory of tests or ours.
func descriptorsNow(t *testing.T) (n int) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	for _, f := range dir {
		if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); len(to) > 6 && to[:7] == "/memfd:" {
			n++
		}
	}
	return n
}

// mappings counts what is mapped of memory that the shm path makes.
func mappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip(err)
	}
	return bytes.Count(maps, []byte("/memfd:"))
}

// until polls a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for limit := time.Now().Add(wait); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("never %s", what)
		}
	}
}

// A pool is mapped once for all pulls, its owner copies nothing, and nothing of it
// is left when the owner is gone.
func TestSharedPool(t *testing.T) {
	files, maps := descriptorsNow(t), mappings(t)
	o, g := shmPair(t, 32)
	for id := range transfer.ID(5) {
		g.pullTo(o.offer(id+1, 8, 16), 0, 0)
		checkOK(t, g.final(t, id+1), 16)
		checkBlocks(t, o.mem, 8, g.mem, 0, 16)
	}
	if in, out := g.by(PathShared), o.traffic[pathIndex(PathShared)].out.Load(); in != 5*16*1024 || out != in {
		t.Errorf("%d bytes came by shm, the owner counted %d", in, out)
	}
	shared := g.paths[1].(*sharedReader)
	shared.mu.Lock()
	if n := len(shared.peers); n != 1 {
		t.Errorf("%d pools mapped", n)
	}
	shared.mu.Unlock()
	board := o.srv.paths[0].(*sharedOwner)
	until(t, "with a free board", func() bool { board.mu.Lock(); defer board.mu.Unlock(); return len(board.free) == boardWords })
	o.srv.Close()
	until(t, "unmapped", func() bool { return mappings(t) == maps+1 }) // the test's own
	o.mem.seg.close()
	if n := descriptorsNow(t); n != files {
		t.Errorf("%d memory descriptors are open, %d were before", n, files)
	}
}

// Blocks that were read before a lease ended count, later ones do not: the reader
// sees it, nobody has to tell.
func TestSharedPoolRevoked(t *testing.T) {
	// A block is no less than what is copied between two looks, so each is looked at.
	big := transfer.Layout{Layers: 32, KVHeads: 32, HeadDim: 128, DType: "F32", BlockTokens: 4, Packing: "test"}
	size := big.BlockBytes()
	o := newOwner(t, Config{NoLocal: true}, newSharedPool(t, 12, size).fill(3))
	g := newGen(t, Config{NoLocal: true}, newPool(12, size))
	g.mem.onBlock = func(id int32) {
		if id == 10 && g.by(PathShared) > 0 {
			o.revoke(1)
			for _, b := range o.mem.data {
				clear(b)
			}
		}
	}
	h := o.offer(1, 0, 12)
	h.Layout, h.PromptTokens, h.Hashes = big, 12*big.BlockTokens, nil
	g.pullTo(h, 0, 0)
	e := g.final(t, 1)
	checkFailed(t, e, CodeStale, "stale")
	if e.Progress != 10 {
		t.Errorf("%d blocks counted, 10 came before the end of the lease", e.Progress)
	}
	checkBlocks(t, newPool(12, size).fill(3), 0, g.mem, 0, e.Progress)
}

// An owner that dies leaves its memory to a reader until that has noticed.
func TestSharedPoolOfTheDead(t *testing.T) {
	o, g := shmPair(t, 16)
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	checkOK(t, g.final(t, 1), 16)
	o.srv.Close()
	g.pullTo(o.offer(2, 0, 16), 0, 0)
	checkFailed(t, g.final(t, 2), CodeFailed, "")
	shared := g.paths[1].(*sharedReader)
	until(t, "forgotten", func() bool { shared.mu.Lock(); defer shared.mu.Unlock(); return len(shared.peers) == 0 })
}

// What cannot be had by shared memory comes by TCP, and it is not tried each time.
func TestSharedFallsBack(t *testing.T) {
	o, g := shmPair(t, 16)
	shared := o.srv.paths[0].(*sharedOwner)
	_ = shared.listener.Close()
	for id := range transfer.ID(3) {
		g.pullTo(o.offer(id+1, 0, 16), 0, 0)
		checkOK(t, g.final(t, id+1), 16)
		checkBlocks(t, o.mem, 0, g.mem, 0, 16)
	}
	if g.by(PathTCP) != 3*16*1024 || g.by(PathShared) != 0 || g.traffic[pathIndex(PathShared)].resumes.Load() != 2 {
		t.Errorf("traffic %+v", g.Traffic())
	}
	// A worker elsewhere, or one that has it off.
	for _, cfg := range []Config{{NoLocal: true, NoShared: true}, {NoLocal: true}} {
		far := newGen(t, cfg, newPool(16, 1024))
		if !cfg.NoShared {
			far.paths[1].(*sharedReader).host = "another"
		}
		far.pullTo(o.offer(9, 0, 16), 0, 0)
		checkOK(t, far.final(t, 9), 16)
		if far.by(PathTCP) != 16*1024 {
			t.Errorf("traffic %+v", far.Traffic())
		}
	}
}

// A cut connection of a stage goes on where it was.
func TestStageGoesOn(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true}, newPool(64, 1024).fill(1))
	g := newGen(t, Config{NoLocal: true}, newPool(64, 1024))
	shared := o.srv.paths[0].(*sharedOwner)
	cut := false
	g.mem.onBlock = func(id int32) {
		if id == 20 && g.by(PathShared) > 0 && !cut {
			cut = true
			shared.mu.Lock()
			for c := range shared.conns {
				_ = c.Close()
			}
			shared.mu.Unlock()
		}
	}
	for id := range transfer.ID(3) {
		g.pullTo(o.offer(id+1, 0, 64), 0, 0)
		checkOK(t, g.final(t, id+1), 64)
		checkBlocks(t, o.mem, 0, g.mem, 0, 64)
	}
	if g.by(PathShared) != 3*64*1024 || g.traffic[pathIndex(PathShared)].resumes.Load() != 1 {
		t.Errorf("traffic %+v", g.Traffic())
	}
}

// Nobody gets memory without the token of a grant.
func TestSharedNeedsAToken(t *testing.T) {
	o, _ := shmPair(t, 16)
	shared := o.srv.paths[0].(*sharedOwner)
	for _, b := range [][]byte{
		(&hello{kind: wantPool, token: token{1}}).encode(), (&hello{kind: wantStage, token: token{1}}).encode(),
		(&hello{kind: 7}).encode(), []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
	} {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: "@" + shared.name})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(b)
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		if _, _, err := receiveOffer(conn); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, errCorrupt) || isTimeout(err) {
			t.Errorf("%q: %v", b, err)
		}
		_ = conn.Close()
	}
}

// A process of another user gets nothing, and is not believed either.
func TestSharedForeignUser(t *testing.T) {
	if os.Getenv("TEST_SHARED_DIAL") != "" {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: os.Getenv("TEST_SHARED_DIAL")})
		if err != nil {
			t.Fatal(err)
		}
		if err := sameUser(conn); !errors.Is(err, errForeign) {
			t.Fatalf("the owner is believed: %v", err)
		}
		_, _ = conn.Write((&hello{kind: wantPool}).encode())
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Fatalf("got %d bytes, %v", n, err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	o, _ := shmPair(t, 16)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "dial")
	for _, d := range []string{filepath.Dir(dir), dir} { // the other user must get there
		if err := os.Chmod(d, 0o755); err != nil {
			t.Skip(err)
		}
	}
	if err := exec.Command("cp", self, program).Run(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(program, "-test.run=^TestSharedForeignUser$")
	cmd.Env = []string{"TEST_SHARED_DIAL=@" + o.srv.paths[0].(*sharedOwner).name}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A descriptor whose memory may be taken away again is not mapped, nor less than
// was announced.
func TestMapShared(t *testing.T) {
	seg, err := newSegment("test", 4096)
	if err != nil {
		t.Skip(err)
	}
	defer seg.close()
	if _, err := mapShared(seg.fd, 8192); !errors.Is(err, errCorrupt) {
		t.Errorf("too much: %v", err)
	}
	b, err := mapShared(seg.fd, 4096)
	if err != nil {
		t.Fatal(err)
	}
	seg.bytes[7] = 9
	if b[7] != 9 {
		t.Error("what the owner writes is not seen")
	}
	unmapShared(b)
	if _, err := unix.Mmap(seg.fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("another process could write")
	}
	open, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	_ = unix.Ftruncate(open, 4096)
	if _, err := mapShared(open, 4096); !errors.Is(err, errCorrupt) {
		t.Errorf("unsealed: %v", err)
	}
	if _, err := mapShared(int(os.Stdin.Fd()), 4096); err == nil {
		t.Error("no memory at all was mapped")
	}
}

func FuzzReadHello(f *testing.F) {
	f.Add((&hello{kind: wantStage, token: token{5}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := readHello(bytes.NewReader(b)); err == nil && !bytes.Equal(h.encode(), b[:helloBytes]) {
			t.Fatalf("%+v encodes differently", h)
		}
	})
}

func FuzzSharedOffer(f *testing.F) {
	f.Add((&sharedOffer{size: 4096, board: 64}).encode())
	f.Add((&sharedOffer{slots: 4, size: 4096}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseSharedOffer(b)
		if err != nil {
			return
		}
		if !bytes.Equal(o.encode(), b) {
			t.Fatalf("%+v encodes differently", o)
		}
		if o.size == 0 || uint64(max(o.slots, 1))*o.size > maxShared {
			t.Fatalf("%+v was accepted", o)
		}
	})
}

// Whatever comes as control messages, no descriptor is kept after an error.
func FuzzReceiveOffer(f *testing.F) {
	f.Add((&sharedOffer{size: 4096, board: 64}).encode(), uint8(2))
	f.Add((&sharedOffer{slots: 4, size: 4096}).encode(), uint8(1))
	f.Add([]byte("x"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Skip(err)
		}
		var conns [2]*net.UnixConn
		for i, fd := range pair {
			file := os.NewFile(uintptr(fd), "pair")
			c, err := net.FileConn(file)
			file.Close()
			if err != nil {
				t.Fatal(err)
			}
			conns[i] = c.(*net.UnixConn)
			defer c.Close()
		}
		var send []int
		for range n % 8 {
			fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
			if err != nil {
				t.Skip(err)
			}
			defer unix.Close(fd)
			send = append(send, fd)
		}
		before := descriptorsNow(t)
		var oob []byte
		if len(send) > 0 {
			oob = rights(send...)
		}
		_, _, _ = conns[0].WriteMsgUnix(b, oob, nil)
		_ = conns[0].CloseWrite()
		o, fds, err := receiveOffer(conns[1])
		if err == nil && len(fds) != o.descriptors() {
			t.Fatalf("%d descriptors for %+v", len(fds), o)
		}
		closeAll(fds)
		if after := descriptorsNow(t); after != before {
			t.Fatalf("%d memory descriptors are open, %d were before (%v)", after, before, err)
		}
	})
}

// FuzzDescriptors parses control messages as they come from the kernel, or worse.
func FuzzDescriptors(f *testing.F) {
	f.Add([]byte{16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, oob []byte) {
		// Not rights: numbers of a fuzzer must not be closed.
		for i := 12; i+4 <= len(oob); i += 8 {
			oob[i] = 2
		}
		_, _ = descriptors(oob)
	})
}
