package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tandem/serve/discovery"
	"tandem/serve/worker"
)

// debugFlags are the flags of `engine debug`.
type debugFlags struct {
	url     string
	json    bool
	steps   int
	timeout time.Duration
}

func debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Show what a running worker does: its requests, blocks and last iterations",
		Long: `Show what a running worker does, also one that hangs: the pages are answered beside the engine's own goroutine.
--url is the worker's, or that of its admin listener, which the ready line names. docs/debugging.md explains what to look at.`,
	}
	var f debugFlags
	cmd.PersistentFlags().StringVar(&f.url, "url", "http://127.0.0.1:8000", "the worker, or its admin listener")
	cmd.PersistentFlags().BoolVar(&f.json, "json", false, "print the answer as it came")
	cmd.PersistentFlags().DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for the worker")
	iterations := debugPage(&f, "iterations", "/debug/flight", "Show the last iterations and events (the flight recorder)",
		func(w io.Writer, d *worker.DebugFlight) { printFlight(w, d, f.steps) })
	iterations.Aliases = []string{"flight"}
	iterations.Flags().IntVar(&f.steps, "last", 20, "iterations to show, 0 = all that are recorded")
	cmd.AddCommand(
		debugPage(&f, "requests", "/debug/requests", "Show every request: state, what holds its blocks and for how long, tokens, blocks", printRequests),
		debugPage(&f, "blocks", "/debug/blocks", "Show the KV pool: blocks by state and priority, and who has them", printBlocks),
		iterations,
	)
	return cmd
}

// debugPage is the command that shows one page.
func debugPage[T any](f *debugFlags, name, path, short string, show func(io.Writer, *T)) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
			defer cancel()
			url := strings.TrimSuffix(f.url, "/")
			if !strings.Contains(url, "://") {
				url = "http://" + url
			}
			data, err := fetchDebug(ctx, url, path)
			if err != nil {
				return err
			}
			if f.json {
				_, err = cmd.OutOrStdout().Write(data)
				return err
			}
			var page T
			if err := json.Unmarshal(data, &page); err != nil {
				return fmt.Errorf("%s%s: %w", f.url, path, err)
			}
			show(cmd.OutOrStdout(), &page)
			return nil
		},
	}
}

// maxPage bounds a page that is read.
const maxPage = 64 << 20

// fetchDebug reads a page from an admin listener. A worker's own address leads to it.
func fetchDebug(ctx context.Context, url, path string) ([]byte, error) {
	data, status, err := fetchPage(ctx, url+path)
	if err != nil || status != http.StatusNotFound {
		return data, statusError(url+path, status, data, err)
	}
	info, status, err := fetchPage(ctx, url+"/server_info")
	if err := statusError(url+"/server_info", status, info, err); err != nil {
		return nil, fmt.Errorf("%s is no worker and no admin listener: %w", url, err)
	}
	var at discovery.ServerInfo
	if err := json.Unmarshal(info, &at); err != nil {
		return nil, fmt.Errorf("%s/server_info: %w", url, err)
	}
	if !strings.HasPrefix(at.AdminAddr, "http") {
		return nil, errors.New("the worker has no admin listener: start it with --admin-addr 127.0.0.1:0, or another address, instead of off")
	}
	data, status, err = fetchPage(ctx, at.AdminAddr+path)
	if err != nil {
		err = fmt.Errorf("%w (the admin listener %s is reached from the worker's own host only, unless --admin-addr says otherwise)", err, at.AdminAddr)
	}
	return data, statusError(at.AdminAddr+path, status, data, err)
}

func statusError(url string, status int, data []byte, err error) error {
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("%s: status %d: %s", url, status, bytes.TrimSpace(data[:min(len(data), 300)]))
	}
	return nil
}

func fetchPage(ctx context.Context, url string) ([]byte, int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxPage))
	return data, res.StatusCode, err
}

// table prints rows in columns.
func table(w io.Writer, rows [][]string) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		_, _ = fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	_ = t.Flush()
}

// span prints milliseconds for people.
func span(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func holdsText(holds []worker.DebugHold) string {
	out := make([]string, len(holds))
	for i, h := range holds {
		out[i] = h.Kind + " " + span(h.AgeMs)
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

func printRequests(w io.Writer, d *worker.DebugRequests) {
	_, _ = fmt.Fprintf(w, "health: %s\n", strings.TrimSpace(d.Health+"  "+d.Reason))
	for _, rank := range d.Ranks {
		_, _ = fmt.Fprintf(w, "\nrank %d: %d requests, %s old\n", rank.Rank, len(rank.Requests), span(rank.AgeMs))
		rows := [][]string{{"ID", "STATE", "FOR", "AGE", "HOLDS", "PROMPT", "CACHED", "COMPUTED", "OUTPUT", "BLOCKS", "PAUSES", "DUE", "KIND", "PEER", "REQUEST"}}
		for i := range rank.Requests {
			q := &rank.Requests[i]
			id, due := fmt.Sprint(q.ID), "-"
			if q.Choice > 0 {
				id += fmt.Sprintf(".%d", q.Choice)
			}
			if q.DueMs != nil {
				due = span(*q.DueMs)
			}
			name := cmp.Or(q.RequestID, "-")
			if q.DisaggID != "" {
				name += " disagg=" + q.DisaggID
			}
			rows = append(rows, []string{
				id, q.State, span(q.InStateMs), span(q.AgeMs), holdsText(q.Holds), fmt.Sprint(q.Prompt), fmt.Sprint(q.Cached), fmt.Sprint(q.Computed),
				fmt.Sprintf("%d/%d", q.Output, q.MaxTokens), fmt.Sprint(q.Blocks), fmt.Sprint(q.Pauses), due, q.Kind, cmp.Or(q.Peer, "-"), name,
			})
		}
		if len(rows) > 1 {
			table(w, rows)
		}
	}
}

func printBlocks(w io.Writer, d *worker.DebugBlocks) {
	for i := range d.Ranks {
		p := &d.Ranks[i]
		_, _ = fmt.Fprintf(w, "rank %d: %d blocks of %d tokens, %s old\n", p.Rank, p.Total, p.BlockTokens, span(p.AgeMs))
		rows := [][]string{{"STATE", "BLOCKS", "SHARE"}}
		for _, s := range []struct {
			name string
			n    int
		}{{"free", p.Free}, {"active", p.Active}, {"reusable", p.Reusable}, {"leased", p.Leased}, {"receiving", p.Receiving}} {
			rows = append(rows, []string{s.name, fmt.Sprint(s.n), fmt.Sprintf("%.1f%%", 100*float64(s.n)/float64(max(p.Total, 1)))})
		}
		table(w, rows)
		if p.Fenced > 0 {
			_, _ = fmt.Fprintf(w, "%d active blocks are free when the running step ends\n", p.Fenced)
		}
		if p.FullMs > 0 {
			_, _ = fmt.Fprintf(w, "full, and nothing won, for %s\n", span(p.FullMs))
		}
		for _, b := range p.Buckets {
			_, _ = fmt.Fprintf(w, "priority %d: %d reusable\n", b.Priority, b.Blocks)
		}
		rows = [][]string{{"ID", "STATE", "BLOCKS", "SHARED", "AGE", "HOLDS", "REQUEST"}}
		for _, h := range p.Holders {
			rows = append(rows, []string{fmt.Sprint(h.ID), h.State, fmt.Sprint(h.Blocks), fmt.Sprint(h.Shared), span(h.AgeMs), holdsText(h.Holds), cmp.Or(h.RequestID, "-")})
		}
		if len(rows) > 1 {
			_, _ = fmt.Fprintln(w)
			table(w, rows)
		}
		if p.More > 0 {
			_, _ = fmt.Fprintf(w, "and %d more\n", p.More)
		}
		_, _ = fmt.Fprintln(w)
	}
}

func printFlight(w io.Writer, d *worker.DebugFlight, last int) {
	for i := range d.Ranks {
		p := &d.Ranks[i]
		steps := p.Steps
		if last > 0 {
			steps = steps[max(0, len(steps)-last):]
		}
		_, _ = fmt.Fprintf(w, "rank %d\n", p.Rank)
		rows := [][]string{{"ITER", "AGO", "OUTCOME", "PREFILL", "DECODE", "SCHED", "RUN", "APPLY", "RUNNING", "WAITING", "FREE", "REUSABLE", "NEW", "PAUSED", "ENDED", "FAILED", "FIRST"}}
		for j := range steps {
			s := &steps[j]
			rows = append(rows, []string{
				fmt.Sprint(s.Iter), span(s.AgoMs), s.Outcome, fmt.Sprintf("%d/%dt", s.CtxRows, s.CtxTokens), fmt.Sprint(s.GenRows), span(s.SchedMs), span(s.RunMs), span(s.ApplyMs),
				fmt.Sprint(s.Running), fmt.Sprint(s.Waiting), fmt.Sprint(s.Free), fmt.Sprint(s.Reusable), fmt.Sprint(s.Admitted), fmt.Sprint(s.Paused),
				fmt.Sprint(s.Finished), fmt.Sprint(s.Failed + s.Cancelled), strings.Trim(fmt.Sprint(s.First), "[]"),
			})
		}
		table(w, rows)
		if len(p.Events) == 0 {
			_, _ = fmt.Fprintln(w)
			continue
		}
		rows = [][]string{{"AGO", "ITER", "EVENT", "ID", "CODE", "TEXT"}}
		for _, e := range p.Events {
			id := "-"
			if e.ID != 0 {
				id = fmt.Sprint(e.ID)
			}
			rows = append(rows, []string{span(e.AgoMs), fmt.Sprint(e.Iter), e.Kind, id, cmp.Or(e.Code, "-"), e.Text})
		}
		_, _ = fmt.Fprintln(w)
		table(w, rows)
		_, _ = fmt.Fprintln(w)
	}
}
