package reference

import "tandem/engine/tensor"

// Columns implements Ops.
func (b *Backend) Columns(tensor.Buffer, int, int) tensor.Buffer {
	b.check(false, "Columns: no group")
	return tensor.None
}

// GatherColumns implements Ops.
func (b *Backend) GatherColumns(tensor.Buffer, []int) { b.check(false, "GatherColumns: no group") }

// Shared implements Ops.
func (b *Backend) Shared(int) tensor.Buffer {
	b.check(false, "Shared: no group")
	return tensor.None
}

// GatherRows implements Ops.
func (b *Backend) GatherRows(_, _ tensor.Buffer) { b.check(false, "GatherRows: no group") }

// OwnRows implements Ops.
func (b *Backend) OwnRows(_, _ tensor.Buffer) { b.check(false, "OwnRows: no group") }

// AddShares implements Ops.
func (b *Backend) AddShares(_, _ tensor.Buffer) { b.check(false, "AddShares: no group") }
