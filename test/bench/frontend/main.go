package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"tandem/test/bench/result"
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
	run := func() error { return bench(o, os.Stdout) }
	if *isStub {
		run = func() error { return serveStubs(os.Stdin, os.Stdout) }
	}
	if err := run(); err != nil {
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

func bench(o options, out io.Writer) error {
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
	for _, start := range launchers(o, out) {
		port, err := freePort()
		if err != nil {
			return err
		}
		t, err := start(dir, addrs, port)
		if err != nil {
			_, _ = fmt.Fprintln(out, "left out:", err)
			continue
		}
		defer t.process.Stop()
		targets = append(targets, t)
	}
	machine := result.Machine()
	_, _ = fmt.Fprintf(out, "%d processors, load average %s; %d streams of %d tokens, one each %v; %d rounds of %v\n",
		machine.Cores, machine.Load, o.streams, o.tokens, tick, o.rounds, o.each)
	measure(o, targets)
	return report(targets, out)
}

// launchers lists the proxies that are there.
func launchers(o options, out io.Writer) (list []launcher) {
	if _, err := exec.LookPath(o.frontend); err == nil {
		list = append(list, tandem(o.frontend, "tandem one leg", "mixed", "mixed"), tandem(o.frontend, "tandem two legs", "context", "generation"))
	} else {
		_, _ = fmt.Fprintln(out, "left out: the frontend:", err)
	}
	for name, make := range map[string]func(string) launcher{"sglang-router": sglang, "litellm": litellm} {
		bin := filepath.Join(o.venv, "bin", name)
		if _, err := os.Stat(bin); err != nil {
			_, _ = fmt.Fprintf(out, "left out: %s is not in %s\n", name, o.venv)
			continue
		}
		list = append(list, make(bin))
	}
	return list
}

// measure lets the targets take turns, so that what else the machine does meets all of them.
func measure(o options, targets []*target) {
	for range o.rounds {
		for _, t := range targets {
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
		t.hold(o.open)
	}
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

func report(targets []*target, out io.Writer) error {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(w, "\tTTFT p50 ms\tp99 ms\tadded p50\tadded p99\trequests\terrors\treq/s per core\tKiB per stream\tMiB in all\tstreams\t")
	d := targets[0].paced
	for _, t := range targets {
		p, paced, burst := t.paced, t.paced.sum(), t.burst.sum()
		rate, size := "", "\t\t"
		if t.took > 0 {
			rate = fmt.Sprintf("%.0f", float64(burst.all)/t.took)
		}
		if t.open > 0 { // few streams may take less than what a collection gives back
			size = fmt.Sprintf("%.1f\t%.0f\t%d", t.bytes/1024, t.all/(1<<20), t.open)
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t\n", t.name, ms(p.quantile(0.5)), ms(p.quantile(0.99)),
			ms(p.quantile(0.5)-d.quantile(0.5)), ms(p.quantile(0.99)-d.quantile(0.99)), paced.all+burst.all, paced.errs+burst.errs, rate, size)
	}
	_, _ = fmt.Fprintf(w, "\n")
	if err := w.Flush(); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for _, t := range targets {
		if err := t.paced.sum().err; err != nil {
			_, _ = fmt.Fprintf(out, "%s, an error of paced streams: %v\n", t.name, err)
		}
		if err := t.burst.sum().err; err != nil {
			_, _ = fmt.Fprintf(out, "%s, an error of short requests: %v\n", t.name, err)
		}
	}
	return nil
}
