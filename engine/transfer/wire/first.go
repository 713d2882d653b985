package wire

import (
	"fmt"

	"tandem/engine/transfer"
	pb "tandem/engine/transfer/transferpb"
)

// The generation-first style on the wire: an ATTACH that any rank may have to
// answer, and the first tokens that FIN carries.

// Bounds of what FIN may carry.
const (
	maxFirstTokens = 128
	maxTopLogprobs = 64
)

func encodeTokens(in []transfer.Token) []*pb.Token {
	out := make([]*pb.Token, len(in))
	for i, t := range in {
		out[i] = &pb.Token{Id: t.ID, Logprob: t.Logprob, Rank: uint32(t.Rank)}
		for _, top := range t.Top {
			out[i].Top = append(out[i].Top, &pb.TopLogprob{Id: top.ID, Logprob: top.Logprob})
		}
	}
	return out
}

// decodeTokens reads first tokens; whether their ids exist is the core's to judge.
func decodeTokens(in []*pb.Token) ([]transfer.Token, error) {
	if len(in) > maxFirstTokens {
		return nil, fmt.Errorf("first_gen_tokens: %d tokens, at most %d", len(in), maxFirstTokens)
	}
	out := make([]transfer.Token, len(in))
	for i, t := range in {
		if len(t.GetTop()) > maxTopLogprobs || t.GetRank() > 1<<30 {
			return nil, fmt.Errorf("first_gen_tokens: %d alternatives at rank %d", len(t.GetTop()), t.GetRank())
		}
		out[i] = transfer.Token{ID: t.GetId(), Logprob: t.GetLogprob(), Rank: int(t.GetRank())}
		for _, top := range t.GetTop() {
			out[i].Top = append(out[i].Top, transfer.TopLogprob{ID: top.GetId(), Logprob: top.GetLogprob()})
		}
	}
	return out, nil
}

// fin tells a puller that all its blocks are computed.
func (ss *session) fin() {
	ss.mu.Lock()
	m := &pb.Fin{Epoch: ss.epoch, Blocks: uint32(len(ss.blocks)), FirstGenTokens: encodeTokens(ss.first)}
	ss.mu.Unlock()
	ss.send(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Fin{Fin: m}})
}

// attachFirst asks every rank for a transfer that none may have yet.
func (ss *session) attachFirst(m transfer.Attach, layers int) error {
	ranks := ss.srv.all()
	ss.mu.Lock()
	if ss.phase != phaseOpen {
		ss.mu.Unlock()
		return errSecondAttach
	}
	ss.phase, ss.id, ss.layers, ss.asked = phaseAttached, m.ID, layers, ranks
	ss.mu.Unlock()
	for _, t := range ranks {
		t.inbox(m)
	}
	return nil
}

// claim notes the rank that has the transfer and lets the others forget it.
func (ss *session) claim(t *Transport, id transfer.ID) {
	ss.mu.Lock()
	if ss.phase != phaseAttached || ss.id != id || ss.rank != nil {
		ss.mu.Unlock()
		return
	}
	ss.rank = t
	others := ss.asked
	ss.asked = nil
	ss.mu.Unlock()
	for _, o := range others {
		if o != t {
			o.inbox(transfer.Detach{Peer: ss.peer, ID: id, Cancelled: true, Reason: "another rank has the transfer"})
		}
	}
}

// owners are the ranks that know of the session's puller.
func (ss *session) owners() []*Transport {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.rank != nil {
		return []*Transport{ss.rank}
	}
	return ss.asked
}

// Progress tells a puller that its transfer is alive, and which blocks are computed.
func (t *Transport) Progress(p transfer.Progress) {
	ss := t.srv.session(p.Peer)
	if ss == nil {
		return
	}
	if p.Claimed {
		ss.claim(t, p.ID)
	}
	m := &pb.Progress{}
	if p.Ready > 0 || p.Whole {
		if !ss.grown(t, p) {
			return
		}
		if p.Whole {
			ss.fin()
			return
		}
		m.Blocks = uint32(p.Ready)
	}
	ss.send(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Progress{Progress: m}})
}

// End tells a puller that its request ended with its first token.
func (t *Transport) End(e transfer.End) {
	if ss := t.srv.session(e.Peer); ss != nil {
		ss.finish(&pb.OwnerMessage{Kind: &pb.OwnerMessage_Fin{Fin: &pb.Fin{FirstGenTokens: encodeTokens(e.First), Finished: true}}})
	}
}
