package conversation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"
)

// MaxIDBytes is the longest conversation id accepted from a client, in bytes after trimming.
const MaxIDBytes = 512

// Names of the body fields that errors point at.
const (
	ParamConversation = "conversation_params"
	ParamID           = "conversation_params.conversation_id"
	ParamSession      = "nvext.session_control.session_id"
)

// headerNames are the headers that may carry an id, strongest first.
var headerNames = []string{
	"X-Claude-Code-Session-Id", "X-Claude-Session-Id", "X-Session-Id",
	"X-Correlation-Id", "X-Session-Affinity", "X-Multi-Turn-Session-Id",
}

// FieldError is a client's mistake in a body field; it becomes a 400 that names Param.
type FieldError struct {
	Param   string
	Message string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Param + ": " + e.Message }

// Source is what an id may come from. The raw fields are nil when the body lacks them.
type Source struct {
	ConversationParams json.RawMessage // body field conversation_params
	NVExt              json.RawMessage // body field nvext
	Header             http.Header
}

// Resolved is the outcome of Resolve.
type Resolved struct {
	ID       string // "" = the request belongs to no conversation
	Parent   string // whose sub-agent the request is from, "" = nobody's; always "" without Rules that tell
	Rejected int    // headers that were ignored because their value was too long or unprintable
}

// Resolve is Rules.Resolve with the zero Rules.
func Resolve(src Source) (Resolved, error) { return Rules{}.Resolve(src) }

// Resolve returns the conversation id: body conversation_params, then body nvext, then the first usable header of the
// agents that the rules name, then of HeaderNames; and beside it the parent, which comes from headers alone. An invalid
// body id is a *FieldError; an invalid header is ignored and counted.
func (r Rules) Resolve(src Source) (Resolved, error) {
	own, err := paramsID(src.ConversationParams)
	if err != nil {
		return Resolved{}, err
	}
	session, err := sessionID(src.NVExt)
	if err != nil {
		return Resolved{}, err
	}
	if own != "" && session != "" && own != session {
		return Resolved{}, &FieldError{ParamID, fmt.Sprintf("differs from %s; send one of them", ParamSession)}
	}
	if own == "" {
		own = session
	}
	head := headers{h: src.Header}
	out := Resolved{ID: own}
	if own == "" {
		out.ID = r.session(&head)
	}
	out.Parent = r.parent(&head)
	out.Rejected = head.rejected
	return out, nil
}

// printable tells whether a header value may be an id: at most MaxIDBytes of valid UTF-8 without control characters.
func printable(s string) bool {
	if len(s) > MaxIDBytes || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < 0x20 || (r >= 0x7f && r < 0xa0) {
			return false
		}
	}
	return true
}

func absent(raw json.RawMessage) bool {
	t := bytes.TrimSpace(raw)
	return len(t) == 0 || bytes.Equal(t, []byte("null"))
}

func paramsID(raw json.RawMessage) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return "", &FieldError{ParamConversation, "must be an object with the key conversation_id"}
	}
	idRaw, ok := fields["conversation_id"]
	if !ok {
		return "", &FieldError{ParamID, "is required inside conversation_params"}
	}
	if len(fields) > 1 {
		return "", &FieldError{ParamConversation, "accepts no key but conversation_id"}
	}
	id, err := idText(idRaw, ParamID)
	if err == nil && id == "" {
		err = &FieldError{ParamID, "must not be empty or null"}
	}
	return id, err
}

func sessionID(raw json.RawMessage) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var ext struct {
		Control *struct {
			ID json.RawMessage `json:"session_id"`
		} `json:"session_control"`
	}
	if err := json.Unmarshal(raw, &ext); err != nil {
		return "", &FieldError{"nvext", "must be an object, and so must its session_control"}
	}
	if ext.Control == nil {
		return "", nil
	}
	return idText(ext.Control.ID, ParamSession)
}

// idText trims a JSON string or takes the decimal text of a JSON number; null and blank give "".
func idText(raw json.RawMessage, param string) (string, error) {
	if absent(raw) {
		return "", nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		var num json.Number
		if err := json.Unmarshal(raw, &num); err != nil {
			return "", &FieldError{param, "must be a string"}
		}
		text = num.String()
	}
	text = strings.TrimSpace(text)
	if len(text) > MaxIDBytes {
		return "", &FieldError{param, fmt.Sprintf("is longer than %d bytes", MaxIDBytes)}
	}
	return text, nil
}
