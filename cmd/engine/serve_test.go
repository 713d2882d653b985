package main

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"tandem/engine/executor"
	"tandem/engine/runner"
	"tandem/serve/config"
)

func TestWireHost(t *testing.T) {
	v4 := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8001}
	all := &net.TCPAddr{IP: net.IPv6unspecified, Port: 8001} // what a listener on 0.0.0.0 calls itself
	for _, c := range []struct {
		host string
		at   net.Addr
		want string
	}{
		{"localhost", v4, "127.0.0.1"},
		{"0.0.0.0", all, "0.0.0.0"},
		{"", all, "0.0.0.0"},
		{"::", all, "::"},
	} {
		if got := wireHost(c.host, c.at); got != c.want {
			t.Errorf("%q: %q, want %q", c.host, got, c.want)
		}
	}
}

func TestSpread(t *testing.T) {
	const adp = "enable_attention_dp: true\nattention_dp_config: {kv_cache_routing_new_conv_placement: least_work, dense_mlp: split}\n"
	for _, tc := range []struct {
		name, yaml, group, ranks string
		want                     func(*runner.LoadOptions) bool
	}{
		{"one rank", adp, "", "", func(o *runner.LoadOptions) bool {
			return o.Ranks == 1 && !o.AttentionDP && !o.SplitMLP && o.Group == nil && o.HangTimeout == 30*time.Second
		}},
		{"tensor parallel", "tensor_parallel_size: 4\nhang_timeout_sec: 0", "", "", func(o *runner.LoadOptions) bool {
			return o.Ranks == 4 && !o.AttentionDP && o.Group == nil && o.HangTimeout == 0
		}},
		{"attention DP", adp + "tensor_parallel_size: 4", "", "", func(o *runner.LoadOptions) bool {
			return o.Ranks == 4 && o.AttentionDP && o.SplitMLP && o.ADP.Placement == "least_work"
		}},
		{"over processes", adp + "tensor_parallel_size: 4", "h:1", "2-3", func(o *runner.LoadOptions) bool {
			g := o.Group
			return g != nil && g.Addr == "h:1" && g.First == 2 && g.Last == 3 && string(g.Key) == "secret" && g.Host == "0.0.0.0" // other hosts fetch moved blocks there
		}},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		w, _, err := config.LoadWorker(executor.Ctx, config.Source{Data: []byte(tc.yaml), LookupEnv: func(string) (string, bool) { return "", false }})
		if err != nil {
			t.Fatal(err)
		}
		p := &process{cfg: w, host: "0.0.0.0", listener: ln, log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		if p.group, err = w.Group(tc.group, tc.ranks); err != nil {
			t.Fatal(err)
		}
		var o runner.LoadOptions
		p.spread(&o, []byte("secret"))
		if !tc.want(&o) {
			t.Errorf("%s: %+v", tc.name, o)
		}
	}
}

// Wrong flags of a group end the process before it opens anything.
func TestServeGroupFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--rank-group h:1":             "--rank-group needs --ranks",
		"--ranks 0":                    "--ranks needs --rank-group",
		"--tp_size 2":                  "tensor_parallel_size",
		"--rank-group h:1 --ranks 0-1": "tensor_parallel_size above 1",
	} {
		cmd := serveCommand()
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetArgs(append([]string{"absent.gguf"}, strings.Fields(flags)...))
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", flags, err, want)
		}
	}
}

// An instance that rank 0 has ended is no failure of the processes of its other ranks.
func TestEndOfAnInstance(t *testing.T) {
	p := &process{log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if err := p.dead(nil); err == nil {
		t.Error("an engine that stops by itself is a failure")
	}
	p.group = &config.RankGroup{First: 1, Last: 1}
	if err := p.dead(nil); err != nil {
		t.Error(err)
	}
	if err := p.dead(io.EOF); err == nil {
		t.Error("a lost peer is a failure")
	}
	died := make(chan error, 1)
	died <- nil
	if err := p.follow(t.Context(), nil, died); err != nil {
		t.Error(err)
	}
}
