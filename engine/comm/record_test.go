package comm

import (
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func drawRecord(t *rapid.T) Record {
	u16, u32, u64 := rapid.Uint16(), rapid.Uint32(), rapid.Uint64()
	return Record{
		Iter: u64.Draw(t, "iter"), ConfigEpoch: u32.Draw(t, "epoch"), Rank: u16.Draw(t, "rank"),
		Intent:    Intent(rapid.IntRange(0, 2).Draw(t, "intent")),
		NumCtxReq: u16.Draw(t, "ctx"), NumGenReq: u16.Draw(t, "gen"),
		NumCtxTok: u32.Draw(t, "ctxTok"), NumGenTok: u32.Draw(t, "genTok"),
		Flags:     rapid.Uint32Range(0, flagsEnd-1).Draw(t, "flags"),
		NumActive: u32.Draw(t, "active"), NumRetiring: u32.Draw(t, "retiring"), NumWaiting: u32.Draw(t, "waiting"),
		NumPendingNew: u32.Draw(t, "new"), NumTransfer: u32.Draw(t, "transfer"),
		ActiveTokens: u64.Draw(t, "tokens"), QueuedPrefillTok: u64.Draw(t, "queued"),
		FreeBlocks: u32.Draw(t, "free"), PayloadBytes: u32.Draw(t, "payload"),
		RouteDigest: u64.Draw(t, "route"), KVDigest: u64.Draw(t, "kv"),
	}
}

func TestRecordRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRecord(t)
		var b [RecordBytes]byte
		for i := range b {
			b[i] = 0xff // Put must clear what is reserved
		}
		want.Put(&b)
		got, err := DecodeRecord(b[:], int(want.Rank), want.Iter)
		if err != nil || got != want {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	})
}

// TestRecordLayout pins where each field lies: field i holds the value i+1.
func TestRecordLayout(t *testing.T) {
	r := Record{
		Iter: 1, ConfigEpoch: 2, Rank: 3, Intent: 2, NumCtxReq: 5, NumGenReq: 6, NumCtxTok: 7, NumGenTok: 8, Flags: 9,
		NumActive: 10, NumRetiring: 11, NumWaiting: 12, NumPendingNew: 13, ActiveTokens: 14, QueuedPrefillTok: 15,
		FreeBlocks: 16, PayloadBytes: 17, RouteDigest: 18, KVDigest: 19, NumTransfer: 20,
	}
	var got [RecordBytes]byte
	r.Put(&got)
	var want []byte
	le := binary.LittleEndian
	want = le.AppendUint64(want, 1)
	want = le.AppendUint32(want, 2)
	want = le.AppendUint16(want, 3)
	want = append(want, recordVersion, 2)
	want = le.AppendUint16(want, 5)
	want = le.AppendUint16(want, 6)
	for v := range uint32(7) {
		want = le.AppendUint32(want, 7+v) // up to NumPendingNew
	}
	want = le.AppendUint64(want, 14)
	want = le.AppendUint64(want, 15)
	want = le.AppendUint32(want, 16)
	want = le.AppendUint32(want, 17)
	want = le.AppendUint64(want, 18)
	want = le.AppendUint64(want, 19)
	want = le.AppendUint32(want, 20)
	want = append(want, make([]byte, RecordBytes-len(want))...)
	if string(got[:]) != string(want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	if n := reflect.TypeFor[Record]().NumField(); n != 20 {
		t.Errorf("Record has %d fields; extend this test", n)
	}
}

func TestRecordChecks(t *testing.T) {
	good := Record{Iter: 9, Rank: 2}
	for _, tc := range []struct {
		name   string
		change func(b []byte) []byte
		want   string
	}{
		{"short", func(b []byte) []byte { return b[:127] }, "divergence at iteration 9: size of rank 2 is 127, want 128"},
		{"empty", func([]byte) []byte { return nil }, "size of rank 2 is 0, want 128"},
		{"long", func(b []byte) []byte { return append(b, 0) }, "size of rank 2 is 129, want 128"},
		{"version", func(b []byte) []byte { b[14] = 2; return b }, "version of rank 2 is 2, want 1"},
		{"rank", func(b []byte) []byte { b[12] = 5; return b }, "rank of rank 2 is 5, want 2"},
		{"iter", func(b []byte) []byte { b[0] = 8; return b }, "iter of rank 2 is 8, want 9"},
		{"intent", func(b []byte) []byte { b[15] = 3; return b }, "intent of rank 2 is 3, want at most 2"},
		{"flags", func(b []byte) []byte { b[31] = 1; return b }, "flags of rank 2 is 0x1000000, want below 0x20"},
		{"reserved", func(b []byte) []byte { b[127] = 4; return b }, "reserved of rank 2 is 4, want 0"},
	} {
		var b [RecordBytes]byte
		good.Put(&b)
		_, err := DecodeRecord(tc.change(b[:]), 2, 9)
		if !errors.Is(err, ErrDivergence) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestCheckTable(t *testing.T) {
	table := func() []Record {
		return []Record{{Iter: 3, ConfigEpoch: 1, RouteDigest: 5}, {Iter: 3, ConfigEpoch: 1, Rank: 1, RouteDigest: 5}}
	}
	if err := checkTable(table(), 10); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(r *Record){
		"iter of rank 1 is 4, want 3":                    func(r *Record) { r.Iter = 4 },
		"config_epoch of rank 1 is 2, want 1":            func(r *Record) { r.ConfigEpoch = 2 },
		"rank of rank 1 is 0, want 1":                    func(r *Record) { r.Rank = 0 },
		"payload_bytes of rank 1 is 11, want at most 10": func(r *Record) { r.PayloadBytes = 11 },
	} {
		tab := table()
		change(&tab[1])
		err := checkTable(tab, 10)
		if !errors.Is(err, ErrDivergence) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	var b [RecordBytes]byte
	(&Record{Iter: 1, Rank: 2, Intent: IntentCtx}).Put(&b)
	f.Add(b[:], 2, uint64(1))
	f.Add([]byte{}, 0, uint64(0))
	f.Fuzz(func(t *testing.T, src []byte, rank int, iter uint64) {
		r, err := DecodeRecord(src, rank, iter)
		if err != nil {
			var d *DivergenceError
			if !errors.As(err, &d) || d.Field == "" || d.Rank != rank || d.Iter != iter {
				t.Fatalf("%#v", err)
			}
			return
		}
		var again [RecordBytes]byte
		r.Put(&again)
		if string(again[:]) != string(src) {
			t.Fatalf("%x became %x", src, again)
		}
	})
}
