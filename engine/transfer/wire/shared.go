package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"
)

// Shared memory of processes on one host. The owner's pool lies in a memfd, which
// it hands out over an abstract Unix socket; pullers map it for reading only and
// copy blocks by themselves, so that a pull costs the owner nothing. A pool that
// cannot be mapped, as on a device, is read through a stage, some blocks of memory
// for each connection.
//
// Who gets a descriptor must be a process of the same user and know the token of a
// grant, which went over the control stream. That stays open: its end is how
// either side notices that the other one died.
//
// An owner cannot stop a reader in time. It clears the grant's word on the board
// before a block may change; a reader looks at it after each copy, so what it
// counts was read under a live lease.

const (
	sharedMagic    = "TSM1"
	helloBytes     = 24
	offerBytes     = 24
	maxShared      = 1 << 46
	boardWords     = 1 << 12
	maxStageSlots  = 64
	stageBytes     = 8 << 20 // what a stage has at most, unless two blocks are more
	handshakeLimit = 5 * time.Second
)

// What a puller may ask for.
const (
	wantPool  = 1 // the descriptors of the pool and the board
	wantStage = 2 // that of a stage; PULL requests follow
	// Those of a handle of the device's memory and of the board, see device.go.
	wantDevice = 3
)

// hello is the first message of a connection, from the puller:
//
//	magic "TSM1" | kind u8 | 0 0 0 | token 16
type hello struct {
	kind  byte
	token token
}

func (h *hello) encode() []byte {
	b := make([]byte, helloBytes)
	copy(b, sharedMagic)
	b[4] = h.kind
	copy(b[8:], h.token[:])
	return b
}

func readHello(r io.Reader) (h hello, err error) {
	var b [helloBytes]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	if string(b[:4]) != sharedMagic || b[4] < wantPool || b[4] > wantDevice || b[5]|b[6]|b[7] != 0 {
		return h, fmt.Errorf("hello of shared memory: %w: %q", errCorrupt, b[:8])
	}
	return hello{kind: b[4], token: token(b[8:])}, nil
}

// sharedOffer is the owner's answer, with the descriptors:
//
//	magic "TSM1" | slots u32 | size u64 | board u64
//
// Of a pool slots is 0 and size its bytes; of a stage size is that of one slot and
// there is no board.
type sharedOffer struct {
	slots       uint32
	size, board uint64
}

func (o *sharedOffer) encode() []byte {
	b := make([]byte, 0, offerBytes)
	b = append(b, sharedMagic...)
	b = binary.LittleEndian.AppendUint32(b, o.slots)
	b = binary.LittleEndian.AppendUint64(b, o.size)
	return binary.LittleEndian.AppendUint64(b, o.board)
}

func parseSharedOffer(b []byte) (o sharedOffer, err error) {
	if len(b) != offerBytes || string(b[:4]) != sharedMagic {
		return o, fmt.Errorf("offer of shared memory: %w: %d bytes", errCorrupt, len(b))
	}
	o = sharedOffer{
		slots: binary.LittleEndian.Uint32(b[4:]), size: binary.LittleEndian.Uint64(b[8:]), board: binary.LittleEndian.Uint64(b[16:]),
	}
	pool := o.slots == 0 && o.board > 0 && o.board <= 8*boardWords && o.board%8 == 0
	stage := o.slots >= 2 && o.slots <= maxStageSlots && o.board == 0 && o.size <= maxBlockBytes
	if o.size == 0 || o.size > maxShared || !pool && !stage {
		return o, fmt.Errorf("offer of shared memory: %w: %+v", errCorrupt, o)
	}
	return o, nil
}

// receiveOffer reads the owner's answer and its descriptors, which are the
// caller's on success.
func receiveOffer(conn *net.UnixConn) (sharedOffer, []int, error) {
	b, oob := make([]byte, offerBytes), make([]byte, len(rights(0, 0))+64)
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return sharedOffer{}, nil, err
	}
	fds, err := descriptors(oob[:oobn])
	if err != nil {
		return sharedOffer{}, nil, err
	}
	if _, err = io.ReadFull(conn, b[n:]); err == nil {
		var o sharedOffer
		if o, err = parseSharedOffer(b); err == nil && len(fds) == o.descriptors() {
			return o, fds, nil
		}
	}
	closeAll(fds)
	if err == nil {
		err = fmt.Errorf("offer of shared memory: %w: %d descriptors", errCorrupt, len(fds))
	}
	return sharedOffer{}, nil, err
}

// descriptors is how many come with an offer.
func (o *sharedOffer) descriptors() int {
	if o.slots > 0 {
		return 1
	}
	return 2
}

// errForeign refuses a process of another user.
var errForeign = errors.New("the process at the other end belongs to another user")

// sameUser lets only processes of this user through.
func sameUser(conn *net.UnixConn) error {
	user, err := peerUser(conn)
	if err == nil && user != os.Geteuid() {
		err = fmt.Errorf("%w: %d, this one to %d", errForeign, user, os.Geteuid())
	}
	return err
}

// wordAt is a word of a board in memory.
func wordAt(board []byte, i uint32) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&board[8*int(i)]))
}
