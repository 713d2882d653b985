package openai

import "net/http"

// Unreadable is the body of the answer to a request that is no HTTP which the server reads. why is what the server says about
// it, or empty.
func Unreadable(status int, why string) []byte {
	e := NewError(status, CodeInvalidRequest, "the server cannot read the request as HTTP/1.1")
	e.Type = TypeInvalidRequest // whatever the status is
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		e.Message = "the headers of the request are too large together: send fewer or shorter ones"
	case status == http.StatusExpectationFailed:
		e.Message = "the server fulfils no expectation but 100-continue: leave the header Expect out"
	case status == http.StatusNotImplemented:
		e.Message += ": its transfer encoding is not chunked"
	case why != "":
		e.Message += ": " + Cut(why, 200)
	}
	return append(e.AppendJSON(nil), '\n')
}
