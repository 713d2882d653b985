package runner

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	"tandem/engine/tensor"
	"tandem/engine/transfer"
	"tandem/engine/transfer/wire"
)

func TestRecordKeepsTheRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := lockstep.Row{
			Row: adprouter.Row{
				Intent: adprouter.Intent(rapid.IntRange(0, 2).Draw(t, "intent")), CtxRequests: rapid.Uint16().Draw(t, "ctx"),
				GenRequests: rapid.Uint16().Draw(t, "gen"), Flags: rapid.Uint32Range(0, 1).Draw(t, "flags"),
				Active: rapid.Uint32().Draw(t, "active"), Retiring: rapid.Uint32().Draw(t, "retiring"),
				PendingNew: rapid.Uint32().Draw(t, "pending"), PayloadBytes: 77,
				ActiveTokens: rapid.Uint64().Draw(t, "tokens"), QueuedPrefill: rapid.Uint64().Draw(t, "queued"),
			},
			Waiting: rapid.Uint32().Draw(t, "waiting"), Transfer: rapid.Uint32().Draw(t, "transfer"),
			FreeBlocks: rapid.Uint32().Draw(t, "free"), CtxTokens: rapid.Uint32().Draw(t, "ctx tokens"),
			GenTokens: rapid.Uint32().Draw(t, "gen tokens"), Digest: rapid.Uint64().Draw(t, "digest"),
		}
		rec := record(9, 3, &row, 77)
		var raw [comm.RecordBytes]byte
		rec.Put(&raw)
		back, err := comm.DecodeRecord(raw[:], 3, 9)
		if err != nil {
			t.Fatal(err)
		}
		if got := rowOf(&back); got != row {
			t.Fatalf("%+v became %+v", row, got)
		}
	})
}

func sampleDelivery() *lockstep.Delivery {
	h := &transfer.Handle{
		ID: -4, Incarnation: "i", Endpoint: "tcp://127.0.0.1:9", Rank: 1, Epoch: 3, Lease: time.Second, PromptTokens: 16,
		Layout: transfer.Layout{Layers: 1, KVHeads: 1, HeadDim: 16, DType: "F32", BlockTokens: 16}, Hashes: make([]transfer.Hash, 1),
	}
	prompt := []int32{1, 2, 1 << 30}
	return &lockstep.Delivery{
		New: []*lockstep.Arrival{{
			Item:   adprouter.Item{ID: 5, Key: "k", Guest: true, Rank: -1, Relax: true, Weight: 2, Tokens: 3, Head: prompt},
			Prompt: prompt, Salt: "s", Body: []byte("body"), HandOver: true,
		}},
		Removals: []lockstep.Removal{{ID: 7, Code: request.QueueTimeout}}, Aborts: []transfer.ID{-1, 9}, Drain: true,
		Matches: []adprouter.Match{{ID: 5, Tokens: 48}}, Lent: []lockstep.Lent{{ID: 6, Handle: h}, {ID: 8}},
		Moved: []lockstep.Moved{{Key: "k", OK: true, Request: 3, Pulled: true}},
	}
}

func TestDeliveryComesBack(t *testing.T) {
	d := sampleDelivery()
	raw, err := encodeDelivery(nil, d, wire.EncodeHandle)
	if err != nil {
		t.Fatal(err)
	}
	back, err := decodeDelivery(raw, wire.DecodeHandle)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, d) {
		t.Errorf("%+v\nbecame %+v", d, back)
	}
	if raw, _ := encodeDelivery(nil, &lockstep.Delivery{}, nil); len(raw) != 0 {
		t.Errorf("an empty delivery has %d bytes", len(raw))
	}
}

func FuzzDecodeDelivery(f *testing.F) {
	raw, err := encodeDelivery(nil, sampleDelivery(), wire.EncodeHandle)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := decodeDelivery(b, wire.DecodeHandle)
		if err != nil {
			return
		}
		raw, err := encodeDelivery(nil, &d, wire.EncodeHandle)
		if err != nil {
			t.Skip("text that is not UTF-8")
		}
		if back, err := decodeDelivery(raw, wire.DecodeHandle); err != nil || !reflect.DeepEqual(back, d) {
			t.Errorf("%+v became %+v, %v", d, back, err)
		}
	})
}

func TestBodyComesBack(t *testing.T) {
	r := &request.Request{
		ID: 9, Kind: request.GenerationOnly, Prompt: []int32{1, 2}, MaxTokens: 4, Sampling: request.DefaultSampling(), Priority: 0.5,
		Deadline: 5 * time.Second, CacheSalt: "s", ConversationID: "c", AffinityKey: "a\x00b", DPRank: 3, DPRelax: true, TransferID: 1<<62 + 1,
		FirstTokens: []request.Token{{ID: 4, Logprob: -0.1, Rank: 1, Top: []request.TopLogprob{{ID: 4, Logprob: -0.1}}}}, FirstEmitted: true,
		Shown: &request.Shown{Stop: []string{"\n"}, Hidden: []int32{2}},
	}
	r.Sampling.Seed, r.Sampling.Seeded, r.Sampling.BadWords = 1<<64-1, true, [][]int32{{1}}
	data, err := encodeBody(r, []byte("handle"), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	back, opaque, err := decodeBody(data, r.Prompt, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := *r
	want.Deadline = 13 * time.Second // 3 s are left, on another clock
	if string(opaque) != "handle" || !reflect.DeepEqual(back, &want) {
		t.Errorf("%+v\nbecame %+v", want, back)
	}
}

func TestOrderComesBack(t *testing.T) {
	var b, back tensor.Batch
	b.Reset()
	b.Add([]int32{1, 2, 3}, 5, []int32{7, 8}, true)
	b.Add([]int32{4}, 0, []int32{9}, false)
	copies := []copied{{1, 2, 3}}
	raw := encodeOrder(nil, copies, &b)
	got, err := decodeOrder(raw, &back)
	if err != nil || !reflect.DeepEqual(got, copies) || !reflect.DeepEqual(back, b) {
		t.Errorf("%+v %+v became %+v %+v, %v", copies, b, got, back, err)
	}
	for n := range raw {
		if _, err := decodeOrder(raw[:n], &back); err == nil {
			t.Errorf("%d of %d bytes are taken for an order", n, len(raw))
		}
	}
}

func FuzzDecodeOrder(f *testing.F) {
	var b tensor.Batch
	b.Reset()
	b.Add([]int32{1, 2, 3}, 5, []int32{7, 8}, true)
	f.Add(encodeOrder(nil, []copied{{1, 2, 3}}, &b))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var b tensor.Batch
		copies, err := decodeOrder(raw, &b)
		if err != nil {
			return
		}
		if again := encodeOrder(nil, copies, &b); !reflect.DeepEqual(again, raw) {
			t.Errorf("% x became % x", raw, again)
		}
	})
}
