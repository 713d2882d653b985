package cluster

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// headerAuth carries the time and the signature of a request to the storage. The key itself never travels, so plain HTTP
// between hosts does not give it away.
const headerAuth = "X-Disagg-Cluster-Auth"

// maxSkew is how far the clocks of two hosts may differ, and how long a captured request could be repeated.
const maxSkew = 2 * time.Minute

// Access decides who may use the storage. Whoever may write to it receives prompts, so it is never open by accident.
type Access struct {
	Key     []byte // requests are signed with it, or carry it as a bearer token; empty = see Trusted
	Trusted bool   // without a key: other hosts may use it too (trust_internal_network)
}

func signature(key []byte, method, uri string, at int64, body []byte) string {
	digest := sha256.Sum256(body)
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "tandem-cluster-storage-1\n%s\n%s\n%d\n%x", method, uri, at, digest)
	return hex.EncodeToString(mac.Sum(nil))
}

// sign signs an outgoing request.
func sign(r *http.Request, key []byte, now time.Time, body []byte) {
	if len(key) > 0 {
		at := now.Unix()
		r.Header.Set(headerAuth, fmt.Sprintf("%d:%s", at, signature(key, r.Method, r.URL.RequestURI(), at, body)))
	}
}

// allows tells whether a request with that body may pass.
func (a Access) allows(r *http.Request, now time.Time, body []byte) bool {
	if len(a.Key) == 0 {
		return a.Trusted || local(r)
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return subtle.ConstantTimeCompare([]byte(token), a.Key) == 1
	}
	stamp, sig, ok := strings.Cut(r.Header.Get(headerAuth), ":")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil || now.Sub(time.Unix(at, 0)).Abs() > maxSkew {
		return false
	}
	return hmac.Equal([]byte(sig), []byte(signature(a.Key, r.Method, r.URL.RequestURI(), at, body)))
}

// local tells whether a request comes from a program on this host, for itself: not from a web page in a browser here, nor
// through a proxy here.
func local(r *http.Request) bool {
	for _, h := range []string{"Origin", "Forwarded", "X-Forwarded-For", "Via"} {
		if r.Header.Get(h) != "" {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr == "@" || r.RemoteAddr == "" // a unix socket
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
