//go:build cuda

package measure

import (
	"errors"
	"time"

	"tandem/engine/cuda/gpu"
	kernels "tandem/kernels/cuda"
)

// copies measures what the memory gives.
func (b *bench) copies() error {
	return b.report(Result{Name: Copy, Bytes: float64(2 * b.Bytes)}, func(int) error { return b.s.Copy(b.y, b.x, b.Bytes) })
}

// norm runs over many rows at once.
func (b *bench) norm() error {
	k, err := b.kernel("td_rmsnorm")
	if err != nil {
		return err
	}
	cols := b.Model.Hidden
	rows := int(b.Bytes / int64(4*cols))
	return b.report(Result{Name: "RMSNorm", Rows: rows, N: cols, Bytes: float64(rows) * float64(cols) * 6}, func(int) error {
		b.args.Reset().Ptr(b.y).Ptr(b.x).Ptr(0).Ptr(b.x).I32(cols).F32(1e-5)
		return b.launch(k, kernels.Norm(rows))
	})
}

// launches measures what a kernel costs that does next to nothing.
func (b *bench) launches() error {
	k, err := b.kernel("td_fill_f32")
	if err != nil {
		return err
	}
	one := func(int) error {
		b.args.Reset().Ptr(b.y).I64(4).I64(1).F32(1).F32(0)
		return b.launch(k, kernels.Each(4, 4))
	}
	if err := b.report(Result{Name: "launch"}, one); err != nil {
		return err
	}
	begin := time.Now()
	for i := range b.Calls {
		if err := one(i); err != nil {
			return err
		}
	}
	b.emit(Result{Name: "launch, time of the host", Seconds: time.Since(begin).Seconds() / float64(b.Calls)})
	if err := b.s.Sync(); err != nil {
		return err
	}
	if err := b.graphs("launch in a graph", one); err != nil || b.dev.Info().Capability < 90 {
		return err
	}
	b.overlap = true
	defer func() { b.overlap = false }()
	return b.graphs("launch in a graph, overlapping", one)
}

// graphNodes is about what a step of a model of 32 layers has.
const graphNodes = 256

func (b *bench) graphs(name string, one func(int) error) (err error) {
	g, err := b.s.Capture(func() error {
		for i := range min(graphNodes, 8*b.Calls) {
			if err := one(i); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Free()) }()
	d, err := b.time(func(int) error { return b.s.Run(g) })
	if err != nil {
		return err
	}
	b.emit(Result{Name: name, Batch: g.Nodes(), Seconds: d / float64(g.Nodes())})
	return b.graphHost(name+", time of the host", g)
}

// graphHost is the time that the host takes to launch a graph on an idle device.
func (b *bench) graphHost(name string, g *gpu.Graph) error {
	var sum time.Duration
	for range b.Calls {
		begin := time.Now()
		if err := b.s.Run(g); err != nil {
			return err
		}
		sum += time.Since(begin)
		if err := b.s.Sync(); err != nil {
			return err
		}
	}
	b.emit(Result{Name: name, Batch: g.Nodes(), Seconds: sum.Seconds() / float64(b.Calls*g.Nodes())})
	return nil
}
