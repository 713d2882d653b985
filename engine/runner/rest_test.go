package runner

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"tandem/engine/adprouter"
	"tandem/engine/blockhash"
	"tandem/engine/comm"
	"tandem/engine/executor"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/transfer"
)

// frozen is the transport of a rank whose peers say nothing.
type frozen struct {
	handle transfer.Handle
	tell   func(any)
}

func (*frozen) Start(transfer.Pull)                      {}
func (f *frozen) Stop(id transfer.ID)                    { f.tell(transfer.PullEvent{ID: id, Done: true}) }
func (*frozen) KeepAlive(transfer.Handle, time.Duration) {}
func (*frozen) Release(transfer.Handle)                  {}
func (*frozen) Accept(transfer.Accept)                   {}
func (*frozen) Reject(transfer.Reject)                   {}
func (*frozen) DoneReply(transfer.DoneReply)             {}
func (*frozen) Progress(transfer.Progress)               {}
func (*frozen) End(transfer.End)                         {}
func (*frozen) Revoke(transfer.ID)                       {}
func (*frozen) EncodeHandle(*transfer.Handle) []byte     { return []byte("handle") }
func (f *frozen) DecodeHandle(b []byte) (*transfer.Handle, error) {
	h := f.handle
	_, err := fmt.Sscanf(string(b), "%d", &h.ID)
	return &h, err
}

// counted counts exchanges.
type counted struct {
	comm.Comm
	n atomic.Int64
}

func (c *counted) Exchange(ctx context.Context, r comm.Record) ([]comm.Record, error) {
	c.n.Add(1)
	return c.Comm.Exchange(ctx, r)
}

// Requests that only wait, for peers that stand still and in the queue behind
// them, cost no iterations.
func TestGroupRests(t *testing.T) {
	for i, kind := range []adprouter.Kind{adprouter.Default, adprouter.KVCacheAware, adprouter.ConversationAware} {
		for name, spans := range spansOf(2) {
			for _, drain := range []bool{false, true} {
				if i > 0 && drain == (spans == nil) {
					continue // once is enough
				}
				t.Run(fmt.Sprintf("%s in %s, drain %t", kind, name, drain), func(t *testing.T) {
					core, meets := testCore(), &counted{}
					handle := transfer.Handle{Incarnation: "x", Endpoint: "tcp://127.0.0.1:1", Epoch: 1, Layout: core.Layout, PromptTokens: 5, Root: blockhash.Root(core.Namespace, "", ""), Lease: time.Minute}
					w := newWorld(t, worldConfig{
						size: 2, spans: spans, wrap: func(g *comm.Group, rank int) comm.Comm {
							if rank == 0 {
								meets.Comm = g.Rank(0)
								return meets
							}
							return g.Rank(rank)
						},
						transport: func(tell func(any)) Transport { return &frozen{handle, tell} },
						core: func(k *executor.Config) {
							k.Role, k.MaxBatch, k.MaxConcurrentRecv = executor.Gen, 2, 1
							k.Attach, k.Progress, k.RecvTotal = time.Minute, time.Minute, time.Minute
						},
						router: func(r *adprouter.Config) { r.Kind, r.Cap = kind, 2 },
						step:   func(s *lockstep.Config) { s.QueueTimeout = time.Minute },
					})
					e := w.engines[0]
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					for i := range 7 {
						r := greedy(e, 4, 1, 2, 3, 4, 5)
						r.Kind, r.TransferID, r.FirstTokens = request.GenerationOnly, int64(i+1), []request.Token{{ID: 6}}
						go func() { _, _ = e.Submit(ctx, r, fmt.Append(nil, i+1)) }()
					}
					await(t, func() bool {
						st := e.Stats(time.Minute)
						return st.Queued == 3 && st.Receiving == 2
					})
					ended := make(chan struct{})
					if drain {
						go func() { defer close(ended); e.Shutdown(ctx) }()
						await(t, e.status.draining)
					} else {
						close(ended)
					}
					// Iterations end soon after the last one that had something to do, however late that was.
					await(t, func() bool {
						before := meets.n.Load()
						time.Sleep(100 * time.Millisecond)
						return meets.n.Load()-before <= 5
					})
					leave()
					within(t, 2*time.Minute, func() { <-ended; w.drain(20 * time.Millisecond) })
					w.close()
				})
			}
		}
	}
}

func await(t *testing.T, what func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it does not come")
		}
	}
}
