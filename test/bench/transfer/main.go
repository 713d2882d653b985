// Command transfer measures how fast KV blocks go from one process to another on
// this machine, and what processor time both spend, for each byte path. It starts
// itself as the worker that has the blocks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
	"tandem/test/bench/speed"
)

// layout has blocks of 1 MiB.
var layout = transfer.Layout{Layers: 32, KVHeads: 8, HeadDim: 64, DType: "BF16", BlockTokens: 16, Packing: "bench"}

type options struct {
	owner, private bool
	blocks, pulls  int
	rounds         int
	wire           wire.Config
}

func main() {
	var o options
	flag.BoolVar(&o.owner, "owner", false, "be the process with the blocks, for the one that measures")
	flag.BoolVar(&o.private, "private", false, "with -owner: its pool cannot be mapped, as on a device, so that shm goes through a stage")
	flag.IntVar(&o.blocks, "blocks", 256, "blocks of 1 MiB in a pull")
	flag.IntVar(&o.pulls, "pulls", 15, "pulls that are measured in a round")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds; in each, all paths take turns")
	flag.BoolVar(&o.wire.NoShared, "tcp", false, "with -owner: TCP only")
	flag.Parse()
	run := func() error { return o.compare(os.Stdout, os.Stderr) }
	if o.owner {
		run = o.serve
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// path is a way from pool to pool, and what it gave in each round.
type path struct {
	name         string
	tcp, private bool
	rates, cores []float64 // GB/s; core-seconds for a GB
}

// compare lets all paths take turns and prints their medians.
func (o options) compare(out, log io.Writer) error {
	if o.rounds < 1 || o.pulls < 1 || o.blocks < 1 {
		return errors.New("-rounds, -pulls and -blocks must be at least 1")
	}
	paths := []path{{name: "`shm`"}, {name: "`shm` through a stage", private: true}, {name: "`tcp`", tcp: true}}
	for round := range o.rounds {
		for i := range paths {
			p := &paths[(i+round)%len(paths)]
			o.wire.NoShared, o.private = p.tcp, p.private
			rate, cores, err := o.measure()
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			_, _ = fmt.Fprintf(log, "round %d: %s %.2f GB/s, %.2f core-seconds for a GB\n", round+1, p.name, rate, cores)
			p.rates, p.cores = append(p.rates, rate), append(p.cores, cores)
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%d blocks of 1 MiB a pull between two processes, medians of %d rounds of %d pulls, with least and greatest. Processor time is that of both processes.\n\n", o.blocks, o.rounds, o.pulls)
	fmt.Fprintf(&table, "| path | GB/s | core-seconds for a GB |\n|---|---|---|\n")
	for i := range paths {
		r, c := paths[i].rates, paths[i].cores
		fmt.Fprintf(&table, "| %s | %.2f (%.2f–%.2f) | %.2f (%.2f–%.2f) |\n", paths[i].name,
			speed.Median(r), slices.Min(r), slices.Max(r), speed.Median(c), slices.Min(c), slices.Max(c))
	}
	_, err := io.WriteString(out, table.String())
	return err
}

// pool is memory of blocks, in a file if others may map it.
type pool struct {
	mem  []byte
	fd   int
	file bool
}

func newPool(blocks int, shared bool) (*pool, error) {
	size := blocks * layout.BlockBytes()
	p := &pool{fd: -1, file: shared}
	var err error
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if shared {
		flags = unix.MAP_SHARED
		if p.fd, err = unix.MemfdCreate("bench-pool", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
			return nil, err
		}
		if err = unix.Ftruncate(p.fd, int64(size)); err != nil {
			return nil, err
		}
		if _, err = unix.FcntlInt(uintptr(p.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			return nil, err
		}
	}
	if p.mem, err = unix.Mmap(p.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags); err != nil {
		return nil, err
	}
	for i := range p.mem {
		p.mem[i] = byte(i>>20 + i)
	}
	return p, nil
}

func (p *pool) Block(id int32) []byte {
	n := layout.BlockBytes()
	return p.mem[int(id)*n : (int(id)+1)*n]
}

func (p *pool) File() (uintptr, int64, bool) { return uintptr(p.fd), int64(len(p.mem)), p.file }

// hello is what the owner tells of itself.
type hello struct{ Endpoint, Incarnation string }

// serve grants every pull all blocks, until standard input ends.
func (o options) serve() error {
	mem, err := newPool(o.blocks, !o.private)
	if err != nil {
		return err
	}
	o.wire.Incarnation = "owner"
	srv, err := wire.Listen(o.wire)
	if err != nil {
		return err
	}
	defer srv.Close()
	all := make([]int32, o.blocks)
	for i := range all {
		all[i] = int32(i)
	}
	var rank *wire.Transport
	rank = srv.Rank(0, mem, func(m any) {
		switch m := m.(type) {
		case transfer.Attach:
			rank.Accept(transfer.Accept{Peer: m.Peer, ID: m.ID, Epoch: 1, Blocks: all})
		case transfer.Done:
			rank.DoneReply(transfer.DoneReply{Peer: m.Peer, ID: m.ID, OK: true})
		}
	})
	if err := json.NewEncoder(os.Stdout).Encode(hello{srv.Endpoint(), srv.Incarnation()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// measure starts an owner and pulls from it. It returns GB/s, and core-seconds for a GB.
func (o options) measure() (rate, cores float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	args := []string{"-owner", fmt.Sprint("-blocks=", o.blocks), fmt.Sprint("-tcp=", o.wire.NoShared), fmt.Sprint("-private=", o.private)}
	child := exec.CommandContext(context.Background(), self, args...)
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return 0, 0, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := child.Start(); err != nil {
		return 0, 0, err
	}
	rate, cores, err = o.pull(out, child.Process.Pid)
	return rate, cores, errors.Join(err, in.Close(), child.Wait())
}

func (o options) pull(out io.Reader, pid int) (rate, cores float64, err error) {
	var h hello
	if err := json.NewDecoder(out).Decode(&h); err != nil {
		return 0, 0, fmt.Errorf("the owner did not start: %w", err)
	}
	mem, err := newPool(o.blocks, false)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Munmap(mem.mem) //nolint:errcheck // scratch
	events := make(chan transfer.PullEvent, 1024)
	p := wire.NewPuller(o.wire, mem, func(e transfer.PullEvent) {
		if e.Done {
			events <- e
		}
	})
	defer p.Close()
	order := transfer.Pull{Handle: transfer.Handle{
		Incarnation: h.Incarnation, Endpoint: h.Endpoint, Epoch: 1, Lease: time.Minute, PromptTokens: o.blocks * layout.BlockTokens, Layout: layout,
	}}
	for i := range o.blocks {
		order.Dst = append(order.Dst, int32(i))
	}
	var began time.Time
	var before time.Duration
	for i := range o.pulls + 2 {
		if i == 2 { // memory is mapped and touched, connections are open
			began, before = time.Now(), spent(os.Getpid())+spent(pid)
		}
		order.Handle.ID++
		p.Start(order)
		if e := <-events; !e.OK {
			return 0, 0, errors.New(e.Reason)
		}
	}
	took, used := time.Since(began), spent(os.Getpid())+spent(pid)-before
	want := wire.PathShared
	if o.wire.NoShared {
		want = wire.PathTCP
	}
	for _, t := range p.Traffic() {
		if t.Received > 0 && t.Path != want {
			return 0, 0, fmt.Errorf("blocks came by %s", t.Path)
		}
	}
	gb := float64(o.pulls*o.blocks*layout.BlockBytes()) / 1e9
	return gb / took.Seconds(), used.Seconds() / gb, nil
}

// spent is the processor time of a process so far, to a hundredth of a second.
func spent(pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	var user, system int64
	rest := text[lastParen(text)+2:] // the name may have blanks
	var skip string
	if _, err := fmt.Sscan(string(rest), &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &skip, &user, &system); err != nil {
		return 0
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func lastParen(b []byte) int {
	for i := len(b) - 1; i >= 0; i-- {
		if b[i] == ')' {
			return i
		}
	}
	return 0
}
