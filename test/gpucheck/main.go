// Command gpucheck is the program of the GPU check, which run.sh calls beside it: it measures on a
// device and prints JSON lines. Without the build tag cuda it only makes reports of them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"

	"tandem/test/gpucheck/report"
)

// tinyEnv makes everything so small that an emulator gets through; its times mean nothing.
const tinyEnv = "TANDEM_GPUCHECK_TINY"

// command is one of the program's; out gets its lines.
type command func(out io.Writer, args []string) error

// commands are those that need no device, and with the tag cuda the others.
var commands = map[string]command{"report": reportCommand, "serve": serveCommand}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		var names []string
		for n := range commands {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Fprintln(os.Stderr, "usage: gpucheck", strings.Join(names, "|"))
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Stdout, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		os.Exit(1)
	}
}

func tiny() bool { return os.Getenv(tinyEnv) != "" }

// reportCommand prints the tables of an output, or puts them into the page.
func reportCommand(out io.Writer, args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	page := fs.String("page", "", "page to put the tables into, instead of printing them")
	ptxas := fs.String("ptxas", "", "ptxas.log to make the page's table of registers of")
	if err := fs.Parse(args); err != nil {
		return err
	}
	parts := map[string]string{}
	if *ptxas != "" {
		log, err := os.ReadFile(*ptxas)
		if err != nil {
			return err
		}
		if parts[report.PartPTXAS], err = report.PTXAS(string(log)); err != nil {
			return fmt.Errorf("%s: %w", *ptxas, err)
		}
	}
	if fs.NArg() > 0 {
		r, err := read(fs.Arg(0))
		if err != nil {
			return err
		}
		if *page != "" && r.Emulated {
			return fmt.Errorf("%s is of an emulator, whose times mean nothing: leave them out of the page", fs.Arg(0))
		}
		parts[report.PartReport] = r.String()
	}
	if len(parts) == 0 {
		return errors.New("report: name an output of the check, or -ptxas")
	}
	return publish(out, *page, parts)
}

func read(path string) (*report.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := report.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return report.New(lines), nil
}

func publish(out io.Writer, page string, parts map[string]string) error {
	if page == "" {
		for _, text := range parts {
			if _, err := fmt.Fprintln(out, text); err != nil {
				return err
			}
		}
		return nil
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	now := string(text)
	for part, made := range parts {
		if now, err = report.Replace(now, part, made); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(now), 0o644)
}
