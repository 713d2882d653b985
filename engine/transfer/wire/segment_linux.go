package wire

import (
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sharedMemory tells whether this system has the memory of the shm path.
const sharedMemory = true

// segment is memory of this process that others may map, but not write or resize.
// It goes when the last process that has it is gone, however that ends.
type segment struct {
	fd    int
	bytes []byte
}

func newSegment(name string, size int) (*segment, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd of %s: %w", name, err)
	}
	s := &segment{fd: fd}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		if s.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
		}
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("memfd of %s, %d bytes: %w", name, size, err)
	}
	return s, nil
}

func (s *segment) close() {
	if s.bytes != nil {
		_ = unix.Munmap(s.bytes)
		s.bytes = nil
	}
	_ = unix.Close(s.fd)
}

// mapShared maps size bytes of a descriptor that another process sent, which must
// not be able to take them away again. The descriptor stays the caller's.
func mapShared(fd int, size uint64) ([]byte, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: a descriptor without seals: %w", errCorrupt, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: a descriptor whose memory may shrink: seals %#x", errCorrupt, seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if size == 0 || size > maxShared || st.Size < int64(size) {
		return nil, fmt.Errorf("%w: %d bytes of memory, %d announced", errCorrupt, st.Size, size)
	}
	return unix.Mmap(fd, 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
}

func unmapShared(b []byte) { _ = unix.Munmap(b) }

// peerUser returns the user of the process at the other end.
func peerUser(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// thisHost names what processes must have in common to reach each other's abstract
// sockets: the running system and the network namespace. Empty if that is unknown.
func thisHost() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	space, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + space
}

// descriptors are those in the control messages of one read. They are closed on an
// error.
func descriptors(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		m := &messages[i]
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			continue
		}
		some, err := unix.ParseUnixRights(m)
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, some...)
	}
	return fds, nil
}

func rights(fds ...int) []byte { return unix.UnixRights(fds...) }

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
