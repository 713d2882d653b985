// Command agree measures one stub server with bench serve, aiperf and guidellm in
// turns and says whether they agree, metric by metric as each defines it.
//
//	go run ./test/bench/agree -bench bin/bench -aiperf VENV/bin/aiperf -guidellm VENV/bin/guidellm
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"tandem/test/bench/stub"
)

// options are the flags.
type options struct {
	bench, aiperf, guidellm, tokenizer string
	rounds                             int
	load                               load
}

// load is what each tool sends.
type load struct {
	requests, concurrency, in, out int
	ttft, itl                      time.Duration
}

func main() {
	var o options
	isStub := flag.Bool("stub", false, "be the server, until stdin ends")
	flag.StringVar(&o.bench, "bench", "bin/bench", "our program")
	flag.StringVar(&o.aiperf, "aiperf", ".cache/aiperf/bin/aiperf", "aiperf; it is left out if it is not there")
	flag.StringVar(&o.guidellm, "guidellm", ".cache/guidellm/bin/guidellm", "guidellm; it is left out if it is not there")
	flag.StringVar(&o.tokenizer, "tokenizer", ".cache/vendor-tokenizers/qwen3", "folder with the tokenizer that the others make prompts with")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds; in each, all tools take turns")
	flag.IntVar(&o.load.requests, "requests", 60, "requests of each turn")
	flag.IntVar(&o.load.concurrency, "concurrency", 4, "requests in flight")
	flag.IntVar(&o.load.in, "isl", 64, "tokens of a prompt")
	flag.IntVar(&o.load.out, "osl", 32, "tokens of an answer")
	flag.DurationVar(&o.load.ttft, "ttft", 120*time.Millisecond, "the stub's time to its first token")
	flag.DurationVar(&o.load.itl, "itl", 20*time.Millisecond, "the stub's time between tokens")
	flag.Parse()
	run := func() error { return agree(&o, os.Stdout, os.Stderr) }
	if *isStub {
		run = func() error { return serve(&stub.Server{TTFT: o.load.ttft, ITL: o.load.itl}, os.Stdin, os.Stdout) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agree:", err)
		os.Exit(1)
	}
}

// serve prints its address and serves until in ends.
func serve(h http.Handler, in io.Reader, out io.Writer) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("stub: %w", err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	_, _ = fmt.Fprintf(out, "http://%s\n", ln.Addr())
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, srv.Close())
}
