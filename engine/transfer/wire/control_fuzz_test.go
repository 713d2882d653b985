package wire

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// FuzzPullerMessages gives a ctx worker's control stream whatever a puller may send, before it has a
// lease and while it reads. What reaches the core must be sound.
func FuzzPullerMessages(f *testing.F) {
	srv, err := Listen(Config{Incarnation: "ctx-1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(srv.Close)
	var got []any
	owner := srv.Rank(0, newPool(4, testLayout.BlockBytes()), func(m any) { got = append(got, m) })
	for _, m := range []*pb.PullerMessage{
		{Kind: &pb.PullerMessage_Attach{Attach: &pb.Attach{Id: 7, Incarnation: "ctx-1", Epoch: 1, Layout: encodeLayout(testLayout), Have: make([]byte, 2*hashBytes)}}},
		{Kind: &pb.PullerMessage_Attach{Attach: &pb.Attach{
			Id: 7, Incarnation: "ctx-1", Layout: encodeLayout(testLayout), GenFirst: true, Prompt: make([]byte, hashBytes), PromptTokens: 9, Early: true,
		}}},
		{Kind: &pb.PullerMessage_Done{Done: &pb.Done{Epoch: 1}}},
		{Kind: &pb.PullerMessage_Cancel{Cancel: &pb.Cancel{Id: 7, Incarnation: "ctx-1", GenFirst: true}}},
		{Kind: &pb.PullerMessage_KeepAlive{KeepAlive: &pb.KeepAlive{Id: 7, Incarnation: "ctx-1", Epoch: 1}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b, true)
	}
	f.Fuzz(func(t *testing.T, a, b []byte, accepted bool) {
		got = got[:0]
		ss := srv.open()
		if ss == nil {
			t.Fatal("the server is closed")
		}
		defer srv.forget(ss)
		for i, data := range [][]byte{a, b} {
			var m pb.PullerMessage
			if proto.Unmarshal(data, &m) != nil {
				continue
			}
			if ss.handle(&m) != nil {
				break
			}
			if i == 0 && accepted {
				ss.grant(owner, transfer.Accept{Peer: ss.peer, ID: ss.id, Epoch: 1, Blocks: []int32{1, 2}})
			}
		}
		ss.detach(nil)
		attached := 0
		for _, m := range got {
			if at, ok := m.(transfer.Attach); ok {
				if n := at.Layout.BlockBytes(); at.Peer != ss.peer || at.PromptTokens < 0 || at.PromptTokens > maxPrompt || n <= 0 || n > maxBlockBytes {
					t.Fatalf("%+v reached the core", at)
				}
				attached++
			}
		}
		if attached > 1 {
			t.Fatalf("%d ATTACHes of one stream reached the core", attached)
		}
	})
}

// FuzzAccept gives a puller whatever a ctx worker may grant it.
func FuzzAccept(f *testing.F) {
	good, err := proto.Marshal(&pb.Accept{Skip: 1, Blocks: 2, Coming: 1, BlockBytes: uint32(testLayout.BlockBytes()), Token: make([]byte, tokenBytes), DataPort: 7})
	if err != nil {
		f.Fatal(err)
	}
	tokens, err := proto.Marshal(&pb.Fin{FirstGenTokens: []*pb.Token{{Id: 3, Logprob: -1}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, tokens)
	f.Fuzz(func(t *testing.T, accept, fin []byte) {
		h := *sampleHandle()
		pl := &pull{order: transfer.Pull{Handle: h, Have: h.Hashes[:1]}}
		var a pb.Accept
		if proto.Unmarshal(accept, &a) == nil && pl.checkAccept(&a) == nil {
			if n := int(a.GetSkip()) + int(a.GetBlocks()); n != h.Layout.Blocks(h.PromptTokens) || a.GetSkip() > 1 || a.GetComing() > a.GetBlocks() {
				t.Fatalf("%+v was taken", &a)
			}
		}
		var end pb.Fin
		if proto.Unmarshal(fin, &end) != nil {
			return
		}
		if first, err := decodeTokens(end.GetFirstGenTokens()); err == nil && len(first) != len(end.GetFirstGenTokens()) {
			t.Fatalf("%d tokens of %d", len(first), len(end.GetFirstGenTokens()))
		}
	})
}
