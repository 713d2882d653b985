package h1

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// appendHead appends request line and headers. Host, Content-Length and Connection are not the caller's.
func appendHead(dst []byte, to *target, h http.Header, length int) ([]byte, error) {
	if dst == nil {
		dst = make([]byte, 0, 512)
	}
	dst = append(append(append(dst, "POST "...), to.path...), " HTTP/1.1\r\nHost: "...)
	dst = append(append(dst, to.host...), "\r\nContent-Length: "...)
	dst = append(strconv.AppendInt(dst, int64(length), 10), "\r\n"...)
	for name, values := range h {
		if !isToken(name) {
			return nil, fmt.Errorf("h1: %q is no name of a header", name)
		}
		for _, v := range values {
			if strings.ContainsFunc(v, isControl) {
				return nil, fmt.Errorf("h1: the value of header %s has a control character", name)
			}
			dst = append(append(append(append(dst, name...), ": "...), v...), "\r\n"...)
		}
	}
	return append(dst, "\r\n"...), nil
}

// isControl tells what no header's value may have: whoever reads it could take it for the end of the line.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// isToken tells whether a text can be the name of a header.
func isToken[T string | []byte](name T) bool {
	for i := range len(name) {
		if !tokenByte[name[i]] {
			return false
		}
	}
	return len(name) > 0
}

var tokenByte = func() (t [256]bool) {
	for _, b := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		t[b] = true
	}
	return t
}()
