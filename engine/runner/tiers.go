package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"tandem/engine/diskcache"
	"tandem/engine/executor"
	"tandem/engine/kvcache"
	"tandem/engine/transfer"
)

// TierConfig says where content goes that leaves the devices' pools. How much is
// in executor.Config.Tiers.
type TierConfig struct {
	// Dir is the place of the files, Identity what they depend on: see diskcache.
	Dir, Identity string
	// Memory is where the blocks of the device of New are, nil = the device has them.
	Memory transfer.Memory
}

// BlockCopier is a Device that copies its blocks to and from host memory beside
// its steps, on a queue of its own. Without it a rank copies through
// transfer.Memory: what leaves the device while the step waits, what comes back on
// a goroutine.
//
// Offload and Onboard return at once, and the copies are carried out in the order
// in which they were asked for. Whatever the device is asked for later, Run,
// Launch, CopyBlockPrefix or a Write of a pull, must not change a block before an
// Offload has read it; that wait is the device's own. A block under an Onboard is
// used by nothing before its done was called. done is called once for each copy,
// from any goroutine, when host memory (Offload) or block (Onboard) are complete.
// An Onboard from memory whose Offload failed must fail too.
type BlockCopier interface {
	// HostMemory returns memory for the other calls, such as copies are fast with.
	// It lives as long as the device.
	HostMemory(bytes int64) ([]byte, error)
	Offload(block int32, to []byte, done func(error))
	Onboard(block int32, from []byte, done func(error))
}

// readers is how many files are read at a time.
const readers = 2

// partTime is how long the end of an engine waits for copies and files.
const partTime = 5 * time.Second

// errParted is the end of moves of an engine that has ended.
var errParted = errors.New("the engine has ended")

// tiers carries out the moves of one rank: between device and host, and between
// host and files.
type tiers struct {
	memory transfer.Memory
	copier BlockCopier // nil = by memory
	host   []byte      // of the slots, then one stage for each reader
	size   int         // bytes of a block
	disk   *diskcache.Store
	log    *slog.Logger
	report func([]executor.MoveDone)

	copies, reads, writes moves
	unmap                 func()
	done                  []executor.MoveDone // of carry

	gate   sync.RWMutex // the device's memory is touched under it
	parted bool
}

// openTiers makes what a rank needs below its device, nil when it has no tiers.
func openTiers(cfg *Config, r *rank, device Device, memory transfer.Memory, report func([]executor.MoveDone)) (*tiers, error) {
	c := r.core.Config()
	n := c.Tiers.HostBlocks
	if n == 0 || !c.BlockReuse {
		return nil, nil //nolint:nilnil // most ranks have none
	}
	t := &tiers{memory: memory, size: c.Layout.BlockBytes(), log: cfg.Logger.With("rank", r.id), report: report}
	if t.memory == nil {
		var ok bool
		if t.memory, ok = device.(transfer.Memory); !ok {
			return nil, errors.New("runner: host_cache_size: the blocks of this device cannot be copied")
		}
		t.copier, _ = device.(BlockCopier)
	}
	if err := t.allocate(int64(n+readers) * int64(t.size)); err != nil {
		return nil, fmt.Errorf("kv_cache_config.host_cache_size: %d blocks of %d bytes: %w", n, t.size, err)
	}
	if c.Tiers.DiskBlocks > 0 {
		if err := t.openDisk(cfg.Tiers, r.core); err != nil {
			t.unmap()
			return nil, fmt.Errorf("kv_cache_config.disk_cache_dir: %w", err)
		}
	}
	t.copies.run(1, func(_ int, mv *executor.Move) { t.onboard(mv) })
	t.reads.run(readers, func(i int, mv *executor.Move) { t.load(t.slot(int32(n+i)), mv) })
	t.writes.run(1, func(_ int, mv *executor.Move) { t.write(mv) })
	return t, nil
}

// part keeps what is still under way from the device. A device that hangs in a copy
// cannot be kept from it.
func (t *tiers) part() {
	for range 100 {
		if t.gate.TryLock() {
			t.parted = true
			t.gate.Unlock()
			return
		}
		time.Sleep(partTime / 100)
	}
}

// rest ends the queues and reports whether all that had begun has ended in time.
func (t *tiers) rest() bool {
	limit := time.After(partTime)
	for _, q := range []*moves{&t.copies, &t.reads, &t.writes} {
		q.close()
		select {
		case <-q.gone:
		case <-limit:
			return false
		}
	}
	return true
}

// allocate gets the host's memory: outside of Go's heap, whose collector would
// pace itself by it, and page by page as it is used.
func (t *tiers) allocate(bytes int64) (err error) {
	if t.copier != nil {
		t.unmap = func() {}
		t.host, err = t.copier.HostMemory(bytes)
		return err
	}
	t.host, err = syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	t.unmap = func() { _ = syscall.Munmap(t.host) }
	return err
}

func (t *tiers) openDisk(cfg TierConfig, core *executor.Core) error {
	began := time.Now()
	s, found, err := diskcache.Open(diskcache.Config{Dir: cfg.Dir, Identity: cfg.Identity, BlockBytes: t.size})
	if err != nil {
		return err
	}
	t.disk = s
	files := make([]kvcache.File, len(found.Entries))
	for i, e := range found.Entries {
		files[i] = kvcache.File(e)
	}
	core.Restore(files)
	t.log.Info("disk tier of the KV cache", "folder", s.Folder(), "blocks", len(files), "bad", found.Bad, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// slot returns the memory of a host slot.
func (t *tiers) slot(i int32) []byte {
	at := int(i) * t.size
	return t.host[at : at+t.size : at+t.size]
}

// carry begins moves, in their order. What leaves the device has left it, or the
// device sees to the order, when carry returns.
func (t *tiers) carry(moves []executor.Move) {
	if t == nil {
		return
	}
	t.done = t.done[:0]
	for i := range moves {
		mv := &moves[i]
		switch mv.Kind {
		case kvcache.Offload:
			t.offload(mv)
		case kvcache.Onboard:
			t.copies.put(mv)
		case kvcache.Load:
			t.reads.put(mv)
		default:
			t.writes.put(mv)
		}
	}
	if len(t.done) > 0 {
		t.report(append([]executor.MoveDone(nil), t.done...))
	}
}

func (t *tiers) offload(mv *executor.Move) {
	began, job, to := time.Now(), mv.Job, t.slot(mv.Slot)
	if t.copier != nil {
		t.copier.Offload(mv.Block, to, func(err error) { t.ended("offload", job, began, err) })
		return
	}
	t.fetch(mv.Block, to)
	t.done = append(t.done, executor.MoveDone{Job: job, Took: time.Since(began)})
}

// fetch copies a block to host memory, for devices that do not do so themselves.
func (t *tiers) fetch(block int32, to []byte) {
	if b := t.memory.Block(block); b != nil {
		copy(to, b)
	} else {
		t.memory.(transfer.SplitMemory).Read(block, to)
	}
}

// bring copies host memory to a block, and returns when it is there.
func (t *tiers) bring(block int32, from []byte) error {
	t.gate.RLock()
	defer t.gate.RUnlock()
	if t.parted {
		return errParted
	}
	if t.copier != nil {
		ended := make(chan error, 1)
		t.copier.Onboard(block, from, func(err error) { ended <- err })
		return <-ended
	}
	if b := t.memory.Block(block); b != nil {
		copy(b, from)
	} else {
		t.memory.(transfer.SplitMemory).Write(block, from)
	}
	return nil
}

func (t *tiers) onboard(mv *executor.Move) {
	began := time.Now()
	t.ended("onboard", mv.Job, began, t.bring(mv.Block, t.slot(mv.Slot)))
}

func (t *tiers) load(stage []byte, mv *executor.Move) {
	began := time.Now()
	err := t.disk.Read(mv.Hash, stage)
	if err == nil {
		err = t.bring(mv.Block, stage)
	}
	t.ended("load", mv.Job, began, err)
}

// write changes files.
func (t *tiers) write(mv *executor.Move) {
	began := time.Now()
	switch mv.Kind {
	case kvcache.Spill:
		t.ended("spill", mv.Job, began, t.file(mv, t.slot(mv.Slot)))
	case kvcache.Erase:
		t.logged("erase", t.disk.Remove(mv.Hash))
	case kvcache.EraseAll:
		t.logged("erase all", t.disk.Clear())
	}
}

// file writes the file of a spill.
func (t *tiers) file(mv *executor.Move, from []byte) error {
	return t.disk.Write(diskcache.Entry{Hash: mv.Hash, Parent: mv.Parent, Priority: mv.Priority}, from)
}

// ended reports the end of a move.
func (t *tiers) ended(what string, job uint64, began time.Time, err error) {
	d := executor.MoveDone{Job: job, Took: time.Since(began)}
	switch {
	case errors.Is(err, diskcache.ErrCorrupt):
		d.Result = kvcache.Corrupt
	case err != nil:
		d.Result = kvcache.Failed
	}
	t.logged(what, err)
	t.report([]executor.MoveDone{d})
}

func (t *tiers) logged(what string, err error) {
	if err != nil && !errors.Is(err, errParted) {
		t.log.Warn("a KV block was not moved between tiers", "move", what, "error", err)
	}
}

// flush writes what the files lack of a core that has come to its end, as far as
// the time allows, so that the next process finds it.
func (t *tiers) flush(core *executor.Core) {
	if t == nil || t.disk == nil {
		return
	}
	began, written, moves := time.Now(), 0, core.Remains()
	stage := t.slot(int32(core.Config().Tiers.HostBlocks))
	for i := range moves {
		if time.Since(began) > partTime {
			t.log.Warn("not all of the KV cache was written to disk", "limit", partTime, "blocks", written)
			return
		}
		if err := t.leave(&moves[i], stage); err != nil {
			t.logged("spill", err)
			return
		}
		if moves[i].Kind == kvcache.Spill {
			written++
		}
	}
	t.log.Info("the KV cache was written to disk", "blocks", written, "took", time.Since(began).Round(time.Millisecond))
}

// leave carries out a move of flush.
func (t *tiers) leave(mv *executor.Move, stage []byte) error {
	switch {
	case mv.Kind == kvcache.Erase:
		return t.disk.Remove(mv.Hash)
	case mv.Slot >= 0:
		return t.file(mv, t.slot(mv.Slot))
	}
	if err := t.take(mv.Block, stage); err != nil {
		return err
	}
	return t.file(mv, stage)
}

// take copies a block to host memory and waits for it.
func (t *tiers) take(block int32, to []byte) error {
	if t.copier == nil {
		t.fetch(block, to)
		return nil
	}
	ended := make(chan error, 1)
	t.copier.Offload(block, to, func(err error) { ended <- err })
	return <-ended
}

// close ends all moves, and with keep writes what a core that is at its end would
// lose. Afterwards nothing touches the device's memory any more, not even a file
// that is still being read.
func (t *tiers) close(core *executor.Core, keep bool) {
	if t == nil {
		return
	}
	if !t.rest() { // the folder stays locked, the memory mapped
		t.part()
		t.log.Error("the disk of the KV cache does not answer", "waited", partTime)
		return
	}
	if keep {
		t.flush(core)
	}
	if t.disk != nil {
		t.disk.Close()
	}
	t.unmap()
}
