package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Foreign starts a server of another project that speaks the OpenAI API, on a free port of this machine, which args tells
// for that port, and waits until it lists its models.
func Foreign(ctx context.Context, limit time.Duration, program string, args func(port string) []string) (*Process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p, err := Start(ctx, nil, program, args(port)...)
	if err != nil {
		return nil, err
	}
	p.URL = "http://127.0.0.1:" + port
	client := &http.Client{Timeout: 5 * time.Second}
	return p, p.Until(ctx, limit, func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/v1/models", nil)
		if err != nil {
			return false
		}
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = resp.Body.Close() // its status is all that counts
		return resp.StatusCode == http.StatusOK
	})
}

// freePort is a port that nobody listens on now.
func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("a port for a server: %w", err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return strconv.Itoa(port), ln.Close()
}

// LlamaServer is llama.cpp's own server.
type LlamaServer struct {
	Program string        // llama-server, or what understands its arguments
	Model   string        // GGUF file
	Threads int           // compute threads, 0 = its own choice
	Args    []string      // more arguments
	Wait    time.Duration // how long it may take to start
}

// Start starts the server.
func (s LlamaServer) Start(ctx context.Context) (*Process, error) {
	return Foreign(ctx, s.Wait, s.Program, func(port string) []string {
		args := []string{"-m", s.Model, "--host", "127.0.0.1", "--port", port}
		if s.Threads > 0 {
			args = append(args, "-t", strconv.Itoa(s.Threads))
		}
		return append(args, s.Args...)
	})
}
