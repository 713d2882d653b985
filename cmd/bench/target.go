package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tandem/engine/hub"
	"tandem/engine/runner"
	"tandem/engine/tokenizer"
	"tandem/test/bench/load"
	"tandem/test/bench/result"
)

// targetFlags say how to speak to a server.
type targetFlags struct {
	api, model, key, tokenizer, session, extra string
	headers                                    []string
	promptIDs, ignoreEOS, forceClose, stream   bool
	temperature                                float64
	timeout                                    time.Duration
}

// sessionHeaders are the headers that carry a conversation's id, its parent's, and that it ends, by preset.
var sessionHeaders = map[string][3]string{
	"default":     {"X-Session-ID", "X-Parent-Session-ID", ""},
	"dynamo":      {"X-Dynamo-Session-ID", "X-Dynamo-Parent-Session-ID", "X-Dynamo-Session-Final"},
	"sglang":      {"X-SMG-Routing-Key", "", ""},
	"claude-code": {"X-Claude-Code-Session-Id", "", ""},
	"codex":       {"Session-Id", "X-Codex-Parent-Thread-Id", ""},
	"opencode":    {"X-Session-Affinity", "X-Parent-Session-Id", ""},
	"none":        {},
}

func (f *targetFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.api, "api", "chat", "endpoint: chat or completions")
	fs.StringVar(&f.model, "model", "", "model to ask for, empty = the first that the server lists")
	fs.StringVar(&f.key, "api-key", "", "bearer token, empty = OPENAI_API_KEY")
	fs.StringVar(&f.tokenizer, "tokenizer", "", "model (alias, GGUF file or folder) whose tokenizer makes prompts and counts answers; empty = plain words, which most tokenizers have as one token each")
	fs.StringVar(&f.session, "session-headers", "default", "headers with conversation ids: default, dynamo, sglang, claude-code, codex, opencode, none, or NAME[,PARENT[,FINAL]]")
	fs.StringVar(&f.extra, "extra-body", "", "JSON object with members for every request body; they win")
	fs.StringArrayVarP(&f.headers, "header", "H", nil, "header \"Name: value\" for every request (repeat it for more)")
	fs.BoolVar(&f.promptIDs, "prompt-ids", false, "send prompts as token ids; needs --api completions and --tokenizer")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", true, "ask for answers of exactly the wanted length (ignore_eos, min_tokens)")
	fs.BoolVar(&f.stream, "stream", true, "ask for streams; without, answers come in one piece, and of times only the end is known")
	fs.BoolVar(&f.forceClose, "force-close", false, "a new connection for each request")
	fs.Float64Var(&f.temperature, "temperature", 0, "sampling temperature")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Minute, "limit of one request")
}

// server is a target that answers.
type server struct {
	client  *load.Client
	prompts *load.Prompts
	info    result.Target
	exact   bool // prompts are made with the server's tokenizer
}

// patience is how long a server may take to answer a short request before the user is told.
const patience = 10 * time.Second

// open prepares the client of a server, and asks it for its model.
func (f *targetFlags) open(ctx context.Context, name, addr string, log io.Writer) (*server, error) {
	if !strings.Contains(addr, "://") {
		addr = "http://" + addr
	}
	c := &load.Client{URL: addr, API: load.API(f.api), Model: f.model, Key: f.key, Timeout: f.timeout, ForceClose: f.forceClose}
	if c.Key == "" {
		c.Key = os.Getenv("OPENAI_API_KEY")
	}
	p := &load.Prompts{API: c.API, IDs: f.promptIDs, Whole: !f.stream, IgnoreEOS: f.ignoreEOS, Temperature: f.temperature}
	if err := f.settings(c, p); err != nil {
		return nil, err
	}
	if c.Model == "" {
		models, err := c.Models(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w; start a server there, name another URL, or --model if it has no list", err)
		}
		if len(models) == 0 {
			return nil, fmt.Errorf("%s lists no model: name one with --model", addr)
		}
		c.Model = models[0]
	}
	p.Model = c.Model
	s := &server{client: c, prompts: p, info: result.Target{Name: name, URL: addr, Model: c.Model}}
	if err := s.vocabulary(f.tokenizer); err != nil {
		return nil, err
	}
	s.describe(ctx)
	slow := time.AfterFunc(patience, func() {
		_, _ = fmt.Fprintf(log, "%s has not answered a short request yet: it is waited for as long as --timeout says (%v)\n", s.info.Name, f.timeout)
	})
	defer slow.Stop()
	return s, s.calibrate(ctx, log)
}

// settings reads the flags that are texts.
func (f *targetFlags) settings(c *load.Client, p *load.Prompts) error {
	switch {
	case c.API != load.Chat && c.API != load.Completions:
		return fmt.Errorf("--api %q: want chat or completions", f.api)
	case !(f.temperature >= 0 && f.temperature <= 100):
		return fmt.Errorf("--temperature %g: want 0 to 100", f.temperature)
	case f.promptIDs && (c.API != load.Completions || f.tokenizer == ""):
		return errors.New("--prompt-ids needs --api completions and --tokenizer")
	case f.timeout < 0:
		return fmt.Errorf("--timeout %v: must not be negative, 0 = no limit", f.timeout)
	}
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("server %q: want a URL like %s", c.URL, defaultURL)
	}
	c.Extra = http.Header{}
	for _, h := range f.headers {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || !token(name) || strings.ContainsAny(value, "\r\n\x00") || framing[http.CanonicalHeaderKey(name)] {
			return fmt.Errorf("--header %q: want \"Name: value\" of a header that does not frame the request", h)
		}
		c.Extra.Add(name, strings.TrimSpace(value))
	}
	if f.extra != "" {
		if err := json.Unmarshal([]byte(f.extra), &p.Extra); err != nil {
			return fmt.Errorf("--extra-body: %w: want a JSON object", err)
		}
	}
	names, ok := sessionHeaders[f.session]
	if !ok {
		parts := strings.Split(f.session, ",")
		if len(parts) > 3 || strings.ContainsAny(f.session, " :") {
			return fmt.Errorf("--session-headers %q: want a preset or NAME[,PARENT[,FINAL]]", f.session)
		}
		copy(names[:], parts)
	}
	c.SessionHeader, c.ParentHeader, c.FinalHeader = names[0], names[1], names[2]
	return nil
}

// framing are the headers that say where a request ends, which only the client knows.
var framing = map[string]bool{"Content-Length": true, "Transfer-Encoding": true, "Connection": true}

// token tells whether a text can be the name of a header.
func token(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) })
}

// vocabulary chooses the words of prompts.
func (s *server) vocabulary(name string) error {
	if name == "" {
		s.prompts.Vocabulary = load.PlainVocabulary()
		return nil
	}
	tok, err := openTokenizer(name)
	if err != nil {
		return fmt.Errorf("--tokenizer: %w", err)
	}
	encode := func(text string) []int32 {
		ids, err := tok.Encode(text, tokenizer.EncodeOptions{})
		if err != nil {
			return nil // longer than any text here
		}
		return ids
	}
	decode := func(id int32) string {
		if tok.IsSpecial(id) {
			return ""
		}
		return string(tok.TokenBytes(id))
	}
	if s.prompts.Vocabulary, err = load.NewVocabulary(tok.VocabSize(), decode, encode); err != nil {
		return fmt.Errorf("--tokenizer: %w", err)
	}
	s.client.Count = func(text string) int { return len(encode(text)) }
	s.exact = true
	return nil
}

// openTokenizer reads the tokenizer of a model, without its weights.
func openTokenizer(name string) (*tokenizer.Tokenizer, error) {
	path, err := hub.Locate(name)
	if err != nil {
		return nil, err
	}
	text, err := runner.LoadText(path, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return text.Tokenizer, nil
}

// describe notes what the server says of itself; servers that say nothing are as good.
func (s *server) describe(ctx context.Context) {
	if data, err := s.client.Get(ctx, "/version"); err == nil && len(data) < 500 {
		s.info.Server = strings.TrimSpace(string(data))
	}
	if data, err := s.client.Get(ctx, "/server_info"); err == nil {
		sum := sha256.Sum256(data)
		s.info.Config = hex.EncodeToString(sum[:8])
	}
}

// calibrate learns what the server's template adds, which prompts then leave room for.
func (s *server) calibrate(ctx context.Context, log io.Writer) error {
	cal, err := load.Calibrate(ctx, s.client, s.prompts)
	if err != nil {
		return err
	}
	switch {
	case !cal.Known:
		_, _ = fmt.Fprintf(log, "%s does not tell token counts of streams: lengths of prompts are those asked for, answers are counted %s\n",
			s.info.Name, map[bool]string{true: "by --tokenizer", false: "as asked for where they end by length (name its --tokenizer to count them)"}[s.exact])
	case cal.PerWord < 0.98 || cal.PerWord > 1.02:
		_, _ = fmt.Fprintf(log, "%s has %.3f tokens for a word of the prompts: lengths are off by that unless --tokenizer names its tokenizer\n", s.info.Name, cal.PerWord)
	}
	if !s.prompts.IDs {
		s.prompts.Overhead = cal.Overhead
	}
	return nil
}
