package worker

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"tandem/engine/request"
	"tandem/engine/runner"
	"tandem/serve/conversation"
	"tandem/serve/openai"
)

// internal is what the X-Disagg-* headers of a request say.
type internal struct {
	affinityKey    string
	tenant         string
	dpRank         int // -1 = none
	dpRelax        bool
	deadline       time.Duration // remaining, 0 = none
	returnTokenIDs bool
	session        string // conversation id of a client's header, for whole requests
	returnRoute    bool
	returnMetrics  bool
}

// readInternal reads and authorises the internal headers and the protected
// fields of a request. Nothing is scheduled before it has passed.
func (s *Server) readInternal(h http.Header, q *openai.Request, info runner.Info) (internal, error) {
	in := internal{
		affinityKey: h.Get(openai.HeaderAffinityKey), tenant: h.Get(openai.HeaderTenant), dpRank: -1,
		returnTokenIDs: h.Get(openai.HeaderReturnTokenIDs) == "1", returnRoute: h.Get(openai.HeaderReturnRoute) == "1",
		returnMetrics: h.Get(openai.HeaderReturnMetrics) == "1",
	}
	if q.Disagg == nil { // a client of its own: a frontend puts the id into the body
		if r, err := conversation.Resolve(conversation.Source{Header: h}); err == nil {
			in.session = r.ID
		}
	}
	if err := s.authorise(h, q); err != nil {
		return in, err
	}
	if v := h.Get(openai.HeaderDPRank); v != "" {
		text, mode, _ := strings.Cut(v, ";")
		n, err := strconv.Atoi(strings.TrimSpace(text))
		mode = strings.TrimSpace(mode)
		if err != nil || n < 0 || n >= adpSize(info) || mode != "" && mode != "relax" {
			return in, openai.Invalid(openai.HeaderDPRank, "%s is %q: it must be a rank from 0 to %d, optionally followed by ;relax",
				openai.HeaderDPRank, openai.Cut(v, 40), adpSize(info)-1)
		}
		in.dpRank, in.dpRelax = n, mode == "relax"
	}
	if v := h.Get(openai.HeaderDeadline); v != "" {
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms > int64(24*time.Hour/time.Millisecond) {
			return in, openai.Invalid(openai.HeaderDeadline, "%s is %q: it must be the remaining milliseconds, at most a day",
				openai.HeaderDeadline, openai.Cut(v, 40))
		}
		if ms <= 0 {
			return in, openai.NewError(http.StatusGatewayTimeout, string(request.DeadlineExceeded), "the request's deadline had passed when it arrived")
		}
		in.deadline = time.Duration(ms) * time.Millisecond
	}
	return in, nil
}

// authorise applies the rules for protected fields and placement headers. With
// a key, an affinity key and protected fields need their own signature, a rank
// and a tenant need any valid one. Without a key a trusted listener will do.
func (s *Server) authorise(h http.Header, q *openai.Request) error {
	affinity := h.Get(openai.HeaderAffinityKey) != ""
	placement := h.Get(openai.HeaderDPRank) != "" || h.Get(openai.HeaderTenant) != ""
	protected := q.Disagg.Protected()
	if len(s.cfg.Key) == 0 {
		if (affinity || placement || protected) && !s.cfg.Trusted {
			return unauthorised("internal fields are accepted only on a loopback or unix listener: set internal_request_auth_key, or trust_internal_network")
		}
		return nil
	}
	signed := false
	if got := h.Get(openai.HeaderAffinityAuth); got != "" || affinity {
		if !s.cfg.Key.VerifyAffinity(affinityOf(h, q), got) {
			return unauthorised("%s is missing or does not fit the request", openai.HeaderAffinityAuth)
		}
		signed = true
	}
	if got := h.Get(openai.HeaderAuth); got != "" || protected {
		if !s.cfg.Key.VerifyHandoff(q.Disagg, got) {
			return unauthorised("%s is missing or does not fit the request", openai.HeaderAuth)
		}
		signed = true
	}
	if placement && !signed {
		return unauthorised("%s and %s need a signed request", openai.HeaderDPRank, openai.HeaderTenant)
	}
	return nil
}

func affinityOf(h http.Header, q *openai.Request) openai.Affinity {
	a := openai.Affinity{Model: q.Model, ConversationID: conversationOf(q)}
	if key := h.Get(openai.HeaderAffinityKey); key != "" {
		a.AffinityKey = &key
	}
	if q.Disagg != nil {
		a.RequestType = q.Disagg.RequestType
		a.DisaggID = q.Disagg.DisaggRequestID
	}
	a.Role = openai.LegRole(a.RequestType)
	return a
}

// conversationOf returns the conversation id: conversation_params, else the
// member that older frontends put into disaggregated_params.
func conversationOf(q *openai.Request) *string {
	if q.ConversationID == nil && q.Disagg != nil {
		return q.Disagg.LegacyConversationID
	}
	return q.ConversationID
}

// routingKey is the affinity key of the engine request: the key that placement
// looks up, under the tenant when there is one.
func (in internal) routingKey(conversation string) string {
	if in.tenant == "" {
		return in.affinityKey
	}
	key := in.affinityKey
	if key == "" {
		key = conversation
	}
	if key == "" {
		return ""
	}
	return in.tenant + "\x00" + key
}

func unauthorised(format string, args ...any) error {
	return openai.NewError(http.StatusUnauthorized, openai.CodeUnauthorized, format, args...)
}

// adpSize is the number of ranks that requests are placed on, at least 1.
func adpSize(i runner.Info) int { return max(1, i.Ranks) }
