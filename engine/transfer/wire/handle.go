package wire

import (
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// Bounds of a handle. They are far above any real model and exist so that a
// lying handle costs an error, not memory.
const (
	maxHandleBytes  = 4 << 20
	maxName         = 256
	maxPrompt       = 1 << 24
	maxBlockBytes   = 1 << 30
	maxLease        = 24 * time.Hour
	hashBytes       = len(transfer.Hash{})
	maxRank         = 1 << 16
	maxLayers       = 1 << 12
	maxKVHeads      = 1 << 12
	maxHeadDim      = 1 << 14
	maxBlockTokens  = 1 << 12
	maxBlocksInPull = 1 << 20
)

// EncodeHandle returns the bytes of a handle.
func EncodeHandle(h *transfer.Handle) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&pb.Handle{
		Id:           int64(h.ID),
		Incarnation:  h.Incarnation,
		Endpoint:     h.Endpoint,
		Rank:         uint32(h.Rank),
		Epoch:        h.Epoch,
		LeaseMs:      uint32(min(h.Lease, maxLease).Milliseconds()),
		PromptTokens: uint32(h.PromptTokens),
		Layout:       encodeLayout(h.Layout),
		Root:         h.Root[:],
		Hashes:       encodeHashes(h.Hashes),
		GenFirst:     h.GenFirst,
	})
	if err != nil {
		panic(fmt.Sprintf("wire: handle of transfer %d does not encode: %v", h.ID, err)) // only invalid UTF-8 of our own
	}
	return b
}

// DecodeHandle parses and checks a handle that came from outside. The error
// names the field that is wrong.
func DecodeHandle(b []byte) (*transfer.Handle, error) {
	if len(b) > maxHandleBytes {
		return nil, fmt.Errorf("handle: %d bytes, at most %d", len(b), maxHandleBytes)
	}
	var m pb.Handle
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("handle: %w", err)
	}
	h := &transfer.Handle{
		ID:           transfer.ID(m.GetId()),
		Incarnation:  m.GetIncarnation(),
		Endpoint:     m.GetEndpoint(),
		Rank:         int(m.GetRank()),
		Epoch:        m.GetEpoch(),
		Lease:        time.Duration(m.GetLeaseMs()) * time.Millisecond,
		PromptTokens: int(m.GetPromptTokens()),
		GenFirst:     m.GetGenFirst(),
	}
	if err := checkHandle(h, &m); err != nil {
		return nil, fmt.Errorf("handle: %w", err)
	}
	var err error
	if h.Layout, err = decodeLayout(m.GetLayout()); err != nil {
		return nil, fmt.Errorf("handle: %w", err)
	}
	copy(h.Root[:], m.GetRoot())
	if h.Hashes, err = decodeHashes(m.GetHashes()); err != nil {
		return nil, fmt.Errorf("handle: hashes: %w", err)
	}
	if full := h.PromptTokens / h.Layout.BlockTokens; len(h.Hashes) > full {
		return nil, fmt.Errorf("handle: hashes: %d for %d full blocks", len(h.Hashes), full)
	}
	return h, nil
}

func checkHandle(h *transfer.Handle, m *pb.Handle) error {
	if h.GenFirst {
		if h.ID != 0 || h.Epoch != 0 || h.PromptTokens != 0 || len(m.GetHashes()) > 0 {
			return fmt.Errorf("a gen_first handle has parts of a request")
		}
	} else if h.ID == 0 || h.PromptTokens == 0 {
		return fmt.Errorf("id or prompt_tokens is missing")
	}
	if h.Incarnation == "" || len(h.Incarnation) > maxName {
		return fmt.Errorf("incarnation has %d bytes, want 1..%d", len(h.Incarnation), maxName)
	}
	if len(h.Endpoint) > maxName {
		return fmt.Errorf("endpoint has %d bytes, at most %d", len(h.Endpoint), maxName)
	}
	if _, _, err := splitEndpoint(h.Endpoint); err != nil {
		return err
	}
	if len(m.GetRoot()) != hashBytes {
		return fmt.Errorf("root has %d bytes, want %d", len(m.GetRoot()), hashBytes)
	}
	return firstError(
		inRange("rank", uint64(m.GetRank()), 0, maxRank),
		inRange("lease_ms", uint64(m.GetLeaseMs()), 1, uint64(maxLease.Milliseconds())),
		inRange("prompt_tokens", uint64(m.GetPromptTokens()), 0, maxPrompt),
	)
}

func encodeLayout(l transfer.Layout) *pb.Layout {
	return &pb.Layout{
		Layers: uint32(l.Layers), KvHeads: uint32(l.KVHeads), HeadDim: uint32(l.HeadDim),
		Dtype: l.DType, BlockTokens: uint32(l.BlockTokens), Packing: l.Packing, KeyLines: uint32(l.KeyLines),
	}
}

func decodeLayout(m *pb.Layout) (transfer.Layout, error) {
	l := transfer.Layout{
		Layers: int(m.GetLayers()), KVHeads: int(m.GetKvHeads()), HeadDim: int(m.GetHeadDim()),
		DType: m.GetDtype(), BlockTokens: int(m.GetBlockTokens()), Packing: m.GetPacking(), KeyLines: int(m.GetKeyLines()),
	}
	if !slices.Contains([]string{"F32", "BF16", "F16", "F8", "I8"}, l.DType) {
		return l, fmt.Errorf("layout.dtype %.20q is not F32, BF16, F16, F8 or I8", l.DType)
	}
	if len(l.Packing) > maxName {
		return l, fmt.Errorf("layout.packing has %d bytes, at most %d", len(l.Packing), maxName)
	}
	err := firstError(
		inRange("layout.layers", uint64(m.GetLayers()), 1, maxLayers),
		inRange("layout.kv_heads", uint64(m.GetKvHeads()), 1, maxKVHeads),
		inRange("layout.head_dim", uint64(m.GetHeadDim()), 1, maxHeadDim),
		inRange("layout.block_tokens", uint64(m.GetBlockTokens()), 1, maxBlockTokens),
		inRange("layout.key_lines", uint64(m.GetKeyLines()), 0, maxHeadDim),
	)
	if err != nil {
		return l, err
	}
	// The product of the bounds above fits an int64.
	return l, inRange("layout: bytes of a block", uint64(l.BlockBytes()), 1, maxBlockBytes)
}

func encodeHashes(hashes []transfer.Hash) []byte {
	b := make([]byte, 0, len(hashes)*hashBytes)
	for i := range hashes {
		b = append(b, hashes[i][:]...)
	}
	return b
}

func decodeHashes(b []byte) ([]transfer.Hash, error) {
	if len(b)%hashBytes != 0 || len(b) > maxHandleBytes {
		return nil, fmt.Errorf("%d bytes are not a list of %d-byte hashes", len(b), hashBytes)
	}
	hashes := make([]transfer.Hash, len(b)/hashBytes)
	for i := range hashes {
		copy(hashes[i][:], b[i*hashBytes:])
	}
	return hashes, nil
}

func inRange(field string, v, low, high uint64) error {
	if v < low || v > high || v > math.MaxInt64 {
		return fmt.Errorf("%s %d is out of range %d..%d", field, v, low, high)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
