package tinymodel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// WriteSized is WriteServable of a model of another size with bf16 weights, whose activations keep
// their size through any number of layers.
func WriteSized(dir string, seed uint64, size Size) error {
	return size.file(dir, seed, func(out io.Writer, list []weight) error {
		rng := rand.New(rand.NewPCG(seed, 3))
		for i := range list {
			if err := list[i].write(out, rng); err != nil {
				return err
			}
		}
		return nil
	})
}

// WriteHollow writes the same model without its weights: the file has a hole in their place, which
// takes no room and reads as zeros. It is for backends that make weights themselves.
func WriteHollow(dir string, size Size) error { return size.file(dir, 0, nil) }

// file writes the model; without fill the weights are a hole.
func (s Size) file(dir string, seed uint64, fill func(io.Writer, []weight) error) (err error) {
	if err := s.describe(dir, seed, dense); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, weightsFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("sized model: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	list := s.weights(dense)
	head, bytes := header(list, "BF16", 2)
	out := bufio.NewWriterSize(f, 1<<20)
	if _, err := out.Write(head); err != nil {
		return fmt.Errorf("sized model: %w", err)
	}
	if fill != nil {
		if err := fill(out, list); err != nil {
			return fmt.Errorf("sized model: %w", err)
		}
	}
	return errors.Join(out.Flush(), f.Truncate(int64(len(head))+bytes))
}

// write writes even numbers of the tensor's mean and, for a matrix, of variance one over its columns.
func (w *weight) write(out io.Writer, rng *rand.Rand) error {
	width := w.spread
	if len(w.shape) > 1 {
		width = math.Sqrt(3 / float64(w.shape[len(w.shape)-1]))
	}
	// Numbers come from a list, since a good generator takes longer than the disk.
	values := make([]byte, 0, 2*listed)
	for range listed {
		bits := math.Float32bits(float32(w.mean + width*(2*rng.Float64()-1)))
		values = append(values, byte(bits>>16), byte(bits>>24))
	}
	for left := 2 * w.elems(); left > 0; {
		from := 2 * rng.IntN(listed-run+1)
		n := min(left, 2*run)
		if _, err := out.Write(values[from : from+n]); err != nil {
			return err
		}
		left -= n
	}
	return nil
}

const (
	listed = 1 << 16 // numbers of a tensor that differ
	run    = 1 << 10 // that follow each other as in the list
)
