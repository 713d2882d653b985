package h1

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
)

// maxInformal bounds answers of status 1xx before the real one.
const maxInformal = 5

// Response is an answer whose head has come. Its methods are for one goroutine.
type Response struct {
	StatusCode int
	Header     http.Header

	client  *Client
	conn    *conn
	key     string
	unwatch func() bool
	keep    bool // the connection can serve another request after this one
	body
}

// readHead reads status and headers, and what they say about the body.
func (r *Response) readHead() error {
	for range maxInformal + 1 {
		end, err := r.headEnd()
		if err != nil {
			return err
		}
		c := r.conn
		one, err := r.parseHead(string(c.buf[c.r:end]))
		c.r = end
		switch {
		case err != nil:
			return fmt.Errorf("h1: the answer's head: %w", err)
		case r.StatusCode >= 200:
			return r.frame(one)
		case r.StatusCode == http.StatusSwitchingProtocols:
			return errors.New("h1: the worker switches to another protocol")
		}
	}
	return errors.New("h1: the worker says 1xx again and again")
}

// headEnd waits for the empty line and returns where it ends in the buffer.
func (r *Response) headEnd() (int, error) {
	c := r.conn
	for seen := c.r; ; {
		for {
			at := bytes.IndexByte(c.buf[seen:c.w], '\n')
			if at < 0 {
				break
			}
			line := seen + at
			if rest := c.buf[line+1 : c.w]; bytes.HasPrefix(rest, []byte("\n")) {
				return line + 2, nil
			} else if bytes.HasPrefix(rest, []byte("\r\n")) {
				return line + 3, nil
			} else if len(rest) < 2 { // not to be told yet
				seen = line
				break
			}
			seen = line + 1
		}
		shift := c.r
		if err := c.more(); err != nil {
			if errors.Is(err, io.EOF) && c.w > c.r {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		seen -= shift - c.r
		if c.w-c.r > maxHead {
			return 0, errTooLong
		}
	}
}

// parseHead reads the head with its empty line. http1 tells that the protocol is HTTP/1.1.
func (r *Response) parseHead(text string) (http1 bool, err error) {
	line, rest, _ := strings.Cut(text, "\n")
	proto, status, _ := strings.Cut(strings.TrimSuffix(line, "\r"), " ")
	if proto != "HTTP/1.1" && proto != "HTTP/1.0" {
		return false, fmt.Errorf("%q is no HTTP/1 status line", cut(line))
	}
	code, _, _ := strings.Cut(status, " ")
	if r.StatusCode, err = strconv.Atoi(code); err != nil || len(code) != 3 || r.StatusCode < 100 {
		return false, fmt.Errorf("%q has no status", cut(line))
	}
	n := strings.Count(rest, "\n")
	r.Header = make(http.Header, n)
	values := make([]string, 0, n)
	for {
		line, rest, _ = strings.Cut(rest, "\n")
		if line = strings.TrimSuffix(line, "\r"); line == "" {
			return proto == "HTTP/1.1", nil
		}
		name, value, ok := strings.Cut(line, ":")
		if value = strings.Trim(value, " \t"); !ok || !isToken(name) || strings.ContainsFunc(value, isControl) {
			return false, fmt.Errorf("%q is no header", cut(line))
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if have := r.Header[name]; have != nil {
			r.Header[name] = append(have, value)
			continue
		}
		values = append(values, value)
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
}

// cut shortens a text for an error.
func cut(text string) string { return text[:min(len(text), 80)] }

// frame finds out where the body ends, and whether the connection can go on behind it.
func (r *Response) frame(http1 bool) error {
	r.keep = http1 && !closes(r.Header["Connection"])
	coding, lengths := r.Header["Transfer-Encoding"], r.Header["Content-Length"]
	switch {
	case r.StatusCode == http.StatusNoContent || r.StatusCode == http.StatusNotModified:
		r.done = true
	case len(coding) > 0 && http1: // older ones have no codings
		if len(coding) > 1 || !strings.EqualFold(coding[0], "chunked") {
			return fmt.Errorf("h1: the answer's transfer encoding %q is not chunked", cut(strings.Join(coding, ", ")))
		}
		r.kind = bodyChunked
		r.keep = r.keep && len(lengths) == 0 // who says both may mean either
	case len(lengths) > 0:
		for _, l := range lengths {
			n, err := strconv.ParseUint(l, 10, 62)
			if err != nil || l != lengths[0] {
				return fmt.Errorf("h1: the answer's length %q cannot be read", cut(strings.Join(lengths, ", ")))
			}
			r.left = int64(n)
		}
		r.kind, r.done = bodyLength, r.left == 0
	default:
		r.kind, r.keep = bodyToEnd, false
	}
	return nil
}

func closes(values []string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), "close") {
				return true
			}
		}
	}
	return false
}

// Close ends the call. The connection is kept if the answer was read to its end, and cut otherwise, so that the worker sees
// that nobody reads on. Later calls do nothing.
func (r *Response) Close() {
	c := r.conn
	if c == nil {
		return
	}
	c.r += r.given
	if watched := r.unwatch(); !watched || !r.done || !r.keep || c.r < c.w {
		c.close()
	} else {
		c.release()
		r.client.put(r.key, c)
	}
	r.conn = nil
}

// cut ends a call that failed.
func (r *Response) cut() {
	r.keep = false
	r.Close()
}
