// Command bench measures engines and makes what the simulator needs.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := root().ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = errors.New("interrupted") // what was under way then failed for no other reason
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measures of engines",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddCommand(affinityCommand(), compareCommand(), profileCommand(), replayCommand(), serveCommand())
	cmd.AddCommand(planCommand(), simCommand(), verifyCommand())
	return cmd
}
