//go:build !linux

package wire

import (
	"errors"
	"net"
)

// sharedMemory: elsewhere than on Linux blocks go over TCP.
const sharedMemory = false

type segment struct {
	fd    int
	bytes []byte
}

func newSegment(string, int) (*segment, error) { return nil, errors.ErrUnsupported }

func (s *segment) close() {}

func mapShared(int, uint64) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapShared([]byte) {}

func peerUser(*net.UnixConn) (int, error) { return -1, errors.ErrUnsupported }

func thisHost() string { return "" }

func descriptors([]byte) ([]int, error) { return nil, errors.ErrUnsupported }

func rights(...int) []byte { return nil }

func closeAll([]int) {}
