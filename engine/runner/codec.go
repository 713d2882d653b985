package runner

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"tandem/engine/adprouter"
	"tandem/engine/comm"
	"tandem/engine/lockstep"
	"tandem/engine/request"
	pb "tandem/engine/runner/deliverypb"
	"tandem/engine/transfer"
)

// record puts what a rank says into the layout of the exchange.
func record(iter uint64, rank int, row *lockstep.Row, payload int) comm.Record {
	return comm.Record{
		Iter: iter, Rank: uint16(rank), Intent: comm.Intent(row.Intent),
		NumCtxReq: row.CtxRequests, NumGenReq: row.GenRequests, NumCtxTok: row.CtxTokens, NumGenTok: row.GenTokens,
		Flags: row.Flags, NumActive: row.Active, NumRetiring: row.Retiring, NumWaiting: row.Waiting,
		NumPendingNew: row.PendingNew, NumTransfer: row.Transfer, ActiveTokens: row.ActiveTokens,
		QueuedPrefillTok: row.QueuedPrefill, FreeBlocks: row.FreeBlocks, PayloadBytes: uint32(payload), RouteDigest: row.Digest,
	}
}

// rowOf is the inverse of record; gather says whether there is a payload.
func rowOf(r *comm.Record) lockstep.Row {
	return lockstep.Row{
		Row: adprouter.Row{
			Intent: adprouter.Intent(r.Intent), CtxRequests: r.NumCtxReq, GenRequests: r.NumGenReq, Flags: r.Flags,
			Active: r.NumActive, Retiring: r.NumRetiring, PendingNew: r.NumPendingNew, PayloadBytes: r.PayloadBytes,
			ActiveTokens: r.ActiveTokens, QueuedPrefill: r.QueuedPrefillTok,
		},
		Waiting: r.NumWaiting, Transfer: r.NumTransfer, FreeBlocks: r.FreeBlocks,
		CtxTokens: r.NumCtxTok, GenTokens: r.NumGenTok, Digest: r.RouteDigest,
	}
}

// encodeDelivery appends a delivery's bytes to dst; an empty one has none.
// handle encodes what is lent.
func encodeDelivery(dst []byte, d *lockstep.Delivery, handle func(*transfer.Handle) []byte) ([]byte, error) {
	if d.Empty() {
		return dst, nil
	}
	m := pb.Delivery{Drain: d.Drain}
	for _, a := range d.New {
		body, _ := a.Body.([]byte)
		m.Arrivals = append(m.Arrivals, &pb.Arrival{
			Id: uint64(a.Item.ID), Key: a.Item.Key, Guest: a.Item.Guest, Rank: int32(a.Item.Rank), Relax: a.Item.Relax,
			Weight: uint32(a.Item.Weight), Prompt: putTokens(a.Prompt), Salt: a.Salt, Body: body, HandOver: a.HandOver,
		})
	}
	for _, r := range d.Removals {
		m.Removals = append(m.Removals, &pb.Removal{Id: uint64(r.ID), Code: string(r.Code)})
	}
	for _, id := range d.Aborts {
		m.Aborts = append(m.Aborts, int64(id))
	}
	for _, x := range d.Matches {
		m.Matches = append(m.Matches, &pb.Match{Id: uint64(x.ID), Tokens: uint32(x.Tokens)})
	}
	for _, l := range d.Lent {
		lent := &pb.Lent{Id: uint64(l.ID)}
		if l.Handle != nil {
			lent.Handle = handle(l.Handle)
		}
		m.Lent = append(m.Lent, lent)
	}
	for _, x := range d.Moved {
		m.Moved = append(m.Moved, &pb.Moved{Key: x.Key, Ok: x.OK, Request: uint64(x.Request), Pulled: x.Pulled})
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, &m)
}

// decodeDelivery reads one rank's delivery. An error means that the ranks do not
// understand each other, which ends the group.
func decodeDelivery(b []byte, handle func([]byte) (*transfer.Handle, error)) (d lockstep.Delivery, err error) {
	if len(b) == 0 {
		return d, nil
	}
	var m pb.Delivery
	if err := proto.Unmarshal(b, &m); err != nil {
		return d, fmt.Errorf("delivery: %w", err)
	}
	d.Drain = m.GetDrain()
	for _, a := range m.GetArrivals() {
		prompt, err := tokens(a.GetPrompt())
		if err != nil {
			return d, fmt.Errorf("delivery: request %d: %w", a.GetId(), err)
		}
		d.New = append(d.New, &lockstep.Arrival{
			Item: adprouter.Item{
				ID: request.ID(a.GetId()), Key: a.GetKey(), Guest: a.GetGuest(), Rank: int(a.GetRank()), Relax: a.GetRelax(), Weight: int(a.GetWeight()),
				Tokens: len(prompt), Head: prompt[:min(len(prompt), adprouter.HeadTokens)],
			},
			Prompt: prompt, Salt: a.GetSalt(), Body: a.GetBody(), HandOver: a.GetHandOver(),
		})
	}
	for _, r := range m.GetRemovals() {
		d.Removals = append(d.Removals, lockstep.Removal{ID: request.ID(r.GetId()), Code: request.Code(r.GetCode())})
	}
	for _, id := range m.GetAborts() {
		d.Aborts = append(d.Aborts, transfer.ID(id))
	}
	for _, x := range m.GetMatches() {
		d.Matches = append(d.Matches, adprouter.Match{ID: request.ID(x.GetId()), Tokens: int32(x.GetTokens())})
	}
	for _, l := range m.GetLent() {
		lent := lockstep.Lent{ID: request.ID(l.GetId())}
		if len(l.GetHandle()) > 0 {
			if lent.Handle, err = handle(l.GetHandle()); err != nil {
				return d, fmt.Errorf("delivery: move of request %d: %w", l.GetId(), err)
			}
		}
		d.Lent = append(d.Lent, lent)
	}
	for _, x := range m.GetMoved() {
		d.Moved = append(d.Moved, lockstep.Moved{Key: x.GetKey(), OK: x.GetOk(), Request: request.ID(x.GetRequest()), Pulled: x.GetPulled()})
	}
	return d, nil
}

func putTokens(ids []int32) []byte {
	b := make([]byte, 4*len(ids))
	for i, id := range ids {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(id))
	}
	return b
}

func tokens(b []byte) ([]int32, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("a prompt of %d bytes", len(b))
	}
	ids := make([]int32, len(b)/4)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return ids, nil
}

// body is what of a request a rank in another process needs, besides what every
// arrival has. Deadline is what is left of it.
type body struct {
	Request request.Request
	Opaque  []byte
}

func encodeBody(r *request.Request, opaque []byte, now time.Duration) ([]byte, error) {
	b := body{Request: *r, Opaque: opaque}
	b.Request.Prompt, b.Request.Text, b.Request.ForkTexts = nil, nil, nil
	if r.Deadline > 0 {
		b.Request.Deadline = max(r.Deadline-now, 1)
	}
	return json.Marshal(b)
}

// decodeBody reads it. heard is when it was delivered: its deadline runs since then.
func decodeBody(data []byte, prompt []int32, heard time.Duration) (*request.Request, []byte, error) {
	var b body
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, nil, fmt.Errorf("request: %w", err)
	}
	b.Request.Prompt = prompt
	if b.Request.Deadline > 0 {
		b.Request.Deadline += heard
	}
	return &b.Request, b.Opaque, nil
}
