//go:build !linux || race

package h1

import "syscall"

func sysRead(fd uintptr, p []byte) (int, error) {
	for {
		if n, err := syscall.Read(int(fd), p); err != syscall.EINTR { //nolint:errorlint // a system call's own error
			return max(n, 0), err //nolint:wrapcheck // as it is
		}
	}
}

func sysWrite(fd uintptr, p []byte) (int, error) {
	for {
		if n, err := syscall.Write(int(fd), p); err != syscall.EINTR { //nolint:errorlint // a system call's own error
			return max(n, 0), err //nolint:wrapcheck // as it is
		}
	}
}
