package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	frontend, venv        string
	streams, tokens, open int
	rounds                int
	each                  time.Duration
}

func main() {
	var o options
	isStub := flag.Bool("stub", false, "be the workers, until stdin ends")
	flag.StringVar(&o.frontend, "frontend", "bin/frontend", "Tandem's frontend")
	flag.StringVar(&o.venv, "venv", ".cache/proxies", "Python environment with sglang-router and litellm; what it lacks is left out")
	flag.IntVar(&o.streams, "streams", 200, "streams at once")
	flag.IntVar(&o.tokens, "tokens", 40, "tokens of a stream, one each 50 ms")
	flag.IntVar(&o.open, "open", 2000, "streams that are open while memory is measured")
	flag.IntVar(&o.rounds, "rounds", 3, "rounds; in each, all targets take turns")
	flag.DurationVar(&o.each, "each", 8*time.Second, "length of one target's turn with paced streams; half of it with short requests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) // proxies end with it
	run := func() error { return bench(ctx, o, os.Stdout, os.Stderr) }
	if *isStub {
		run = func() error { return serveStubs(os.Stdin, os.Stdout) }
	}
	err := run()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// manyFiles raises the limit of open files, for this process and its children.
func manyFiles() {
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		lim.Cur = lim.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim) // the default may do
	}
}

// bench measures all proxies and prints a table; progress goes to log.
func bench(ctx context.Context, o options, out, log io.Writer) error {
	manyFiles()
	addrs, stop, err := startStubs()
	if err != nil {
		return err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "bench-frontend-")
	if err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // scratch
	direct := &target{name: "direct", url: "http://" + addrs["mixed"]}
	if !live(direct.url) {
		return fmt.Errorf("the stub at %s does not answer", direct.url)
	}
	targets := []*target{direct}
	var missing []string
	for _, l := range launchers(o) {
		port, err := freePort()
		if err != nil {
			return err
		}
		t, err := l.start(ctx, dir, addrs, port)
		if err != nil {
			_, _ = fmt.Fprintf(log, "left out: %s: %v\n", l.name, err)
			missing = append(missing, l.name)
			continue
		}
		defer t.process.Stop()
		targets = append(targets, t)
	}
	if err := measure(ctx, o, targets, log); err != nil {
		return err
	}
	return report(o, targets, missing, out, log)
}

// launchers lists the proxies in the order of the table.
func launchers(o options) []launcher {
	return []launcher{
		tandem(o.frontend, "tandem, one leg", "mixed", "mixed"), tandem(o.frontend, "tandem, two legs", "context", "generation"),
		sglang(filepath.Join(o.venv, "bin", "sglang-router")), litellm(filepath.Join(o.venv, "bin", "litellm")),
	}
}

// measure lets the targets take turns, so that what else the machine does meets all of them.
func measure(ctx context.Context, o options, targets []*target, log io.Writer) error {
	for round := range o.rounds {
		_, _ = fmt.Fprintf(log, "round %d of %d, %d targets\n", round+1, o.rounds, len(targets))
		for _, t := range targets {
			if err := ctx.Err(); err != nil {
				return err //nolint:wrapcheck // it says that all was interrupted
			}
			l := t.loader()
			t.paced = append(t.paced, l.run(o.streams, o.tokens, pacePrompt, o.each))
			l.client.CloseIdleConnections()
		}
		for _, t := range targets {
			if t.process == nil {
				continue
			}
			l := t.loader()
			before, _ := t.usage()
			t.burst = append(t.burst, l.run(min(o.streams, 64), 8, "burst", o.each/2))
			after, _ := t.usage()
			t.took += after - before
			l.client.CloseIdleConnections()
		}
	}
	for _, t := range targets {
		if t.process == nil {
			continue
		}
		_, _ = fmt.Fprintf(log, "%s: up to %d open streams\n", t.name, o.open)
		t.hold(o.open)
	}
	return ctx.Err() //nolint:wrapcheck // as above
}

// hold measures memory for open streams: what the second half of them adds, because the first half finds memory that the
// loads before have left.
func (t *target) hold(n int) {
	first, rest := t.loader(), t.loader()
	first.hold(n/2, func(had int) {
		_, before := t.usage()
		rest.hold(n-n/2, func(more int) {
			_, t.all = t.usage()
			if t.open = had + more; more > 0 {
				t.bytes = (t.all - before) / float64(more)
			}
		})
	})
}

// report prints the table, and to log what went wrong. missing are the proxies that did not start.
func report(o options, targets []*target, missing []string, out, log io.Writer) error {
	var table strings.Builder
	fmt.Fprintf(&table, "%d streams of %d tokens, one each %v; %d rounds of %v in which all take turns. `direct` is the stub without a proxy, with its times themselves; ratios are to one leg.", o.streams, o.tokens, tick, o.rounds, o.each)
	for _, name := range missing {
		fmt.Fprintf(&table, " %s is left out: it was not installed or did not start.", name)
	}
	table.WriteString("\n\n| | requests/s per core | tandem over it | KiB for one more open stream | it over tandem | MiB with the streams open | added to time to first token, p50 / p99 ms | errors |\n|---|---|---|---|---|---|---|---|\n")
	base := &target{}
	for _, t := range targets {
		if t.process != nil && strings.HasPrefix(t.name, "tandem") {
			base = t
			break
		}
	}
	for _, t := range targets {
		table.WriteString(t.row(base, targets[0].paced))
		for kind, err := range map[string]error{"paced streams": t.paced.sum().err, "short requests": t.burst.sum().err} {
			if err != nil {
				_, _ = fmt.Fprintf(log, "%s, an error of %s: %v\n", t.name, kind, err)
			}
		}
	}
	_, err := io.WriteString(out, table.String())
	return err //nolint:wrapcheck // it names the file
}

// perCore is requests a second of one processor, 0 if it was not measured.
func (t *target) perCore() float64 {
	if t.took == 0 {
		return 0
	}
	return float64(t.burst.sum().all) / t.took
}

// row is a target's line of the table, beside our frontend and the times of a stub.
func (t *target) row(base *target, direct rounds) string {
	ms := func(q float64) float64 {
		d := t.paced.quantile(q)
		if t.process != nil {
			d -= direct.quantile(q)
		}
		return float64(d.Microseconds()) / 1000
	}
	added, rate, times, kib, size, all := "none came", "", "", "", "", ""
	if len(t.paced.sum().first) > 0 {
		added = fmt.Sprintf("%.2f / %.2f", ms(0.5), ms(0.99))
	}
	if t.took > 0 {
		rate = fmt.Sprintf("%.0f", t.perCore())
	}
	if t != base && t.perCore() > 0 && base.perCore() > 0 {
		times = fmt.Sprintf("%.2f", base.perCore()/t.perCore())
	}
	if t.open > 0 { // few streams may take less than what a collection gives back
		kib, all = fmt.Sprintf("%.1f", t.bytes/1024), fmt.Sprintf("%.0f with %d", t.all/(1<<20), t.open)
		if t != base && base.bytes > 0 {
			size = fmt.Sprintf("%.2f", t.bytes/base.bytes)
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %d of %d |\n", t.name, rate, times, kib, size, all, added,
		t.paced.sum().errs+t.burst.sum().errs, t.paced.sum().all+t.burst.sum().all)
}
