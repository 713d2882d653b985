package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

func sampleHandle() *transfer.Handle {
	return &transfer.Handle{
		ID: -1 << 62, Incarnation: "ctx-7f", Endpoint: "tcp://10.1.2.3:7001", Rank: 3, Epoch: 9,
		Lease: 60 * time.Second, PromptTokens: 11, Layout: testLayout,
		Root: transfer.Hash{1, 2}, Hashes: []transfer.Hash{{3}, {4}},
	}
}

func TestHandleRoundTrip(t *testing.T) {
	h := sampleHandle()
	got, err := DecodeHandle(EncodeHandle(h))
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Fatalf("got %+v, %v\nwant %+v", got, err, h)
	}
	if n := len(EncodeHandle(h)); n > 200 {
		t.Errorf("%d bytes for a small handle", n)
	}
}

func TestLyingHandles(t *testing.T) {
	cases := []struct {
		field string
		lie   func(*pb.Handle)
	}{
		{"id", func(h *pb.Handle) { h.Id = 0 }},
		{"incarnation", func(h *pb.Handle) { h.Incarnation = "" }},
		{"incarnation", func(h *pb.Handle) { h.Incarnation = strings.Repeat("x", 300) }},
		{"endpoint", func(h *pb.Handle) { h.Endpoint = "" }},
		{"endpoint", func(h *pb.Handle) { h.Endpoint = "http://a:1" }},
		{"endpoint", func(h *pb.Handle) { h.Endpoint = "tcp://a" }},
		{"endpoint", func(h *pb.Handle) { h.Endpoint = "tcp://a:0" }},
		{"rank", func(h *pb.Handle) { h.Rank = 1 << 20 }},
		{"lease_ms", func(h *pb.Handle) { h.LeaseMs = 0 }},
		{"lease_ms", func(h *pb.Handle) { h.LeaseMs = 1 << 31 }},
		{"prompt_tokens", func(h *pb.Handle) { h.PromptTokens = 0 }},
		{"prompt_tokens", func(h *pb.Handle) { h.PromptTokens = 1 << 31 }},
		{"layout", func(h *pb.Handle) { h.Layout = nil }},
		{"layout.layers", func(h *pb.Handle) { h.Layout.Layers = 1 << 30 }},
		{"layout.kv_heads", func(h *pb.Handle) { h.Layout.KvHeads = 0 }},
		{"layout.head_dim", func(h *pb.Handle) { h.Layout.HeadDim = 1 << 31 }},
		{"layout.block_tokens", func(h *pb.Handle) { h.Layout.BlockTokens = 0 }},
		{"layout.dtype", func(h *pb.Handle) { h.Layout.Dtype = "Q4" }},
		{"layout.packing", func(h *pb.Handle) { h.Layout.Packing = strings.Repeat("x", 300) }},
		{"bytes of a block", func(h *pb.Handle) { h.Layout.Layers, h.Layout.HeadDim, h.Layout.KvHeads = 4096, 4096, 4096 }},
		{"root", func(h *pb.Handle) { h.Root = []byte{1} }},
		{"hashes", func(h *pb.Handle) { h.Hashes = make([]byte, 17) }},
		{"hashes", func(h *pb.Handle) { h.Hashes = make([]byte, 16*3) }},
	}
	for _, c := range cases {
		var m pb.Handle
		if err := proto.Unmarshal(EncodeHandle(sampleHandle()), &m); err != nil {
			t.Fatal(err)
		}
		c.lie(&m)
		b, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = DecodeHandle(b); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: error %v", c.field, err)
		}
	}
	if _, err := DecodeHandle(make([]byte, maxHandleBytes+1)); err == nil {
		t.Error("a huge handle was parsed")
	}
}

func FuzzDecodeHandle(f *testing.F) {
	f.Add(EncodeHandle(sampleHandle()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHandle(b)
		if err != nil {
			return
		}
		again, err := DecodeHandle(EncodeHandle(h))
		if err != nil || !reflect.DeepEqual(h, again) {
			t.Fatalf("%+v decodes differently after encoding: %+v, %v", h, again, err)
		}
		if n := h.Layout.BlockBytes(); n <= 0 || n > maxBlockBytes {
			t.Fatalf("blocks of %d bytes", n)
		}
	})
}

func FuzzReadPull(f *testing.F) {
	good := pullRequest{token: token{1}, first: 2, blocks: 3, layerTo: 4, heads: [][2]uint16{{0, 2}, {4, 6}}}
	f.Add(good.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		p, err := readPull(r)
		if err != nil {
			return
		}
		if used := b[:len(b)-r.Len()]; !bytes.Equal(p.encode(), used) {
			t.Fatalf("%+v encodes differently", p)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	payload := []byte("sixteen bytes...")
	want := frameHeader{seq: 1, block: 2, layerTo: 2}
	var header [frameHeaderBytes]byte
	h := want
	h.bytes = uint32(len(payload))
	h.put(&header)
	frame := append(header[:], payload...)
	frame = binary.LittleEndian.AppendUint32(frame, addSum(0, frame))
	f.Add(frame, false, false)
	f.Add(append(frame, frame...), false, true)
	f.Add(append(append(header[:], payload...), 0, 0, 0, 0), true, false)
	f.Fuzz(func(t *testing.T, b []byte, plain, more bool) {
		got := make([]byte, len(payload)+8)
		guard := got[len(payload):]
		r := &frameReader{in: bytes.NewReader(b), plain: plain}
		err := r.next(want, got[:len(payload):len(payload)], more)
		if !bytes.Equal(guard, make([]byte, 8)) {
			t.Fatal("wrote beyond the block")
		}
		if err == nil && !bytes.Equal(b[frameHeaderBytes:frameHeaderBytes+len(payload)], got[:len(payload)]) {
			t.Fatal("accepted other bytes")
		}
		if err == nil && more {
			want := want
			want.seq++
			err = r.next(want, got[:len(payload):len(payload)], false)
		}
		if err != nil && !errors.Is(err, errCorrupt) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("unexpected error %v", err)
		}
	})
}

// TestServerSurvivesGarbage: foreign bytes on the byte path close that
// connection and nothing else.
func TestServerSurvivesGarbage(t *testing.T) {
	o := newOwner(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024).fill(1))
	for _, b := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\nxxxxxxxxxxxxxxxx"),
		(&pullRequest{token: token{9}, layerTo: 2, blocks: 1}).encode(),
		(&pullRequest{layerFrom: 3, layerTo: 2}).encode(),
	} {
		c, err := (&network{}).dial(t.Context(), o.dataAddr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, errCorrupt) || isTimeout(err) {
			t.Errorf("%q: read %d, %v", b, n, err)
		}
		_ = c.Close()
	}
	g := newGen(t, Config{NoLocal: true, NoShared: true}, newPool(16, 1024))
	g.pullTo(o.offer(1, 0, 16), 0, 0)
	checkOK(t, g.final(t, 1), 16)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []Config{{Port: -1}, {DataPort: 70000}, {IdleTimeout: -1}, {Incarnation: strings.Repeat("x", 999)}} {
		if _, err := Listen(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}
