package wire

import (
	"fmt"
	"io"
	"net"
	"time"
)

// A stage carries blocks that cannot be mapped: the owner copies each one into the
// next slot and says so by a frame's header without payload, the puller copies it
// out and gives the slot back with one byte. PULL requests come between.

// stageSlots is how many blocks of a size a stage has room for.
func stageSlots(blockBytes int) int { return min(max(stageBytes/blockBytes, 2), maxStageSlots) }

// serveStage offers a stage and answers pull requests with it.
func serveStage(s *Server, conn *net.UnixConn, rank *Transport) error {
	size := rank.memory.blockBytes
	slots := stageSlots(size)
	seg, err := newSegment("tandem-kv-stage", slots*size)
	if err != nil {
		return err
	}
	defer seg.close()
	offer := sharedOffer{slots: uint32(slots), size: uint64(size)}
	if _, _, err := conn.WriteMsgUnix(offer.encode(), rights(seg.fd), nil); err != nil {
		return err
	}
	st := &stage{conn: conn, seg: seg, slots: slots, size: size, idle: s.cfg.IdleTimeout}
	for {
		_ = conn.SetDeadline(time.Now().Add(serverIdle))
		if err := st.drain(); err != nil {
			return err
		}
		req, err := readPull(conn)
		if err != nil {
			return err
		}
		ss := s.byToken(req.token)
		if ss == nil || ss.rank != rank {
			return errNotServed
		}
		if err := ss.serveStaged(st, req); err != nil {
			return err
		}
	}
}

// stage is the owner's end.
type stage struct {
	conn        *net.UnixConn
	seg         *segment
	slots, size int
	idle        time.Duration
	sent, full  int // blocks so far, and those of them that were not taken yet
}

// drain waits until every slot is free.
func (st *stage) drain() error {
	for st.full > 0 {
		if err := st.taken(); err != nil {
			return err
		}
	}
	return nil
}

// taken waits for slots to be given back.
func (st *stage) taken() error {
	var b [maxStageSlots]byte
	n, err := st.conn.Read(b[:st.full])
	st.full -= n
	return err
}

// serveStaged moves the blocks of one pull request.
func (ss *session) serveStaged(st *stage, req *pullRequest) error {
	if err := ss.begin(st.conn, req); err != nil {
		return err
	}
	defer ss.leave(st.conn)
	for i := range req.blocks {
		if st.full == st.slots {
			_ = st.conn.SetReadDeadline(time.Now().Add(st.idle))
			if err := st.taken(); err != nil {
				return err
			}
		}
		h := req.frame(i)
		h.bytes = uint32(st.size)
		at := st.sent % st.slots * st.size
		slot := st.seg.bytes[at : at+st.size]
		block := ss.rank.memory.lent(ss.id, ss.blocks[int(h.block)-ss.skip])
		var b [frameHeaderBytes]byte
		h.put(&b)
		err := ss.read(st.conn, func() error {
			if block.size() != st.size {
				return fmt.Errorf("%w: block %d has %d bytes", errCorrupt, h.block, block.size())
			}
			block.copyTo(slot)
			_, err := st.conn.Write(b[:])
			return err
		})
		if err != nil {
			return err
		}
		st.sent, st.full = st.sent+1, st.full+1
		ss.sent(PathShared, st.size)
	}
	return nil
}

// stagedConn is the puller's end of a connection with a stage.
type stagedConn struct {
	*net.UnixConn
	slots [][]byte
	all   []byte
	taken int // blocks so far
}

// Close unmaps the stage; nobody may be reading.
func (c *stagedConn) Close() error {
	unmapShared(c.all)
	c.all, c.slots = nil, nil
	return c.UnixConn.Close()
}

// newStagedConn maps the stage that came with an offer.
func newStagedConn(conn *net.UnixConn, o sharedOffer, fds []int) (*stagedConn, error) {
	all, err := mapShared(fds[0], uint64(o.slots)*o.size)
	if err != nil {
		return nil, err
	}
	c := &stagedConn{UnixConn: conn, all: all}
	for i := range int(o.slots) {
		c.slots = append(c.slots, all[i*int(o.size):(i+1)*int(o.size)])
	}
	return c, nil
}

// stageReader reads blocks through a stage.
type stageReader struct {
	path *sharedReader
	pl   *pull
	key  string
	conn *stagedConn
	in   deadlineReader
	wake func() bool
	req  pullRequest
	seq  uint32
}

func (r *stageReader) read(n int) error {
	r.req.order(n)
	r.seq = 0
	return r.in.write(r.req.encode())
}

func (r *stageReader) poll() (int, error) {
	want, c := r.req.frame(r.seq), r.conn
	var b [frameHeaderBytes]byte
	if _, err := io.ReadFull(&r.in, b[:]); err != nil {
		return 0, fmt.Errorf("frame %d: %w", want.seq, err)
	}
	slot := c.slots[c.taken%len(c.slots)]
	want.bytes = uint32(len(slot))
	if h := parseFrameHeader(&b); h != want {
		return 0, fmt.Errorf("frame %d: %w: got header %+v, want %+v", want.seq, errCorrupt, h, want)
	}
	if len(slot) != r.pl.to.size {
		return 0, fmt.Errorf("%w: slots of %d bytes for blocks of %d", errCorrupt, len(slot), r.pl.to.size)
	}
	r.pl.to.put(r.pl.verified, slot)
	c.taken++
	r.seq++
	_, err := c.Write([]byte{1})
	return 1, err
}

func (r *stageReader) close(done bool) {
	if !r.wake() || !done || r.seq < r.req.blocks {
		_ = r.conn.Close()
		return
	}
	r.path.stages.put(r.key, r.conn)
}
