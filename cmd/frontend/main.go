// Command frontend is the OpenAI-compatible face of a Tandem cluster: it splits each request over ctx and gen workers.
// "frontend up" also starts and supervises the workers on this machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/serve/config"
)

// version is set by the linker for releases.
var version = "0.1.0"

func main() {
	tuneHeap()
	if err := root().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "frontend:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "frontend",
		Short:         "The OpenAI-compatible face of a Tandem cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.AddCommand(serveCommand(), upCommand(), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), "frontend", version) },
	})
	return cmd
}

// flagError tells in which place of the file a flag that does not exist has its key.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	better := config.UnknownFlag[config.Frontend](err, name)
	if better.Error() == err.Error() && cmd.Name() == "up" { // its file has the keys of workers, too
		better = config.UnknownFlag[config.Worker](err, name)
	}
	return better
}

// signals returns a context that ends with the first interrupt, and one that ends with the second, for those who do not
// want to wait for running requests.
func signals(parent context.Context) (stop, hurry context.Context, release func()) {
	stop, stopNow := context.WithCancel(parent)
	hurry, hurryNow := context.WithCancel(context.WithoutCancel(parent))
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // a closed terminal; nohup has it ignored
		signal.Notify(ch, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		for _, cancel := range []func(){stopNow, hurryNow} {
			select {
			case <-ch:
				cancel()
			case <-done:
				return
			}
		}
	}()
	return stop, hurry, func() {
		signal.Stop(ch)
		close(done)
		stopNow()
		hurryNow()
	}
}

func logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not one of debug, info, warn, error", level)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}
