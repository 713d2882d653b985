// Command micro runs Go benchmarks of single pieces and prints their medians as a table.
//
//	go run ./test/bench/micro -only sampler
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// group is the benchmarks of a package that the table has.
type group struct {
	pkg, bench, what string
	once             bool // an operation takes its time by itself
}

var groups = []group{
	{pkg: "./engine/executor", bench: "Decode256", what: "planning a decoding step of 256 requests, without and with 1,000 waiting"},
	{pkg: "./engine/blockhash", bench: "Prompt131072", what: "hashing a prompt of 131,072 tokens"},
	{pkg: "./engine/sampler", bench: "Sample/^(greedy|temperature|top_k=40|top_p=.95)$", what: "choosing from 49,152 logits"},
	{pkg: "./engine/tokenizer", bench: "Encode/^(prose|qwen3)$", what: "text to tokens, with the default model's tokenizer and another"},
	{pkg: "./engine/tokenizer", bench: "StreamPush", what: "a token to text"},
	{pkg: "./engine/transfer/wire", bench: "Pull/^(inproc|shm|stage|tcp|tcp-sums)$", what: "64 MiB of blocks in one process; sums are the CRC-32C of links between hosts"},
	{
		pkg: "./test/handover", bench: "PipelinedPull",
		what: "prompt of 8,192 tokens, 256 MiB, in chunks that take 60 ms: how long gen waits after the prefill (rest), and would without pipelining (whole)",
	},
	{pkg: "./engine/cpu", bench: "SmolLM2Shape", what: "steps of a random model of the default model's shape"},
	{pkg: "./engine/cpu", bench: "Qwen3MoELayer", what: "a layer of 128 experts of Qwen3-30B-A3B's shape, beside a dense one of the same active width"},
	{pkg: "./test/bench/load", bench: "Streams", what: "the load client on one processor: 2,000 streams of ten chunks a second", once: true},
}

// options are the flags.
type options struct {
	tool, only, time string
	count            int
}

func main() {
	var o options
	flag.StringVar(&o.tool, "go", "go", "the go command")
	flag.StringVar(&o.only, "only", "", "benchmarks of packages whose path contains this, empty = all")
	flag.StringVar(&o.time, "benchtime", "1s", "time of each run of a benchmark")
	flag.IntVar(&o.count, "count", 3, "runs of each benchmark; the table has medians")
	flag.Parse()
	if err := run(&o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "micro:", err)
		os.Exit(1)
	}
}

func run(o *options, out, log io.Writer) error {
	var table strings.Builder
	fmt.Fprintf(&table, "Medians of %d runs of `go test PACKAGE -run xxx -bench NAME`.\n\n", o.count)
	table.WriteString("| package | benchmark | time of one | other figures |\n|---|---|---|---|\n")
	rows := 0
	for _, g := range groups {
		if !strings.Contains(g.pkg, o.only) {
			continue
		}
		_, _ = fmt.Fprintf(log, "%s: %s\n", g.pkg, g.what)
		text, err := o.test(g, log)
		list := parse(text)
		if err == nil && len(list) == 0 {
			err = fmt.Errorf("no benchmark is called %s", g.bench)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", g.pkg, err)
		}
		fmt.Fprintf(&table, "| `%s` | *%s* | | |\n", strings.TrimPrefix(g.pkg, "./"), g.what)
		for i := range list {
			table.WriteString(list[i].row())
		}
		rows += len(list)
	}
	if rows == 0 {
		return fmt.Errorf("-only %s: there is no such package", o.only)
	}
	_, err := io.WriteString(out, table.String())
	return err //nolint:wrapcheck // it names the file
}

// test runs a group and returns what go test printed.
func (o *options) test(g group, log io.Writer) (string, error) {
	each := o.time
	if g.once {
		each = "1x"
	}
	cmd := exec.Command(o.tool, "test", g.pkg, "-run", "^$", "-bench", g.bench, "-benchmem", "-benchtime", each, "-count", strconv.Itoa(o.count), "-timeout", "30m")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&text, log), log
	err := cmd.Run()
	return text.String(), err //nolint:wrapcheck // the caller names the package
}
