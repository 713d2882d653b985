package wire

import (
	"errors"
	"slices"
	"testing"

	"tandem/engine/transfer"
)

// device is what a fake pool on a device does beside a pool in pieces.
type device struct {
	opened, closed int
	refuse         error // of OpenShared
	shares         bool
	onCopy         func()
	fails          int // copies
}

// devicePool is a pool whose handle is its address in the map of all of them.
type devicePool struct{ splitPool }

var devices = map[string]*pool{}

func (p devicePool) Share() ([]byte, bool) {
	if !p.p.onDevice.shares {
		return nil, false
	}
	devices["handle"] = p.p
	return []byte("handle"), true
}

func (p devicePool) OpenShared(handle []byte) (func(to, from []int32) error, func(), error) {
	d := p.p.onDevice
	if d.refuse != nil {
		return nil, nil, d.refuse
	}
	other := devices[string(handle)]
	d.opened++
	return func(to, from []int32) error {
		if d.fails > 0 {
			d.fails--
			return errors.New("the copy failed")
		}
		for i := range to {
			copy(p.p.data[to[i]], other.data[from[i]])
		}
		if d.onCopy != nil {
			d.onCopy()
		}
		return nil
	}, func() { d.closed++ }, nil
}

// devicePair is an owner and a puller whose blocks are on devices.
func devicePair(t *testing.T, blocks int) (*owner, *gen) {
	t.Helper()
	if !sharedMemory {
		t.Skip("no shared memory here")
	}
	cfg := Config{NoLocal: true}
	from, to := newPool(blocks, 1024).fill(3), newPool(blocks, 1024)
	from.split, to.split, from.onDevice, to.onDevice = true, true, &device{shares: true}, &device{}
	return newOwner(t, cfg, from), newGen(t, cfg, to)
}

// Blocks go from device to device; neither side reads or writes them on the host. The
// owner's memory is opened once, and closed when the owner is gone.
func TestDevicePool(t *testing.T) {
	o, g := devicePair(t, 32)
	o.mem.onRead = func(int32) { t.Error("the owner read a block") }
	for id := range transfer.ID(3) {
		g.pullTo(o.offer(id+1, 8, 16), 0, 0)
		checkOK(t, g.final(t, id+1), 16)
		if !slices.EqualFunc(g.mem.data[:16], o.mem.data[8:24], slices.Equal) {
			t.Fatal("the blocks are not the owner's")
		}
	}
	if in := g.by(PathShared); in != 3*16*1024 {
		t.Errorf("%d bytes came by shm", in)
	}
	o.srv.Close()
	g.Close()
	if d := g.mem.onDevice; d.opened != 1 || d.closed != 1 {
		t.Errorf("opened %d times, closed %d times", d.opened, d.closed)
	}
}

// A device that cannot be opened, or a puller without one, gets blocks by a stage.
func TestDevicePoolFallsBack(t *testing.T) {
	for name, spoil := range map[string]func(o, g *pool){
		"refused":      func(_, g *pool) { g.onDevice.refuse = errors.New("no such device here") },
		"no handle":    func(o, _ *pool) { o.onDevice.shares = false },
		"on a host":    func(_, g *pool) { g.onDevice = nil },
		"copies break": func(_, g *pool) { g.onDevice.fails = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{NoLocal: true}
			from, to := newPool(20, 1024).fill(3), newPool(20, 1024)
			from.split, to.split, from.onDevice, to.onDevice = true, true, &device{shares: true}, &device{}
			spoil(from, to)
			o, g := newOwner(t, cfg, from), newGen(t, cfg, to)
			g.pullTo(o.offer(1, 2, 12), 0, 0)
			checkOK(t, g.final(t, 1), 12)
			if !slices.EqualFunc(to.data[:12], from.data[2:14], slices.Equal) {
				t.Error("the blocks are not the owner's")
			}
			if sharedMemory && g.by(PathShared) != 12*1024 {
				t.Errorf("%d bytes came by shm", g.by(PathShared))
			}
		})
	}
}

// What was copied after the lease had ended does not count.
func TestDevicePoolRevoked(t *testing.T) {
	o, g := devicePair(t, 20)
	g.mem.onDevice.onCopy = func() { o.revoke(1) }
	g.pullTo(o.offer(1, 2, 12), 0, 0)
	if end := g.final(t, 1); end.OK || end.Progress > 0 {
		t.Errorf("the pull ended well: %+v", end)
	}
}
