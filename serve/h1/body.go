package h1

import (
	"bytes"
	"errors"
	"io"
)

// errChunk says that the pieces of a chunked answer do not fit together.
var errChunk = errors.New("h1: the answer's chunks are malformed")

// maxChunkLine bounds the line before a chunk, maxTrailers the lines after the last one.
const (
	maxChunkLine = 4 << 10
	maxTrailers  = 64 << 10
)

type bodyKind uint8

const (
	bodyToEnd   bodyKind = iota // of the connection
	bodyLength                  // left bytes follow
	bodyChunked                 // left bytes of this chunk follow
)

// body is how far an answer was read.
type body struct {
	kind   bodyKind
	left   int64
	inside bool // a chunk, or before the line break that ends it
	done   bool // the whole answer was read
	given  int  // bytes in front of the buffer that the last Piece is
	rest   []byte
}

// Piece waits until some of the body has arrived and returns it, without a copy: it is valid until the next call. io.EOF:
// the body is complete. io.ErrUnexpectedEOF: the connection ended before it was.
func (r *Response) Piece() ([]byte, error) {
	if r.conn == nil {
		return nil, io.ErrClosedPipe
	}
	c := r.conn
	c.r += r.given
	r.given = 0
	for !r.done {
		if c.r < c.w {
			from := c.r
			n, err := r.gather()
			if err != nil {
				return nil, err
			}
			if n > 0 {
				r.given = c.r - from // what lies between was taken already
				c.r = from
				return c.buf[from : from+n], nil
			}
			if r.done {
				break
			}
		}
		err := c.more()
		switch {
		case errors.Is(err, io.EOF) && r.kind == bodyToEnd:
			r.done = true
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
	if c.r == c.w {
		c.release()
	}
	return nil, io.EOF
}

// gather takes what is of the body out of the buffer and joins it at the place where it began. It moves c.r behind what it
// took and returns the length.
func (r *Response) gather() (n int, err error) {
	c := r.conn
	switch r.kind {
	case bodyToEnd:
		n = c.w - c.r
		c.r = c.w
		return n, nil
	case bodyLength:
		n = int(min(r.left, int64(c.w-c.r)))
		c.r += n
		r.left -= int64(n)
		r.done = r.left == 0
		return n, nil
	}
	start := c.r
	for !r.done && c.r < c.w {
		if r.left > 0 {
			k := int(min(r.left, int64(c.w-c.r)))
			if at := start + n; at != c.r {
				copy(c.buf[at:], c.buf[c.r:c.r+k])
			}
			n, c.r, r.left = n+k, c.r+k, r.left-int64(k)
			continue
		}
		whole, err := r.chunkLine()
		if err != nil || !whole {
			return n, err
		}
	}
	return n, nil
}

// chunkLine takes the line that follows: the end of a chunk, the size of the next, or a trailer. whole is false if it has not
// all arrived.
func (r *Response) chunkLine() (whole bool, err error) {
	c := r.conn
	at := bytes.IndexByte(c.buf[c.r:c.w], '\n')
	if at < 0 {
		if c.w-c.r > maxChunkLine {
			return false, errTooLong
		}
		return false, nil
	}
	line := bytes.TrimSuffix(c.buf[c.r:c.r+at], []byte("\r"))
	c.r += at + 1
	switch {
	case r.left < 0: // behind the last chunk
		if r.done = len(line) == 0; !r.done {
			if r.left -= int64(at + 1); r.left < -maxTrailers {
				return false, errTooLong
			}
		}
	case r.inside:
		if len(line) > 0 {
			return false, errChunk
		}
		r.inside = false
	default:
		size, ok := chunkSize(line)
		if !ok {
			return false, errChunk
		}
		r.left, r.inside = size, true
		if size == 0 {
			r.left = -1
		}
	}
	return true, nil
}

// chunkSize reads the line before a chunk; what follows a semicolon means nothing to us.
func chunkSize(line []byte) (size int64, ok bool) {
	line, _, _ = bytes.Cut(line, []byte(";"))
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 15 {
		return 0, false
	}
	for _, b := range line {
		var d byte
		switch {
		case b >= '0' && b <= '9':
			d = b - '0'
		case b|0x20 >= 'a' && b|0x20 <= 'f':
			d = b | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		size = size<<4 | int64(d)
	}
	return size, true
}

// Read is Piece with a copy.
func (r *Response) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.Piece(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
