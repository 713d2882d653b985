package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
	"tandem/test/ports"
)

// lockDevice is a counting device whose passes are collective: it fails the test
// when ranks run different passes, and never returns when one does not run.
type lockDevice struct {
	counting
	t      *testing.T
	rank   int
	meet   *meeting
	check  func(*tensor.Batch) error // if set, judges batches
	fault  atomic.Pointer[func()]
	broken atomic.Bool            // passes fail before the peers are met
	late   atomic.Pointer[func()] // like fault, once the peers have met
}

// strike lets f happen once, on the rank's goroutine in its next pass.
func (d *lockDevice) strike(f func()) { d.fault.Store(&f) }

// meeting is where the devices of all ranks come together in each pass.
type meeting struct {
	size  int
	mu    sync.Mutex
	rows  [][]int
	here  int
	open  chan struct{}
	ended chan struct{} // closed when the group ends
	steps atomic.Int64
}

func (m *meeting) join(t *testing.T, rank int, own int, rows []int) error {
	m.mu.Lock()
	if len(rows) != m.size || rows[rank] != own {
		t.Errorf("rank %d has %d rows in a pass of %v", rank, own, rows)
	}
	m.rows = append(m.rows, slices.Clone(rows))
	if !slices.Equal(rows, m.rows[0]) {
		t.Errorf("ranks run passes of %v and %v", m.rows[0], rows)
	}
	open := m.open
	if m.here++; m.here == m.size {
		m.here, m.rows, m.open = 0, nil, make(chan struct{})
		m.steps.Add(1)
		close(open)
	}
	m.mu.Unlock()
	select {
	case <-open:
		return nil
	case <-m.ended:
		return errors.New("the group ended in a pass")
	}
}

func (d *lockDevice) Check(b *tensor.Batch) error {
	if d.check != nil {
		return d.check(b)
	}
	return nil
}

func (d *lockDevice) Run(b *tensor.Batch) ([]float32, error) {
	if f := d.fault.Swap(nil); f != nil {
		(*f)()
	}
	if d.broken.Load() {
		return nil, errors.New("a broken pass")
	}
	if err := d.meet.join(d.t, d.rank, b.Rows(), b.RankRows); err != nil {
		return nil, err
	}
	if f := d.late.Swap(nil); f != nil {
		(*f)()
	}
	return d.counting.Run(b)
}

// world is an instance of ranks, in one process or several, for tests.
type world struct {
	t       *testing.T
	meet    *meeting
	devices []*lockDevice
	engines []*Engine // of the processes, the leader first
	died    []chan error
	servers []*wire.Server
}

type worldConfig struct {
	size   int
	spans  []comm.Span // nil = one process
	core   func(*executor.Config)
	router func(*adprouter.Config)
	step   func(*lockstep.Config)
	comm   func(*comm.Config)
	wrap   func(g *comm.Group, rank int) comm.Comm

	balance func() *adprouter.Balance
	wire    bool // blocks can be moved

	transport func(tell func(any)) Transport // of each rank, without wire
}

// pages are the blocks of a device that keeps none.
type pages [64][2048]byte

func (p *pages) Block(id int32) []byte { return p[id][:] }

func testCore() executor.Config {
	core := executor.DefaultConfig()
	core.Vocab, core.Blocks, core.MaxSeqLen, core.Namespace = vocab, 64, 256, "test@0"
	core.Layout = transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}
	return core
}

func newWorld(t *testing.T, c worldConfig) *world {
	t.Helper()
	w := &world{t: t, meet: &meeting{size: c.size, open: make(chan struct{}), ended: make(chan struct{})}}
	for rank := range c.size {
		w.devices = append(w.devices, &lockDevice{t: t, rank: rank, meet: w.meet})
	}
	spans, addr := c.spans, ""
	if spans == nil {
		spans = []comm.Span{{Last: c.size - 1}}
	} else {
		addr = ports.Address(t)
	}
	for _, span := range spans {
		w.engines = append(w.engines, w.engine(c, span, addr))
	}
	// One that cannot connect leaves no other waiting for it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range slices.Backward(w.engines) {
		wg.Go(func() {
			if err := e.Connect(ctx); err != nil {
				t.Error(err)
				cancel()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, e := range w.engines {
		if c.wrap != nil {
			for _, m := range e.group.members {
				m.comm = c.wrap(e.group.comm, m.id)
			}
		}
		died := make(chan error, 1)
		go func() { died <- e.Run(context.WithoutCancel(t.Context())) }()
		w.died = append(w.died, died)
	}
	var once sync.Once
	for _, e := range w.engines {
		go func() {
			<-e.group.comm.Done()
			once.Do(func() { close(w.meet.ended) })
		}()
	}
	return w
}

func (w *world) engine(c worldConfig, span comm.Span, addr string) *Engine {
	core := testCore()
	if c.core != nil {
		c.core(&core)
	}
	router := adprouter.Defaults(c.size, core.EffectiveBatch())
	router.Kind = adprouter.ConversationAware
	if c.router != nil {
		c.router(&router)
	}
	step := lockstep.Config{Router: router, MaxQueued: core.MaxQueued, QueueTimeout: core.QueueTimeout}
	if c.step != nil {
		c.step(&step)
	}
	cc := comm.Config{Size: c.size, Timeout: 3 * time.Minute}
	if c.comm != nil {
		c.comm(&cc)
	}
	var server *wire.Server
	if c.wire {
		var err error
		core.Incarnation = fmt.Sprint("life of ", span)
		if server, err = wire.Listen(wire.Config{Incarnation: core.Incarnation}); err != nil {
			w.t.Fatal(err)
		}
		core.Endpoint = server.Endpoint()
		w.servers = append(w.servers, server)
	}
	g := GroupConfig{
		Config: Config{Idle: time.Minute, Core: core, Info: Info{Vocab: vocab, Ranks: c.size, Leader: span.First == 0, Role: core.Role}},
		Ranks:  span, Addr: addr, Comm: cc, Step: step, NewBalance: c.balance,
	}
	var e *Engine
	var members []Member
	for rank := span.First; rank <= span.Last; rank++ {
		m := Member{Device: w.devices[rank]}
		if c.transport != nil {
			m.Transport = c.transport(func(ev any) { e.TransferEvent(rank, ev) })
		}
		if server != nil {
			m.Transport = server.Rank(rank, new(pages), func(ev any) { e.TransferEvent(rank, ev) })
		}
		members = append(members, m)
	}
	var err error
	e, err = NewGroup(g, members)
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// stop drains the instance and wants every process to end well.
func (w *world) stop() {
	w.t.Helper()
	w.drain(20 * time.Second)
	w.close()
}

// drain ends the instance, which cancels what is left after a grace.
func (w *world) drain(grace time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), grace)
	defer cancel()
	w.engines[0].Shutdown(ctx)
	for i, died := range w.died {
		if err := <-died; err != nil {
			w.t.Errorf("process %d: %v", i, err)
		}
	}
	for _, e := range w.engines {
		for _, m := range e.group.members {
			if err := m.lock.Check(); err != nil {
				w.t.Errorf("rank %d: %v", m.id, err)
			}
			if s := m.core.Stats(); s.BlocksActive+s.BlocksLeased+s.BlocksReceiving+s.Holds != 0 {
				w.t.Errorf("rank %d keeps %+v", m.id, s)
			}
		}
	}
}

// close ends what belongs to the processes beside their engines, after these.
func (w *world) close() {
	w.t.Helper()
	for _, s := range w.servers {
		s.Close()
	}
	goleak.VerifyNone(w.t)
}

func spansOf(size int) map[string][]comm.Span {
	all := map[string][]comm.Span{"one process": nil}
	if size > 1 {
		all["two processes"] = []comm.Span{{First: 0, Last: size/2 - 1}, {First: size / 2, Last: size - 1}}
	}
	return all
}

func TestGroupGenerates(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4} {
		for name, spans := range spansOf(size) {
			t.Run(fmt.Sprintf("%d ranks in %s", size, name), func(t *testing.T) {
				w := newWorld(t, worldConfig{size: size, spans: spans})
				e := w.engines[0]
				var wg sync.WaitGroup
				used := make([]atomic.Int32, size)
				for i := range 24 {
					wg.Add(1)
					go func() {
						defer wg.Done()
						r := greedy(e, 5, int32(i), int32(i+10))
						r.ConversationID = fmt.Sprint(i % 6)
						s, err := e.Submit(t.Context(), r, nil)
						if err != nil {
							t.Error(err)
							return
						}
						ids, last := collect(t, s)
						if len(ids) != 5 || ids[0] != int32(i+11)%vocab || last.Finish != request.FinishLength {
							t.Errorf("request %d: %v %q %v", i, ids, last.Finish, last.Err)
						}
						route, ok := s.Route()
						if !ok {
							t.Errorf("request %d has no route", i)
						}
						used[route.Rank].Add(1)
					}()
				}
				wg.Wait()
				for rank := range used {
					if used[rank].Load() == 0 {
						t.Errorf("rank %d got nothing", rank)
					}
				}
				w.stop()
				for _, e := range w.engines {
					for _, m := range e.group.members {
						timed := func(s executor.StepRecord) bool { return s.Run > 0 }
						if !slices.ContainsFunc(m.core.Recorder().Steps(nil), timed) {
							t.Errorf("rank %d recorded no time of any step", m.id)
						}
					}
				}
			})
		}
	}
}
