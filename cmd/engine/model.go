package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"

	"tandem/engine/hub"
	"tandem/engine/model"
	"tandem/engine/tensor"
)

func modelCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "model", Short: "Fetch and inspect models"}
	known := strings.Join(hub.Aliases(), ", ")
	cmd.AddCommand(
		&cobra.Command{
			Use: "pull NAME", Short: "Fetch a model: a Hugging Face id or an alias (" + known + ")", Args: cobra.ExactArgs(1),
			Long: "Fetch a model and print its path. NAME is an alias (" + known + "), a Hugging Face repository with safetensors,\n" +
				"or such a repository and the quantisation of one of its GGUF files.",
			Example: "  engine model pull Qwen/Qwen3-0.6B\n  engine model pull Qwen/Qwen3-0.6B-GGUF:Q8_0",
			RunE: func(cmd *cobra.Command, args []string) error {
				path, err := pull(cmd.Context(), args[0])
				if err == nil {
					_, _ = fmt.Fprintln(cmd.OutOrStdout(), path)
				}
				return err
			},
		},
		&cobra.Command{
			Use: "path NAME", Short: "Print where a model is, without fetching it", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				path, err := hub.Locate(args[0])
				if err == nil {
					_, _ = fmt.Fprintln(cmd.OutOrStdout(), path)
				}
				return err
			},
		},
		&cobra.Command{
			Use: "inspect NAME", Short: "Print architecture, tensors, quantisation, sizes, tokenizer and template", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				path, err := hub.Locate(args[0])
				if err != nil {
					return err
				}
				return inspect(cmd.OutOrStdout(), path)
			},
		},
	)
	return cmd
}

// pull fetches with a progress bar on a terminal, and a line a file elsewhere.
func pull(ctx context.Context, name string) (string, error) {
	if _, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS); err != nil {
		seen := ""
		return hub.Pull(ctx, name, func(label string, _, total int64) {
			if label != seen {
				seen = label
				fmt.Fprintf(os.Stderr, "fetching %s (%d MiB)\n", label, total>>20)
			}
		})
	}
	p := mpb.NewWithContext(ctx, mpb.WithOutput(os.Stderr), mpb.WithWidth(40))
	var bar *mpb.Bar
	seen := ""
	path, err := hub.Pull(ctx, name, func(label string, have, total int64) {
		if label != seen {
			if bar != nil {
				bar.Abort(false)
			}
			seen = label
			bar = p.AddBar(max(total, 0),
				mpb.PrependDecorators(decor.Name(label+" ")),
				mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f")))
		}
		bar.SetCurrent(have)
	})
	if bar != nil && !bar.Completed() {
		bar.Abort(false)
	}
	p.Wait()
	return path, err
}

func inspect(w io.Writer, path string) error {
	ck, err := model.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = ck.Close() }() // read only
	c, t := ck.Config, ck.Tokenizer
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key, format string, args ...any) {
		_, _ = fmt.Fprintf(tw, "%s\t%s\n", key, fmt.Sprintf(format, args...))
	}
	row("file", "%s (%s)", ck.Path, ck.Format)
	row("architecture", "%s %q", c.Arch, c.Name)
	row("layers", "%d, hidden %d, feed-forward %d", c.Layers, c.Hidden, c.Inter)
	if m := c.MoE; m.Experts > 0 {
		row("experts", "%d a layer, %d a token, feed-forward %d each; dense layers: %s", m.Experts, m.Used, m.Inter, orNone(strings.Trim(fmt.Sprint(m.Dense), "[]")))
	}
	row("attention", "%d query heads, %d KV heads of %d", c.Heads, c.KVHeads, c.HeadDim)
	row("rope", "base %g, %d dimensions, scaling %s", c.RoPE.Base, c.RoPE.Dims, orNone(string(c.RoPE.Scaling.Type)))
	row("context", "%d tokens", c.Context)
	if n := len(c.Windows); n > 0 {
		sliding := 0
		for _, w := range c.Windows {
			sliding += min(w, 1)
		}
		row("sliding window", "%d tokens in %d of %d layers", slices.Max(c.Windows), sliding, n)
	}
	row("vocabulary", "%d rows, embeddings tied: %t", c.Vocab, c.Tied)
	row("parameters", "%.1f M in %.1f MiB", float64(ck.Params())/1e6, float64(ck.Bytes())/(1<<20))
	row("quantisation", "%s", quantisation(ck.Tensors()))
	row("KV cache", "%d bytes a token (bfloat16), %d (float32)", c.KVBytesPerToken(tensor.BF16), c.KVBytesPerToken(tensor.F32))
	switch {
	case len(t.JSON) > 0:
		row("tokenizer", "tokenizer.json")
	case len(t.Tokens) == 0:
		row("tokenizer", "none: it cannot be served")
	default:
		row("tokenizer", "%s, pre-tokenizer %s, %d tokens, %d merges", t.Model, orNone(t.Pre), len(t.Tokens), len(t.Merges))
	}
	row("end tokens", "%v", c.EOS)
	row("chat template", "%s", orNone(oneLine(t.ChatTemplate)))
	row("fingerprint", "%s", ck.Fingerprint())
	_, _ = fmt.Fprintf(tw, "\ntensor\ttype\tshape\tKiB\n")
	for _, h := range byLayer(ck.Tensors()) {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%v\t%.1f\n", h.Name, h.DType, h.Shape, float64(len(h.Data))/1024)
	}
	return tw.Flush()
}

// byLayer sorts tensors by name, and the numbers in it by value: layer 2 before layer 10.
func byLayer(all []tensor.Host) []tensor.Host {
	sorted := slices.Clone(all)
	key := func(name string) []string { return strings.Split(name, ".") }
	slices.SortStableFunc(sorted, func(a, b tensor.Host) int {
		return slices.CompareFunc(key(a.Name), key(b.Name), func(x, y string) int {
			i, errI := strconv.Atoi(x)
			j, errJ := strconv.Atoi(y)
			if errI == nil && errJ == nil {
				return cmp.Compare(i, j)
			}
			return cmp.Compare(x, y)
		})
	})
	return sorted
}

// quantisation sums tensors by type, largest first.
func quantisation(all []tensor.Host) string {
	count, size := map[tensor.DType]int{}, map[tensor.DType]int{}
	var types []tensor.DType
	for _, h := range all {
		if count[h.DType] == 0 {
			types = append(types, h.DType)
		}
		count[h.DType]++
		size[h.DType] += len(h.Data)
	}
	sort.Slice(types, func(i, j int) bool { return size[types[i]] > size[types[j]] })
	parts := make([]string, 0, len(types))
	for _, t := range types {
		many := "s"
		if count[t] == 1 {
			many = ""
		}
		parts = append(parts, fmt.Sprintf("%s: %d tensor%s, %.1f MiB", t, count[t], many, float64(size[t])/(1<<20)))
	}
	return strings.Join(parts, "; ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// oneLine shortens a text for a table.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 120 {
		return string(r[:120]) + " …"
	}
	return s
}
