package wire

import (
	"context"
	"encoding/binary"
	"errors"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// Devices of processes on one host. What an owner hands out is a handle, by which
// the puller opens the owner's memory on its own device and copies blocks from the
// one to the other; the host sees none of their bytes. Where that cannot be, as when
// the puller does not see the owner's device, blocks go through a stage.

// deviceOf is what is handed out of a rank's memory on a device.
func (o *sharedOwner) deviceOf(t *Transport) sharedPool {
	m, ok := t.memory.Memory.(transfer.DeviceMemory)
	if !ok || t.memory.blockBytes == 0 {
		return sharedPool{}
	}
	handle, ok := m.Share()
	if !ok {
		return sharedPool{}
	}
	seg, err := newSegment("tandem-kv-device", len(handle))
	if err != nil {
		o.srv.cfg.Logger.Warn("KV blocks of the device cannot be shared, they go through the host", "error", err)
		return sharedPool{}
	}
	copy(seg.bytes, handle)
	return sharedPool{fd: uintptr(seg.fd), size: int64(len(handle)), ok: true, handle: seg}
}

var errNoDevice = errors.New("blocks here are on no device that can open others")

// openDevice opens the memory whose handle the owner sent.
func (p *sharedPeer) openDevice(mem transfer.Memory) (err error) {
	m, ok := mem.(transfer.DeviceMemory)
	if !ok {
		return errNoDevice
	}
	p.copyBlocks, p.done, err = m.OpenShared(append([]byte(nil), p.pool...))
	return err
}

// openDevice reads from the owner's device, or if that cannot be through a stage.
func (s *sharedReader) openDevice(ctx context.Context, pl *pull, a *pb.Accept, again bool) (reader, error) {
	key := keyOf(a.GetShared()) + "/device"
	_, able := pl.p.memory.Memory.(transfer.DeviceMemory)
	if able && pl.to.reshape == nil && s.worth(key) {
		r, err := s.openPool(ctx, pl, a)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		s.cfg.Logger.Info("the owner's device cannot be read directly: KV blocks go through the host", "reason", err)
		s.avoid(key)
	}
	return s.openStage(ctx, pl, a, again)
}

// devicePoll is how much is copied between devices between two looks at the board.
const devicePoll = 64 << 20

func (r *poolReader) pollDevice() (int, error) {
	n := min(r.ordered, int(max(1, devicePoll/r.size)))
	to, from := make([]int32, n), make([]int32, n)
	for i := range n {
		to[i], from[i] = r.pl.order.Dst[r.pl.verified+i], int32(binary.LittleEndian.Uint32(r.blocks[4*i:]))
	}
	if err := r.peer.copyBlocks(to, from); err != nil {
		return 0, err
	}
	return r.counted(n)
}
