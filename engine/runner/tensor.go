package runner

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"runtime/debug"
	"sync"

	"tandem/engine/comm"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

// tensorGroup is this process's part of the ranks that share every request. Rank
// 0 decides; the others only run what it tells them (engine-core AD-6).
type tensorGroup struct {
	group     *comm.Group
	leader    *tensorLeader // nil in processes without rank 0
	followers []*follower
}

// copied is a CopyBlockPrefix that followers repeat.
type copied struct {
	from, to int32
	tokens   int
}

// tensorLeader is the device of rank 0 as its driver sees it: each call is
// repeated by all ranks.
type tensorLeader struct {
	Device
	comm   comm.Comm
	local  []Device // of all ranks of this process
	size   int
	iter   uint64
	digest uint64 // of the batch before
	copies []copied
	order  []byte
	fatal  error
}

// JoinThreads is for the thread that runs rank 0.
func (t *tensorLeader) JoinThreads() {
	if j, ok := t.Device.(joiner); ok {
		j.JoinThreads()
	}
}

// CopyBlockPrefix is carried out with the next Run.
func (t *tensorLeader) CopyBlockPrefix(from, to int32, tokens int) error {
	t.copies = append(t.copies, copied{from, to, tokens})
	return nil
}

// Run runs a batch on all ranks.
func (t *tensorLeader) Run(b *tensor.Batch) ([]float32, error) {
	b.RankRows = rankRows(b.Rows(), t.size)
	defer func() { t.copies = t.copies[:0] }()
	if err := t.Check(b); err != nil {
		return nil, err
	}
	t.order = encodeOrder(t.order[:0], t.copies, b)
	logits, err := t.run(b)
	if err != nil {
		t.end(err)
	}
	return logits, err
}

func (t *tensorLeader) run(b *tensor.Batch) ([]float32, error) {
	if err := t.exchange(0, len(t.order)); err != nil {
		return nil, err
	}
	if _, err := t.comm.Gather(context.Background(), t.order); err != nil {
		return nil, err
	}
	t.digest = digestOf(t.order)
	for _, c := range t.copies {
		if err := t.Device.CopyBlockPrefix(c.from, c.to, c.tokens); err != nil {
			return nil, err
		}
	}
	return t.Device.Run(b)
}

// exchange meets the followers, who must have run what they were told.
func (t *tensorLeader) exchange(flags uint32, payload int) error {
	t.iter++
	table, err := t.comm.Exchange(context.Background(), comm.Record{
		Iter: t.iter, Flags: flags, PayloadBytes: uint32(payload), KVDigest: t.digest,
	})
	if err != nil {
		return err
	}
	return checkOrders(table)
}

// checkOrders fails if the ranks have not all run the same batch before.
func checkOrders(table []comm.Record) error {
	for rank := range table {
		if table[rank].KVDigest != table[0].KVDigest {
			return fmt.Errorf("%w: iteration %d: rank %d has run another batch than rank 0", comm.ErrDivergence, table[0].Iter, rank)
		}
	}
	return nil
}

// KeepAlive meets the followers without work.
func (t *tensorLeader) KeepAlive() {
	if t.fatal == nil {
		if err := t.exchange(0, 0); err != nil {
			t.end(err)
		}
	}
}

// end ends the group, whose other ranks may wait for this one in their pass.
func (t *tensorLeader) end(err error) {
	t.fatal = err
	t.comm.Fail(err)
}

// Fatal is why the group ended, nil while it lives.
func (t *tensorLeader) Fatal() error { return t.fatal }

// Progress counts the work of all ranks of this process.
func (t *tensorLeader) Progress() (n uint64) {
	for _, d := range t.local {
		n += d.Progress()
	}
	return n
}

// stop ends the group in good order.
func (t *tensorLeader) stop() {
	if t.fatal == nil {
		if t.fatal = t.exchange(comm.FlagShutdown, 0); t.fatal == nil {
			_ = t.comm.Barrier(context.Background())
		}
	}
}

func rankRows(rows, size int) []int {
	all := make([]int, size)
	for i := range all {
		all[i] = rows
	}
	return all
}

// follower drives a rank that only runs what rank 0 says.
type follower struct {
	id, size int
	device   Device
	comm     comm.Comm
	batch    tensor.Batch
}

// run obeys until the leader stops the group or the group ends.
func (f *follower) run(ctx context.Context) (err error) {
	joinThreads(f.device)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rank %d: its goroutine panicked: %v\n%s", f.id, p, debug.Stack())
		}
		if err != nil {
			f.comm.Fail(err)
		}
	}()
	digest := uint64(0)
	for iter := uint64(1); ; iter++ {
		table, err := f.comm.Exchange(ctx, comm.Record{Iter: iter, Rank: uint16(f.id), KVDigest: digest})
		if err != nil {
			return err
		}
		if err := checkOrders(table); err != nil {
			return err
		}
		if table[0].Flags&comm.FlagShutdown != 0 {
			return f.comm.Barrier(ctx)
		}
		parts, err := f.comm.Gather(ctx, nil)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			continue
		}
		if err := f.obey(parts[0]); err != nil {
			return fmt.Errorf("rank %d at iteration %d: %w", f.id, iter, err)
		}
		digest = digestOf(parts[0])
	}
}

func (f *follower) obey(order []byte) error {
	copies, err := decodeOrder(order, &f.batch)
	if err != nil {
		return err
	}
	f.batch.RankRows = rankRows(f.batch.Rows(), f.size)
	for _, c := range copies {
		if err := f.device.CopyBlockPrefix(c.from, c.to, c.tokens); err != nil {
			return err
		}
	}
	_, err = f.device.Run(&f.batch)
	return err
}

func digestOf(order []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(order)
	return h.Sum64()
}

// encodeOrder appends a batch, with the copies before it, to dst: seven counted
// lists of 32-bit words, little-endian.
func encodeOrder(dst []byte, copies []copied, b *tensor.Batch) []byte {
	words := make([]int32, 0, 3*len(copies))
	for _, c := range copies {
		words = append(words, c.from, c.to, int32(c.tokens))
	}
	for _, list := range [...][]int32{words, b.Tokens, b.RowStart, b.PosStart, b.PageStart, b.Pages, b.LogitRows} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(list)))
		for _, w := range list {
			dst = binary.LittleEndian.AppendUint32(dst, uint32(w))
		}
	}
	return dst
}

var errOrder = errors.New("an order of rank 0 cannot be read")

// decodeOrder reads what encodeOrder wrote.
func decodeOrder(src []byte, b *tensor.Batch) ([]copied, error) {
	var words []int32
	for _, list := range [...]*[]int32{&words, &b.Tokens, &b.RowStart, &b.PosStart, &b.PageStart, &b.Pages, &b.LogitRows} {
		if len(src) < 4 {
			return nil, errOrder
		}
		n := int(binary.LittleEndian.Uint32(src))
		if src = src[4:]; n > len(src)/4 {
			return nil, errOrder
		}
		*list = (*list)[:0]
		for i := range n {
			*list = append(*list, int32(binary.LittleEndian.Uint32(src[4*i:])))
		}
		src = src[4*n:]
	}
	if len(src) > 0 || len(words)%3 != 0 {
		return nil, errOrder
	}
	copies := make([]copied, 0, len(words)/3)
	for ; len(words) > 0; words = words[3:] {
		copies = append(copies, copied{words[0], words[1], int(words[2])})
	}
	return copies, nil
}

// tensorParallel makes an engine whose ranks share every request.
func (l *Loaded) tensorParallel(ctx context.Context, o *LoadOptions, cfg Config, ranks comm.Span) error {
	spans := ranks.Len() < o.Ranks
	if spans && o.Wire != nil {
		return fmt.Errorf("tensor_parallel_size: a worker that hands KV blocks over needs all %d ranks in one process: leave --rank-group out, or set enable_attention_dp", o.Ranks)
	}
	c := o.group(cfg)
	c.OnStall = func(s comm.Stall) {
		o.Logger.Warn("ranks keep the others waiting", "missing", s.Missing, "collective", s.Op.String(), "iter", s.Iter, "waited", s.Waited)
	}
	c.Work = func() (n uint64) {
		for _, b := range l.Backends {
			n += b.Progress()
		}
		return n
	}
	group, err := connect(ctx, o.addr(), ranks, c, o.Logger)
	if err != nil {
		return err
	}
	t := &tensorGroup{group: group}
	for i, link := range l.links {
		link.Comm = group.Rank(ranks.First + i)
		if link.id > 0 {
			t.followers = append(t.followers, &follower{id: link.id, size: o.Ranks, device: l.Backends[i], comm: link.Comm})
		}
	}
	if cfg.Core.Blocks, err = agree(ctx, l.links, cfg.Core.Blocks); err != nil {
		_ = group.Close()
		return err
	}
	if ranks.First > 0 {
		l.Engine = newEngine(cfg)
		l.Engine.tensor = t
		return nil
	}
	t.leader = &tensorLeader{Device: l.Backends[0], comm: l.links[0].Comm, size: o.Ranks}
	for _, b := range l.Backends {
		t.leader.local = append(t.leader.local, b)
	}
	var memory transfer.Memory
	if !spans { // else nothing here needs all of a block
		if memory, err = l.joined(o, cfg.Core.Layout); err != nil {
			_ = group.Close()
			return err
		}
	}
	cfg.Tiers.Memory = memory
	if l.Engine, err = New(cfg, t.leader, l.transport(0, memory)); err == nil {
		l.Engine.tensor = t
	}
	return err
}

// joined is the memory of all ranks as one pool with all KV heads, so that
// hand-overs between workers of different tensor_parallel_size work.
func (l *Loaded) joined(o *LoadOptions, layout transfer.Layout) (transfer.Memory, error) {
	pools, parts := make([]transfer.Memory, len(l.Backends)), make([]transfer.Part, len(l.Backends))
	for rank, b := range l.Backends {
		first, n := o.parallel(rank).KVHeads(&l.Config)
		pools[rank], parts[rank] = b, transfer.Part{Layers: layout.Layers, FirstHead: first, Heads: n}
	}
	return wire.Join(layout, pools, parts)
}

// agree finds the number of KV blocks that all ranks have.
func agree(ctx context.Context, links []*lateGroup, blocks int) (int, error) {
	least := make([]int, len(links))
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, link := range links {
		wg.Add(1)
		go func() {
			defer wg.Done()
			table, err := link.Exchange(ctx, comm.Record{Rank: uint16(link.id), FreeBlocks: uint32(blocks)})
			errs[i], least[i] = err, blocks
			for _, r := range table {
				least[i] = min(least[i], int(r.FreeBlocks))
			}
		}()
	}
	wg.Wait()
	return least[0], errors.Join(errs...)
}

// runTensor drives the followers of this process and, with rank 0, the loop.
// Followers leave when ctx ends, unless rank 0 is here, which sends them home.
func (e *Engine) runTensor(ctx context.Context) error {
	t, patience := e.tensor, ctx
	if t.leader != nil {
		patience = context.WithoutCancel(ctx)
	}
	ended := make(chan error, len(t.followers))
	for _, f := range t.followers {
		go func() { ended <- f.run(patience) }()
	}
	var err error
	if t.leader != nil {
		if err = e.runAlone(ctx); err != nil {
			t.leader.end(err)
		}
		t.leader.stop()
	}
	for range t.followers {
		if e := <-ended; err == nil {
			err = e
		}
	}
	_ = t.group.Close()
	if t.leader == nil && ctx.Err() != nil {
		return nil
	}
	return err
}
