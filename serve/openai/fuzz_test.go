package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"
)

// FuzzDecodeRequest: any body is decoded or refused with a whole error object,
// and what was accepted can be relayed and decoded again to the same request.
func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{
		chatBody(`"stop":["a"],"logit_bias":{"1":2},"stream":true,"stream_options":{"include_usage":true}`),
		textBody(`"seed":-1,"logprobs":2,"prompt_token_ids":[1,2]`),
		`{"prompt":[[1,2]],"disaggregated_params":{"request_type":"context_only","disagg_request_id":9,"ctx_usage":{"prompt_tokens":1}}}`,
		`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
		`{"prompt":[`, "{\"a\":\"\xff\"}", `{"prompt":"\ud800"}`, `{"a":1,"a":2}`, `[]`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, chat bool) {
		e := Completion
		if chat {
			e = Chat
		}
		r, err := DecodeRequest(e, data)
		if err != nil {
			var wire *Error
			if !errors.As(err, &wire) || wire.Status != 400 || wire.Message == "" || !json.Valid(wire.AppendJSON(nil)) {
				t.Fatalf("bad error %v", err)
			}
			return
		}
		again := r.Body.AppendJSON(nil)
		if _, err := DecodeRequest(e, again); err != nil {
			t.Fatalf("relayed body is refused: %v\n%s", err, again)
		}
		if !json.Valid(r.MessagesJSON()) {
			t.Fatalf("messages are no JSON: %s", r.MessagesJSON())
		}
	})
}

// FuzzDisaggParams: what is accepted survives a round trip.
func FuzzDisaggParams(f *testing.F) {
	f.Add([]byte(`{"request_type":"generation_only","disagg_request_id":687865856000134148,"first_gen_log_probs":[[{"token_id":1,"logprob":-1.5}]]}`))
	f.Add([]byte(`{"ctx_info_endpoint":["a"],"first_gen_tokens":[1],"x":null}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) || len(bytes.TrimSpace(data)) != len(data) {
			return
		}
		p, err := DecodeDisaggParams(data)
		if err != nil || p == nil {
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := DecodeDisaggParams(out)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if again, _ := json.Marshal(q); !bytes.Equal(out, again) {
			t.Fatalf("%s became %s", out, again)
		}
	})
}

// FuzzEventReader: events put together are the stream, and are the same ones however the network cuts it.
func FuzzEventReader(f *testing.F) {
	f.Add([]byte("data: a\n\n: c\r\n\r\ndata: b\ndata: c\n\n"), byte(2))
	f.Add([]byte("\n\n\ndata"), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, piece byte) {
		r := NewEventReader(bytes.NewReader(data), 1<<16)
		cut := NewEventReader(&pieces{data, int(piece%16) + 1}, 1<<16)
		rest := data
		for {
			ev, err := r.Next()
			ev = bytes.Clone(ev)
			if other, oerr := cut.Next(); !bytes.Equal(other, ev) || !errors.Is(oerr, err) {
				t.Fatalf("in pieces %q, %v; at once %q, %v", other, oerr, ev, err)
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrEventTooLong) {
					t.Fatal(err)
				}
				return
			}
			at := bytes.Index(rest, ev)
			if at < 0 || len(bytes.TrimLeft(rest[:at], "\r\n")) != 0 {
				t.Fatalf("event %q is not next in %q", ev, rest)
			}
			rest = rest[at+len(ev):]
			EventData(ev)
		}
	})
}

// pieces reads data n bytes at a time.
type pieces struct {
	data []byte
	n    int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(to, p.data[:min(p.n, len(p.data))])
	p.data = p.data[n:]
	return n, nil
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\u2028\xff\x00é")
	f.Fuzz(func(t *testing.T, s string) {
		out := AppendString(nil, s)
		var back string
		if err := json.Unmarshal(out, &back); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if want := string([]rune(s)); back != want {
			t.Fatalf("got %q, want %q", back, want)
		}
		if bytes.ContainsAny(out, "\n\r") {
			t.Fatalf("a line break is left in %q", out)
		}
	})
}

func FuzzDecodeIDs(f *testing.F) {
	f.Add("AQAAAAIAAAADAAAAcBEBAA==")
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := DecodeIDs(s)
		if err != nil {
			return
		}
		back, err := DecodeIDs(EncodeIDs(ids))
		if err != nil || len(back) != len(ids) {
			t.Fatalf("%v %v", back, err)
		}
	})
}
