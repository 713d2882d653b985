package worker

import (
	"context"
	"errors"
	"strings"
	"testing"

	"tandem/engine/executor"
	"tandem/engine/request"
	"tandem/serve/openai"
)

// follow pushes text and reports whether the guide takes it as a whole.
func follow(g request.Guide, text string) bool {
	m := g.Start()
	for _, b := range []byte(text) {
		if !m.Push(int32(b)) {
			return false
		}
	}
	_, end, err := m.Mask()
	return end && err == nil
}

func TestStructuredOutput(t *testing.T) {
	e := newEngine(executor.Mixed, "{}")
	srv := serveFake(t, e, nil)
	const schema = `{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}`
	for _, c := range []struct{ field, good, bad string }{
		{`"response_format":{"type":"json_object"}`, `{"x":[1]}`, `[1]`},
		{`"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":` + schema + `}}`, `{"a":3}`, `{"x":3}`},
		{`"guided_json":` + schema, `{"a": 3}`, `{"a":"3"}`},
		{`"guided_json":"{\"type\":\"null\"}"`, `null`, `true`},
		{`"guided_regex":"a+b"`, `aab`, `b`},
		{`"guided_choice":["yes","no"]`, `no`, `maybe`},
		{`"structured_outputs":{"json":` + schema + `}`, `{"a":3}`, `{}`},
		{`"structured_outputs":{"regex":"x"}`, `x`, `y`},
		{`"guided_grammar":"root ::= \"a\" [0-9]+"`, `a12`, `a`},
		{`"structured_outputs":{"grammar":"root ::= num (\"+\" num)*\nnum ::= [0-9]"}`, `1+2+3`, `1+`},
		{`"structured_outputs":{"choice":["p"]}`, `p`, `q`},
		{`"structured_outputs":{"json_object":true}`, `{}`, `1`},
	} {
		status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":3,`+c.field+`}`)
		if status != 200 {
			t.Errorf("%s: %d %s", c.field, status, text)
			continue
		}
		g := e.last(t).Guide
		if g == nil || !follow(g, c.good) || follow(g, c.bad) {
			t.Errorf("%s takes not %s, or takes %s", c.field, c.good, c.bad)
		}
	}
	if status, _, _ := post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":3,"response_format":{"type":"text"},"structured_outputs":{"json_object":false}}`); status != 200 || e.last(t).Guide != nil {
		t.Errorf("free output: %d, guide %v", status, e.last(t).Guide)
	}
	for field, want := range map[string]string{
		`"guided_json":{"type":"thing"}`: "invalid_grammar",
		`"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","contains":{}}}}`: `"code":"invalid_grammar"`,
		`"guided_regex":"("`:                                         "cannot be read",
		`"guided_regex":"a","guided_choice":["b"]`:                   "both ask for a structure",
		`"guided_choice":[]`:                                         "is empty",
		`"guided_grammar":"root ::= x"`:                              `line 1: the rule \"x\" is not defined`,
		`"response_format":{"type":"xml"}`:                           "not supported",
		`"response_format":{"type":"json_schema"}`:                   "json_schema",
		`"response_format":{"type":"json_object"},"ignore_eos":true`: "never let the answer end",
		`"structured_outputs":{"grammars":"x"}`:                      "use json",
	} {
		if status, _, text := post(t, srv.URL+"/v1/completions", `{"prompt":"x","max_tokens":3,`+field+`}`); status != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", field, status, text)
		}
	}
}

func TestGuidesAreKeptAndBounded(t *testing.T) {
	b := &Backend{Tokenizer: byteTokenizer(t)}
	g := newGuides()
	ask := &openai.Guided{Kind: "choice", Text: `["a"]`, Param: "guided_choice"}
	first, err := g.get(t.Context(), b, 300, ask, guideTime)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := g.get(t.Context(), b, 300, ask, 0); again != first {
		t.Error("compiled twice")
	}
	if first.Start().Push(eosID) || first.Start().Push(299) {
		t.Error("a special token, or one beyond the tokenizer, is text")
	}
	for i := range 3 * maxGuides {
		if _, err := g.get(t.Context(), b, 300, &openai.Guided{Kind: "choice", Text: `["` + strings.Repeat("a", i+1) + `"]`}, guideTime); err != nil {
			t.Fatal(err)
		}
	}
	if len(g.of) != maxGuides || len(g.last) != maxGuides {
		t.Errorf("%d grammars are kept", len(g.of))
	}
	// Out of time, it is this request's error.
	_, err = g.get(t.Context(), b, 300, &openai.Guided{Kind: "json_object", Param: "response_format"}, -1)
	var e *request.Error
	if !errors.As(err, &e) || e.Code != request.InvalidGrammar || e.Param != "response_format" || !strings.Contains(e.Message, "too long") {
		t.Errorf("%v", err)
	}
	// Others compile: it waits for its turn, unless its grammar is there.
	for range guidesAtOnce {
		g.slots <- struct{}{}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.get(gone, b, 300, ask, guideTime); !errors.Is(err, context.Canceled) {
		t.Errorf("without a turn: %v", err)
	}
	if _, err := g.get(gone, b, 300, &openai.Guided{Kind: "choice", Text: `["` + strings.Repeat("a", 3*maxGuides) + `"]`}, guideTime); err != nil {
		t.Errorf("a grammar that is kept: %v", err)
	}
	if c, err := compileGuide(guideKey{"regex", "a"}, nil, func() bool { return false }); c != nil || err == nil {
		t.Errorf("a panic: %v %v", c, err)
	}
}
