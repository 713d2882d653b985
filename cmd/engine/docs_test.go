package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// comparePage compares the flags of a command with their table in docs/configuration.md.
func comparePage(t *testing.T, heading string, cmd *cobra.Command) {
	t.Helper()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("docs/configuration.md has no heading %q", heading)
	}
	part, _, _ = strings.Cut(part, "\n#")
	rows := strings.Count(part, "\n| `--")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		rows--
		def := f.DefValue
		if def == "" {
			def = `""`
		}
		if row := "\n| `--" + f.Name + "` | `" + def + "` |"; !strings.Contains(part, row) {
			t.Errorf("%s in docs/configuration.md lacks the row%s", heading, row)
		}
	})
	if rows != 0 {
		t.Errorf("%s in docs/configuration.md has %d rows more than the command has flags", heading, rows)
	}
}

func TestPageHasTheFlags(t *testing.T) {
	comparePage(t, "### engine serve", serveCommand())
	comparePage(t, "### engine route", routeCommand())
}
