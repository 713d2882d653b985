package wire

import (
	"errors"
	"fmt"
	"net"
	"time"

	"tandem/engine/transfer"
)

// writeChunk is how much is written under one deadline, so that a slow puller
// that makes progress is not cut off within a large block.
const writeChunk = 1 << 20

// renewEvery is how often bytes that were sent renew the lease.
const renewEvery = time.Second

var errNotServed = errors.New("the lease is not served any more")

// acceptData runs the byte path listener.
func (s *Server) acceptData() {
	for {
		conn, err := s.data.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = conn.Close()
			return
		}
		s.conns[conn] = true
		s.wg.Add(1)
		s.mu.Unlock()
		go s.serveConn(conn)
	}
}

// serveConn answers pull requests on one connection, one after another. Each
// transfer that runs has a connection of its own, so none waits for another's
// peer, and the kernel shares the link among them.
func (s *Server) serveConn(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		s.wg.Done()
	}()
	for {
		_ = conn.SetReadDeadline(time.Now().Add(serverIdle))
		req, err := readPull(conn)
		if err != nil {
			return
		}
		ss := s.byToken(req.token)
		if ss == nil {
			return
		}
		if err := ss.servePull(conn, req); err != nil {
			s.cfg.Logger.Debug("pull ended early", "transfer_id", int64(ss.id), "error", err)
			return
		}
	}
}

// servePull writes the frames of one pull request, then announces FIN on the
// control stream.
func (ss *session) servePull(conn net.Conn, req *pullRequest) error {
	if err := ss.begin(conn, req); err != nil {
		return err
	}
	defer ss.leave()
	mem, sum := ss.rank.memory, uint32(0)
	buf := mem.borrow()
	defer mem.giveBack(buf)
	for i := range req.blocks {
		h := frameHeader{seq: i, block: req.first + i, layerFrom: req.layerFrom, layerTo: req.layerTo}
		block, err := ss.load(mem.at(ss.blocks[int(h.block)-ss.skip]), buf)
		if err != nil {
			return fmt.Errorf("block %d: %w", h.block, err)
		}
		crc, err := ss.writeFrame(conn, h, block)
		if err != nil {
			return fmt.Errorf("block %d: %w", h.block, err)
		}
		sum = addFrameSum(sum, crc)
		ss.sent(len(block))
	}
	ss.send(ss.finOf(req.blocks, sum))
	return nil
}

// begin checks a request against the grant and takes the session's byte path.
func (ss *session) begin(conn net.Conn, req *pullRequest) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	switch {
	case ss.phase != phaseServing:
		return errNotServed
	case ss.conn != nil:
		return fmt.Errorf("transfer %d: second byte path", ss.id)
	case int(req.first) < ss.skip || int(req.first)+int(req.blocks) > ss.skip+len(ss.blocks):
		return fmt.Errorf("transfer %d: blocks %d+%d are outside %d+%d", ss.id, req.first, req.blocks, ss.skip, len(ss.blocks))
	case req.layerFrom != 0 || int(req.layerTo) != ss.layers || len(req.heads) != 0:
		return fmt.Errorf("transfer %d: parts of a block are not served", ss.id)
	}
	ss.conn = conn
	return nil
}

func (ss *session) leave() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.conn = nil
}

// load returns a block in one piece: itself, or a copy in buf.
func (ss *session) load(e extent, buf *[]byte) ([]byte, error) {
	if e.inOnePiece() {
		return e.bytes, nil
	}
	err := ss.read(nil, func() error {
		e.m.split.Read(e.id, *buf)
		return nil
	})
	return *buf, err
}

// writeFrame writes one block from pool memory. reading is held for one piece
// at a time, never while waiting for anything but this write.
func (ss *session) writeFrame(conn net.Conn, h frameHeader, block []byte) (uint32, error) {
	var header [frameHeaderBytes]byte
	var crc uint32
	err := ss.read(conn, func() error {
		crc = h.seal(&header, block)
		bufs := net.Buffers{header[:], block[:min(writeChunk, len(block))]}
		_, err := bufs.WriteTo(conn)
		return err
	})
	for off := writeChunk; err == nil && off < len(block); off += writeChunk {
		err = ss.read(conn, func() error {
			_, err := conn.Write(block[off:min(off+writeChunk, len(block))])
			return err
		})
	}
	return crc, err
}

// read runs f, which reads pool memory, if the lease is still served. The
// deadline is set under mu, so it cannot replace the one that stop sets.
func (ss *session) read(conn net.Conn, f func() error) error {
	ss.reading.Lock()
	defer ss.reading.Unlock()
	ss.mu.Lock()
	if ss.phase != phaseServing {
		ss.mu.Unlock()
		return errNotServed
	}
	if conn != nil {
		_ = conn.SetWriteDeadline(time.Now().Add(ss.srv.cfg.IdleTimeout))
	}
	ss.mu.Unlock()
	return f()
}

// sent counts the bytes of a block and, now and then, takes them for a
// KEEPALIVE.
func (ss *session) sent(bytes int) {
	ss.rank.sent.Add(uint64(bytes))
	now := time.Now()
	ss.mu.Lock()
	due := ss.phase == phaseServing && now.Sub(ss.renew) >= renewEvery
	if due {
		ss.renew = now
	}
	ss.mu.Unlock()
	if due {
		ss.rank.inbox(transfer.KeepAlive{ID: ss.id, Epoch: ss.epoch})
	}
}
