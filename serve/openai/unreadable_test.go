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
