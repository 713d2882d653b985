package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"tandem/serve/config"
)

func serveCommand() *cobra.Command {
	var file, level string
	var port int
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Serve a cluster of running workers (see configs/cluster.yaml)",
		Long: `Serve a cluster of workers that run already, here or on other hosts. The file lists
their addresses; docs/configuration.md describes its keys.`,
		Example: `  frontend serve -c configs/cluster.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logger(level)
			if err != nil {
				return err
			}
			src := config.Source{File: file, Flags: map[string]any{}}
			given := cmd.Flags().Changed("port")
			if given && port != 0 {
				src.Flags["port"] = port
			}
			cfg, warnings, err := config.LoadFrontend(src)
			if err == nil {
				err = cfg.ValidateServe()
			}
			if err != nil {
				return err
			}
			if unused := cfg.UnusedByServe(); len(unused) > 0 {
				warnings = append(warnings, "only frontend up gives workers their arguments; start them with: "+strings.Join(unused, ", "))
			}
			for _, w := range warnings {
				log.Warn(w)
			}
			if !given {
				port = cfg.Port
			}
			ln, err := listen(cfg.Hostname, port)
			if err != nil {
				return err
			}
			n := &node{cfg: cfg, log: log, listener: ln}
			if err := n.build(); err != nil {
				ln.Close()
				return err
			}
			stop, hurry, release := signals(cmd.Context())
			defer release()
			return n.run(stop, hurry, func() {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "TANDEM_READY url=%s://%s role=frontend admin=%s\n", cfg.TLS.Scheme(), reachable(ln.Addr().String()), n.admin)
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&file, "config", "c", "", "YAML file with the workers (see configs/cluster.yaml)")
	fs.IntVar(&port, "port", 8000, "port to listen on, 0 = any free one; beats the file")
	fs.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}
