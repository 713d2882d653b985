package comm

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"tandem/engine/comm/commpb"
)

// FuzzRootMessages gives a running leaf messages of any content.
func FuzzRootMessages(f *testing.F) {
	for _, m := range []*commpb.RootMessage{
		{},
		{Kind: &commpb.RootMessage_Step{Step: &commpb.Step{Seq: 1, Op: 1, Records: make([]byte, 3*RecordBytes)}}},
		{Kind: &commpb.RootMessage_Beat{Beat: &commpb.Beat{Progress: 3, Missing: []uint32{1, 1 << 31}}}},
		{Kind: &commpb.RootMessage_Failure{Failure: errorFailure(&TimeoutError{Missing: []int{4}})}},
		{Kind: &commpb.RootMessage_Failure{Failure: &commpb.Failure{Code: 1 << 31, Op: 1 << 31}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(_ *testing.T, b []byte) {
		var m commpb.RootMessage
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		cfg := Config{Size: 3}
		cfg.setDefaults()
		h := newHub(cfg, Span{1, 2})
		l := &leaf{hub: h, steps: make(chan *commpb.Step, 1)}
		l.received(&m)
		select {
		case s := <-l.steps:
			_ = checkStep(s, 0, 0, 1, OpExchange)
			_ = decodeRecords(h.table[0], Span{0, 2}, s.GetRecords(), 1)
		default:
		}
		if h.bar.over() {
			_ = h.cause().Error()
		}
	})
}

// FuzzHello gives a root joins of any content; it must take what fits alone.
func FuzzHello(f *testing.F) {
	f.Add(uint32(protocolVersion), uint32(4), uint32(2), uint32(3), []byte(nil))
	f.Add(uint32(protocolVersion), uint32(4), uint32(3), uint32(2), []byte("x"))
	f.Add(uint32(9), uint32(1<<31), uint32(1<<31), uint32(1<<32-1), []byte("x"))
	f.Fuzz(func(t *testing.T, version, size, first, last uint32, mac []byte) {
		cfg := Config{Size: 4}
		cfg.setDefaults()
		l := &Listener{cfg: cfg, hub: newHub(cfg, Span{0, 1})}
		s := Span{int(first), int(last)}
		reason := l.objection(s, &commpb.Hello{Version: version, Size: size, First: first, Last: last, Mac: mac}, nil)
		fits := version == protocolVersion && size == 4 && first >= 2 && first <= last && last <= 3 && len(mac) == 0
		if fits != (reason == "") {
			t.Errorf("%v: %q", s, reason)
		}
	})
}

// reader is a connection that only delivers bytes.
type reader struct {
	net.Conn
	io.Reader
}

func (r reader) Read(b []byte) (int, error)    { return r.Reader.Read(b) }
func (r reader) SetDeadline(_ time.Time) error { return nil }

// FuzzFrame reads frames of any content as activations.
func FuzzFrame(f *testing.F) {
	d := &dataConn{}
	d.begin(OpAllReduce, 7, 2)
	f.Add(append(d.head[:], make([]byte, 8)...))
	f.Add([]byte("no frame at all, but long enough"))
	f.Fuzz(func(t *testing.T, b []byte) {
		cfg := Config{Size: 1}
		cfg.setDefaults()
		h := newHub(cfg, Span{0, 0})
		c := &dataConn{conn: reader{Reader: bytes.NewReader(b)}}
		err := c.expect(h, 1, OpAllReduce, 7, 2)
		x := make([]float32, 2)
		if err == nil {
			err = c.read(x)
		}
		good := len(b) >= frameHeader+8 && bytes.Equal(b[:frameHeader], d.head[:])
		if good != (err == nil) {
			t.Errorf("%x: %v", b, err)
		}
		if err != nil && len(b) >= frameHeader+8 && !errors.Is(err, ErrDivergence) {
			t.Errorf("%x: %v", b, err)
		}
	})
}
