package openai

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
)

// Internal headers between frontend and worker, as net/http keeps them: any other form costs a copy each time.
const (
	HeaderRequestID       = "X-Request-Id"
	HeaderDisaggRequestID = "X-Disagg-Request-Id"
	HeaderAuth            = "X-Disagg-Auth"
	HeaderAffinityKey     = "X-Disagg-Affinity-Key"
	HeaderAffinityAuth    = "X-Disagg-Affinity-Auth"
	HeaderDPRank          = "X-Disagg-Dp-Rank"
	HeaderTenant          = "X-Disagg-Tenant"
	HeaderDeadline        = "X-Disagg-Deadline-Ms"
	HeaderTimeout         = "X-Request-Timeout-Ms" // of a client
	HeaderReturnMetrics   = "X-Disagg-Return-Metrics"
	HeaderReturnRoute     = "X-Disagg-Return-Route"
	HeaderReturnTokenIDs  = "X-Disagg-Return-Token-Ids"
	HeaderRoute           = "X-Tandem-Route"
)

// Key signs and verifies internal fields. An empty key signs nothing.
type Key []byte

// Affinity is what X-Disagg-Affinity-Auth covers. Role is the role of the leg,
// RoleContext or RoleGeneration, also for a mixed worker. Nil is null.
type Affinity struct {
	Role           string
	Model          string
	ConversationID *string
	AffinityKey    *string
	RequestType    string // empty = null
	DisaggID       *int64
}

// SignAffinity returns the value of X-Disagg-Affinity-Auth.
func (k Key) SignAffinity(a Affinity) string {
	b := append([]byte(nil), `{"affinity_key":`...)
	b = appendStringPtr(b, a.AffinityKey)
	b = append(b, `,"conversation_id":`...)
	b = appendStringPtr(b, a.ConversationID)
	b = append(b, `,"disagg_request_id":`...)
	b = appendIntPtr(b, a.DisaggID)
	b = append(b, `,"model":`...)
	b = AppendString(b, a.Model)
	b = append(b, `,"purpose":"affinity","request_type":`...)
	b = appendStringOrNull(b, a.RequestType)
	b = append(b, `,"role":`...)
	b = AppendString(b, a.Role)
	return k.sign(append(b, '}'))
}

// SignHandoff returns the value of X-Disagg-Auth for the params of a leg.
func (k Key) SignHandoff(p *DisaggParams) string {
	var rank *int64
	if p.CtxDPRank != nil {
		r := int64(*p.CtxDPRank)
		rank = &r
	}
	b := append([]byte(nil), `{"ctx_dp_rank":`...)
	b = appendIntPtr(b, rank)
	b = append(b, `,"ctx_info_endpoint":`...)
	b = appendStringPtr(b, p.CtxInfoEndpoint)
	b = append(b, `,"ctx_request_id":`...)
	b = appendIntPtr(b, p.CtxRequestID)
	b = append(b, `,"disagg_request_id":`...)
	b = appendIntPtr(b, p.DisaggRequestID)
	b = append(b, `,"encoded_opaque_state":`...)
	b = appendStringPtr(b, p.EncodedOpaqueState)
	return k.sign(append(b, `,"purpose":"handoff"}`...))
}

// SignAbort returns the value of X-Disagg-Auth for the abort of a leg.
func (k Key) SignAbort(disaggID int64) string {
	b := strconv.AppendInt([]byte(`{"disagg_request_id":`), disaggID, 10)
	return k.sign(append(b, `,"purpose":"abort"}`...))
}

// VerifyAbort checks the X-Disagg-Auth of an abort in constant time.
func (k Key) VerifyAbort(disaggID int64, got string) bool {
	return len(k) > 0 && same(k.SignAbort(disaggID), got)
}

// VerifyAffinity checks a received X-Disagg-Affinity-Auth in constant time.
func (k Key) VerifyAffinity(a Affinity, got string) bool {
	return len(k) > 0 && same(k.SignAffinity(a), got)
}

// VerifyHandoff checks a received X-Disagg-Auth in constant time.
func (k Key) VerifyHandoff(p *DisaggParams, got string) bool {
	return len(k) > 0 && p != nil && same(k.SignHandoff(p), got)
}

func same(want, got string) bool {
	return subtle.ConstantTimeCompare([]byte(want), []byte(got)) == 1
}

func (k Key) sign(canonical []byte) string {
	mac := hmac.New(sha256.New, k)
	mac.Write(canonical)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

func appendStringPtr(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return AppendString(dst, *s)
}

func appendIntPtr(dst []byte, v *int64) []byte {
	if v == nil {
		return append(dst, "null"...)
	}
	return strconv.AppendInt(dst, *v, 10)
}

// RequestID returns the X-Request-ID of a request when it is 1 to 128
// printable ASCII bytes, else a new random one.
func RequestID(h http.Header) string {
	id := h.Get(HeaderRequestID)
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			id = ""
			break
		}
	}
	if id != "" && len(id) <= 128 {
		return id
	}
	return strings.ToLower(rand.Text())
}
