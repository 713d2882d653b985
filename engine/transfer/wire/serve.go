package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"tandem/engine/transfer"
)

// writeChunk is how much is written under one deadline, so that a slow puller
// that makes progress is not cut off within a large block.
const writeChunk = 1 << 20

// nearBuffer is the send buffer of connections within this host: what waits in a
// larger one has left the processor's cache when the puller reads it.
const nearBuffer = 256 << 10

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
		if tcp, ok := conn.(*net.TCPConn); ok && withinHost(conn) {
			_ = tcp.SetWriteBuffer(nearBuffer)
		}
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

// servePull writes the frames of one pull request.
func (ss *session) servePull(conn net.Conn, req *pullRequest) error {
	if err := ss.begin(conn, req); err != nil {
		return err
	}
	defer ss.leave(conn)
	mem := ss.rank.memory
	buf := mem.borrow()
	defer mem.giveBack(buf)
	for i := range req.blocks {
		h := req.frame(i)
		block, err := ss.load(conn, mem.lent(ss.id, ss.blocks[int(h.block)-ss.skip]), buf)
		if err == nil {
			err = ss.writeFrame(conn, h, block, req.plain)
		}
		if err != nil {
			return fmt.Errorf("block %d: %w", h.block, err)
		}
		ss.sent(PathTCP, len(block))
	}
	return nil
}

// begin checks a request against the grant and takes the session's byte path. A
// puller whose connection broke comes with another one, perhaps before the end of
// the first is known here.
func (ss *session) begin(conn net.Conn, req *pullRequest) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	from, to := int(req.first), int(req.first)+int(req.blocks)
	switch {
	case ss.phase != phaseServing:
		return errNotServed
	case from < ss.skip || to > ss.skip+ss.ready:
		return fmt.Errorf("transfer %d: blocks %d..%d are outside %d..%d", ss.id, from, to, ss.skip, ss.skip+ss.ready)
	case req.layerFrom != 0 || int(req.layerTo) != ss.layers || len(req.heads) != 0:
		return fmt.Errorf("transfer %d: parts of a block are not served", ss.id)
	}
	if ss.conn != nil && ss.conn != conn {
		_ = ss.conn.SetDeadline(time.Unix(1, 0))
	}
	ss.conn, ss.pushed = conn, true
	return nil
}

func (ss *session) leave(conn net.Conn) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.conn == conn {
		ss.conn = nil
	}
}

// load returns a block in one piece: itself, or a copy in buf.
func (ss *session) load(conn net.Conn, e extent, buf *[]byte) ([]byte, error) {
	if e.inOnePiece() {
		return e.bytes, nil
	}
	err := ss.read(conn, func() error {
		e.copyTo(*buf)
		return nil
	})
	return *buf, err
}

// writeFrame writes one block from pool memory. reading is held for one piece
// at a time, never while waiting for anything but this write.
func (ss *session) writeFrame(conn net.Conn, h frameHeader, block []byte, plain bool) error {
	var header [frameHeaderBytes]byte
	h.bytes = uint32(len(block))
	h.put(&header)
	sum, chunk := addSum(0, header[:]), sumChunk
	if plain {
		sum, chunk = 0, writeChunk
	}
	bufs := make(net.Buffers, 0, 3)
	for off, more := 0, true; more; off += chunk {
		piece := block[off:min(off+chunk, len(block))]
		more = off+chunk < len(block)
		err := ss.read(conn, func() error {
			if !plain {
				sum = addSum(sum, piece)
			}
			out := bufs[:0]
			if off == 0 {
				out = append(out, header[:])
			}
			if out = append(out, piece); !more {
				out = append(out, binary.LittleEndian.AppendUint32(nil, sum))
			}
			_, err := out.WriteTo(conn)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// read runs f, which reads pool memory for conn, if the lease is still served. The
// deadline is set under mu, so it cannot replace the one that stop sets.
func (ss *session) read(conn net.Conn, f func() error) error {
	ss.reading.Lock()
	defer ss.reading.Unlock()
	ss.mu.Lock()
	if ss.phase != phaseServing || ss.conn != conn {
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
func (ss *session) sent(path string, bytes int) {
	ss.rank.traffic.sent(path, bytes)
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
