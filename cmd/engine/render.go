package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tandem/engine/tokenizer"
	"tandem/engine/tokenizer/chat"
	"tandem/serve/openai"
)

// Limits of a template that came with a request. It is a program of a stranger, which may loop for ever or ask for all
// memory, so it runs in a process of its own that is killed.
const (
	renderTime    = 2 * time.Second
	renderMemory  = 1 << 30 // bytes of address space beyond what the process begins with
	renderHeap    = 256 << 20
	renderOutput  = 16 << 20
	renderAtOnce  = 2
	renderCommand = "render-chat"
)

// rendering is what the process is asked.
type rendering struct {
	Source             string
	BOS, EOS, Pad, Unk string
	Messages           json.RawMessage
	Tools              json.RawMessage `json:",omitempty"`
	Kwargs             json.RawMessage `json:",omitempty"`
}

// rendered is what it answers.
type rendered struct {
	Text  string
	Param string `json:",omitempty"` // of the request, to blame; empty = Text is the prompt
	Error string `json:",omitempty"`
}

// renderChat is the hidden command that renders one chat from stdin to stdout, within limits.
func renderChat() *cobra.Command {
	return &cobra.Command{
		Use: renderCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := confine(); err != nil {
				return err
			}
			var in rendering
			if err := json.NewDecoder(cmd.InOrStdin()).Decode(&in); err != nil {
				return fmt.Errorf("request: %w", err)
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(in.run())
		},
	}
}

// confine bounds this process for good.
func confine() error {
	debug.SetMemoryLimit(renderHeap)
	size, err := addressSpace()
	if err != nil {
		return err
	}
	for what, limit := range map[int]uint64{syscall.RLIMIT_AS: size + renderMemory, syscall.RLIMIT_CPU: uint64(renderTime / time.Second), syscall.RLIMIT_CORE: 0} {
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit %d: %w", what, err)
		}
	}
	return nil
}

// addressSpace is what this process has mapped, in bytes.
func addressSpace() (uint64, error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("address space: %w", err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(data), &pages); err != nil {
		return 0, fmt.Errorf("address space: %w", err)
	}
	return pages * uint64(os.Getpagesize()), nil
}

func (in *rendering) run() rendered {
	t, err := chat.NewTemplate(in.Source, chat.Options{BOS: in.BOS, EOS: in.EOS, Pad: in.Pad, Unk: in.Unk})
	if err != nil {
		return rendered{Param: "chat_template", Error: err.Error()}
	}
	text, err := t.Render(chat.Input{Messages: in.Messages, Tools: in.Tools, AddGenerationPrompt: true, Extra: in.Kwargs})
	var refused *chat.RenderError
	switch {
	case errors.As(err, &refused):
		return rendered{Param: refused.Param, Error: err.Error()}
	case err != nil:
		return rendered{Param: "chat_template", Error: err.Error()}
	case len(text) > renderOutput/8:
		return rendered{Param: "chat_template", Error: fmt.Sprintf("the template makes more than %d bytes", renderOutput/8)}
	}
	return rendered{Text: text}
}

// sandbox renders chats by templates of requests, a few at once.
type sandbox struct {
	tokens rendering // with the special tokens
	places chan struct{}
	path   string        // of this program
	limit  time.Duration // of one rendering
}

func newSandbox(own *chat.Template, tok *tokenizer.Tokenizer) *sandbox {
	s := &sandbox{places: make(chan struct{}, renderAtOnce), limit: renderTime}
	switch {
	case own != nil:
		o := own.Options()
		s.tokens = rendering{BOS: o.BOS, EOS: o.EOS, Pad: o.Pad, Unk: o.Unk}
	case tok.BOS() >= 0:
		s.tokens.BOS = tok.Token(tok.BOS())
	}
	s.path, _ = os.Executable() // without a path each rendering fails, and says so
	return s
}

// render is worker.Backend.Foreign.
func (s *sandbox) render(ctx context.Context, source string, messages, tools, kwargs json.RawMessage) (string, error) {
	in := s.tokens
	in.Source, in.Messages, in.Tools, in.Kwargs = source, messages, tools, kwargs
	data, err := json.Marshal(in)
	if err != nil {
		return "", openai.Invalid("messages", "the chat cannot be passed on: %v", err)
	}
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.path, renderCommand)
	var out, log limited
	out.left, log.left = renderOutput, 4<<10
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &log
	cmd.Env, cmd.WaitDelay = []string{}, time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", openai.Invalid("chat_template", "the template takes more than %v: simplify it", s.limit)
		}
		line, _, _ := strings.Cut(log.String(), "\n")
		return "", openai.Invalid("chat_template", "the template cannot be rendered within its limits: %s", openai.Cut(line, 200))
	}
	var got rendered
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return "", openai.Invalid("chat_template", "the template makes too much text")
	}
	if got.Error != "" {
		return "", openai.Invalid(got.Param, "%s", openai.Cut(got.Error, openai.MaxErrorText))
	}
	return got.Text, nil
}

// limited keeps the beginning of what is written.
type limited struct {
	bytes.Buffer
	left int
}

// Write implements io.Writer; what is too much fails.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, io.ErrShortBuffer
	}
	l.left -= len(p)
	return l.Buffer.Write(p)
}
