package cpu

import kernels "tandem/kernels/cpu"

// kvPool is the memory of the KV pool: private, or such that other processes may
// map it.
type kvPool struct {
	kernels.Region
	shared *kernels.SharedRegion
}

// newKVPool maps size bytes. Where shared memory is not to be had it is private.
func newKVPool(size int, shared bool) (kvPool, error) {
	if shared {
		if r, err := kernels.NewSharedRegion(size); err == nil {
			return kvPool{Region: r.Region, shared: &r}, nil
		}
	}
	r, err := kernels.NewRegion(size)
	return kvPool{Region: r}, err
}

func (p *kvPool) close() {
	if p.shared != nil {
		p.shared.Close()
		return
	}
	p.Close()
}

// File returns the descriptor of the KV pool, by which other processes may map it
// for reading, and its size in bytes: block id begins at id times the size of a
// block. The descriptor stays the backend's. ok is false if the pool is private.
func (b *Backend) File() (fd uintptr, size int64, ok bool) {
	if b.mem.shared == nil {
		return 0, 0, false
	}
	return b.mem.shared.FD, int64(len(b.mem.Bytes)), true
}
