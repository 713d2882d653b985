package openai

import (
	"net/http"
	"strings"
	"testing"
)

func TestUnreadable(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusBadRequest: "missing Host", http.StatusRequestHeaderFieldsTooLarge: "fewer or shorter", http.StatusNotImplemented: "not chunked",
		http.StatusExpectationFailed: "Expect",
	} {
		e := ParseError(status, nil, Unreadable(status, "missing Host"))
		if e.Type != TypeInvalidRequest || e.Code != CodeInvalidRequest || !strings.Contains(e.Message, want) {
			t.Errorf("%d: %+v", status, e)
		}
	}
}

// What a peer says beside the message of an error is short as well, whatever it says.
func TestParseErrorIsShort(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	e := ParseError(http.StatusBadRequest, nil, []byte(`{"error":{"message":"`+long+`","type":"`+long+`","param":"`+long+`","code":"`+long+`"}}`))
	if n := len(e.AppendJSON(nil)); n > 4<<10 {
		t.Errorf("%d bytes", n)
	}
}
