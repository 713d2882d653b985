// Command fill runs a program that measures, and puts what it prints into a part of
// a page, with the command to repeat it and the machine:
//
//	go run ./test/bench/fill -page PAGE -part transfer -command "make bench-transfer" -- go run ./test/bench/transfer
//
// The program prints a whole table or nothing; its progress and errors are its
// standard error's. A table whose program then fails, because figures miss what is
// wanted of them, is put into the page all the same, and fill fails too.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"tandem/test/bench/page"
	"tandem/test/bench/result"
)

// options are the flags.
type options struct{ page, part, command string }

func main() {
	var o options
	flag.StringVar(&o.page, "page", "", "file with the page, empty = print only")
	flag.StringVar(&o.part, "part", "", "part of the page that is replaced")
	flag.StringVar(&o.command, "command", "", "what to tell readers to run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := fill(ctx, o, flag.Args(), os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fill:", err)
		os.Exit(1)
	}
}

// grace is how long a program may take to end its own programs after an interrupt.
const grace = 20 * time.Second

// fill runs a program and replaces the part.
func fill(ctx context.Context, o options, program []string, out, log io.Writer) error {
	if o.part == "" || o.command == "" || len(program) == 0 {
		return fmt.Errorf("-part, -command and a program are needed")
	}
	var table bytes.Buffer
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Stdout, cmd.Stderr = &table, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // all that it starts hears of an interrupt
	cmd.Cancel, cmd.WaitDelay = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }, grace
	before, began := result.Machine(), time.Now()
	failed := cmd.Run()
	if failed != nil {
		failed = fmt.Errorf("%s: %w", o.command, failed)
	}
	if ctx.Err() != nil || !strings.Contains("\n"+table.String(), "\n|") {
		_, _ = io.Copy(log, &table) // help, say
		if failed == nil {
			failed = fmt.Errorf("%s printed no table", o.command)
		}
		return fmt.Errorf("%w; part %s stays as it is", failed, o.part)
	}
	text := fmt.Sprintf("%s\n\n`%s` took %v. %s\n", strings.TrimSpace(table.String()), o.command,
		time.Since(began).Round(time.Second), page.Machine(before, runtime.NumCPU()))
	if _, err := fmt.Fprintf(out, "\n%s\n", text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if o.page == "" {
		return failed
	}
	if err := page.Write(o.page, o.part, text); err != nil {
		return err
	}
	return failed
}
