//go:build linux && !race

package h1

import (
	"syscall"
	"unsafe"
)

// sysRead and sysWrite are read(2) and write(2) of a socket that never blocks, without telling the scheduler. It would wake
// its watchdog at the first call after each pause, two switches of threads for each event of a stream that is slow, so that
// the watchdog can take the processor away from a call that blocks: these cannot. The race detector has to see them.

func sysRead(fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != syscall.EINTR {
			return 0, errno
		}
	}
}

func sysWrite(fd uintptr, p []byte) (int, error) {
	for {
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		if errno == 0 {
			return int(n), nil
		}
		if errno != syscall.EINTR {
			return 0, errno
		}
	}
}
