package cpu

import (
	"context"
	"errors"

	"tandem/engine/tensor"
)

// Group is what a backend needs of the collective that its rank belongs to; the
// results must not depend on the order in which ranks arrive. dst and src are
// laid out as in engine/comm.
type Group interface {
	ID() int
	Size() int
	// AllGather gives every rank the rows of all, one after another.
	AllGather(ctx context.Context, dst, src []float32, rows []int, width int) error
	// ReduceScatter gives each rank the sum over all ranks of its rows.
	ReduceScatter(ctx context.Context, dst, src []float32, rows []int, width int) error
}

var errNoGroup = errors.New("the backend has no group")

// Columns is a view of some columns of a buffer.
func (b *Backend) Columns(tensor.Buffer, int, int) tensor.Buffer {
	b.fail(errNoGroup)
	return tensor.None
}

// GatherColumns completes a buffer of which each rank has written some columns.
func (b *Backend) GatherColumns(tensor.Buffer, []int) { b.fail(errNoGroup) }

// Shared declares an activation for the rows of all ranks.
func (b *Backend) Shared(int) tensor.Buffer {
	b.fail(errNoGroup)
	return tensor.None
}

// GatherRows sets out to the rows of all ranks in x.
func (b *Backend) GatherRows(_, _ tensor.Buffer) { b.fail(errNoGroup) }

// OwnRows sets x to this rank's rows of in.
func (b *Backend) OwnRows(_, _ tensor.Buffer) { b.fail(errNoGroup) }

// AddShares adds the sum of the ranks' shares to x.
func (b *Backend) AddShares(_, _ tensor.Buffer) { b.fail(errNoGroup) }
