package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"tandem/serve/openai"
)

// init makes this test program render a chat when the sandbox starts it as the engine.
func init() {
	if len(os.Args) != 2 || os.Args[1] != renderCommand {
		return
	}
	if err := root().Execute(); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func testSandbox(t *testing.T) *sandbox {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &sandbox{places: make(chan struct{}, 1), path: path, tokens: rendering{BOS: "<s>"}, limit: time.Minute}
}

// TestForeignTemplates: templates of requests render as those of models do; what is wrong with them is the client's, also
// when they loop for ever or want all memory.
func TestForeignTemplates(t *testing.T) {
	s := testSandbox(t)
	t.Setenv("SECRET_OF_THE_WORKER", "hidden")
	const chat = `[{"role":"user","content":"hi"}]`
	for name, c := range map[string]struct{ source, messages, kwargs, want, param string }{
		"good": {
			"{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}{{ x }}",
			chat, `{"x": "!"}`, "<s>[user]hi[assistant]!", "",
		},
		"malformed":        {"{% for %}", chat, "", "", "chat_template"},
		"refuses":          {"{{ raise_exception('no ' ~ messages[0].content) }}", chat, "", "no hi", "messages"},
		"bad variables":    {"{{ x }}", chat, `{"messages": 1}`, "", "chat_template_kwargs"},
		"no list":          {"{{ messages }}", `{}`, "", "", "messages"},
		"for ever":         {"{% for i in range(90000) %}{% for j in range(90000) %}{% for k in range(90000) %}{% endfor %}{% endfor %}{% endfor %}", chat, "", "", "chat_template"},
		"all memory":       {"{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}", chat, "", "", "chat_template"},
		"all memory again": {"{% set ns = namespace(s=[]) %}{% for i in range(90000) %}{% set ns.s = ns.s + [range(90000)] %}{% endfor %}", chat, "", "", "chat_template"},
		"too much text":    {"{% for i in range(90000) %}" + strings.Repeat("x", 300) + "{% endfor %}", chat, "", "", "chat_template"},
	} {
		var kwargs json.RawMessage
		if c.kwargs != "" {
			kwargs = json.RawMessage(c.kwargs)
		}
		text, err := s.render(t.Context(), c.source, json.RawMessage(c.messages), nil, kwargs)
		var oe *openai.Error
		switch {
		case c.param == "":
			if text != c.want || err != nil {
				t.Errorf("%s: %q %v, want %q", name, text, err, c.want)
			}
		case !errors.As(err, &oe) || oe.Param != c.param || oe.Status != 400 || !strings.Contains(oe.Message, c.want):
			t.Errorf("%s: %q %v, want a 400 for %s", name, text, err, c.param)
		}
	}
	s.limit = 50 * time.Millisecond // of a process that may not even have begun to use its processor's time
	_, err := s.render(t.Context(), "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}", json.RawMessage(chat), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "takes more than 50ms") {
		t.Errorf("it had 50 ms: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.places <- struct{}{}
	if _, err := s.render(ctx, "x", json.RawMessage(chat), nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("without a place: %v", err)
	}
}
