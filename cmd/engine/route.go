package main

import (
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// maxScript bounds a script, in bytes.
const maxScript = 64 << 20

func routeCommand() *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "route --script FILE", Short: "Replay rank states and requests through the attention-DP router", Args: cobra.NoArgs,
		Long: "Replay rank states and batches of requests through the router that attention data parallelism uses, and print\n" +
			"which rank gets each request, and why. docs/adp.md describes the script.",
		Example: "  engine route --script configs/route.json\n  engine route --script configs/route.json --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errors.New("--script is missing: name a JSON file, or - for standard input")
			}
			text, err := readScript(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			results, err := replay(text)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if !asJSON {
				return printRoutes(cmd.OutOrStdout(), results)
			}
			return writeRoutes(cmd.OutOrStdout(), results)
		},
	}
	cmd.Flags().StringVar(&file, "script", "", "JSON file of cases, - = standard input")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func readScript(file string, stdin io.Reader) ([]byte, error) {
	from := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxScript+1))
	if err == nil && len(text) > maxScript {
		err = fmt.Errorf("%s: a script has at most %d MiB", file, maxScript>>20)
	}
	return text, err
}

// writeRoutes writes results as JSON, a line for each case.
func writeRoutes(w io.Writer, results []any) error {
	out := []byte(`{"cases":[`)
	for i, r := range results {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(out, '\n'), line...)
	}
	_, err := w.Write(append(out, "\n]}\n"...))
	return err
}

// printRoutes writes results for people.
func printRoutes(w io.Writer, results []any) error {
	var b strings.Builder
	for i, r := range results {
		if i > 0 {
			b.WriteByte('\n')
		}
		switch r := r.(type) {
		case routeResult:
			r.print(&b)
		case admissionResult:
			r.print(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r routeResult) print(b *strings.Builder) {
	fmt.Fprintf(b, "case %s: %s\n", r.ID, r.title)
	for i, batch := range r.Batches {
		fmt.Fprintf(b, "  batch %d, target %d active requests a rank\n", i+1, batch.Target)
		for rank, m := range batch.Assignment {
			var placed []string
			for _, id := range m.value {
				placed = append(placed, fmt.Sprint(id, " ", batch.reasons[id]))
			}
			line := fmt.Sprintf("    rank %d  %3d -> %-3d  %s", rank, batch.before[rank], batch.Active[rank], strings.Join(placed, ", "))
			b.WriteString(strings.TrimRight(line, " ") + "\n")
		}
		if len(batch.Unplaced) > 0 {
			fmt.Fprintf(b, "    no rank has room for %s\n", join(batch.Unplaced))
		}
		for _, m := range batch.Rejected {
			fmt.Fprintf(b, "    %s refused: %s\n", m.name, m.value)
		}
		if batch.Warmup != nil {
			fmt.Fprintf(b, "    ranks still cold: %s\n", join(*batch.Warmup))
		}
		r.printBindings(b, batch)
	}
}

// printBindings shows the state of the conversation router, the newest bindings
// only if there are many.
func (r routeResult) printBindings(b *strings.Builder, batch batchResult) {
	if !r.conversations {
		return
	}
	const most = 20
	fmt.Fprintf(b, "    cursor %d, bindings from the oldest on:", batch.Cursor)
	if n := len(batch.Bindings); n == 0 {
		b.WriteString(" none")
	} else if n > most {
		fmt.Fprintf(b, " (%d older)", n-most)
	}
	for _, c := range batch.Bindings[max(0, len(batch.Bindings)-most):] {
		fmt.Fprintf(b, " %s=%d", c.key, c.rank)
	}
	b.WriteByte('\n')
	if len(batch.Moving) > 0 {
		b.WriteString("    on the move:")
		for _, c := range batch.Moving {
			fmt.Fprintf(b, " %s=%d", c.key, c.rank)
		}
		b.WriteByte('\n')
	}
}

func (r admissionResult) print(b *strings.Builder) {
	fmt.Fprintf(b, "case %s: admission\n  room for %d\n  admitted %s\n  waiting  %s\n", r.ID, r.Capacity, join(r.Popped), join(r.After))
	for _, m := range r.Rejected {
		fmt.Fprintf(b, "  %s refused: %s\n", m.name, m.value)
	}
}

func join[T any](xs []T) string {
	if len(xs) == 0 {
		return "none"
	}
	parts := make([]string, len(xs))
	for i, x := range xs {
		parts[i] = fmt.Sprint(x)
	}
	return strings.Join(parts, ", ")
}
