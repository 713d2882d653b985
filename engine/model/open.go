package model

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tandem/engine/model/gguf"
	"tandem/engine/model/safetensors"
	"tandem/engine/tensor"
)

// Option changes how Open reads a checkpoint.
type Option func(*Checkpoint)

// AsF32 makes the checkpoint hand out every tensor decoded to F32, for
// `dtype: float32` and for accuracy tests.
func AsF32() Option { return func(c *Checkpoint) { c.f32 = true } }

// Open opens the model at path: a GGUF file, a Hugging Face folder, or a folder
// that holds exactly one GGUF file. Errors name the path and what is wrong with
// it; ErrNotModel when nothing there is a model.
func Open(path string, opts ...Option) (*Checkpoint, error) {
	c := &Checkpoint{Path: path, index: map[string]int{}}
	for _, opt := range opts {
		opt(c)
	}
	err := c.open()
	if err == nil {
		err = c.checkLayers()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// checkLayers refuses a configuration that leaves out layers which the weights
// have: the model would run, and be another one.
func (c *Checkpoint) checkLayers() error {
	next := fmt.Sprintf("blk.%d.attn_norm.weight", c.Config.Layers)
	if c.Has(next) {
		return fmt.Errorf("model %s: the configuration says %d layers, but there is a tensor %q", c.Path, c.Config.Layers, c.fileName(next))
	}
	return nil
}

func (c *Checkpoint) open() error {
	info, err := os.Stat(c.Path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("model %s does not exist: %w", c.Path, os.ErrNotExist)
	}
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if info.IsDir() {
		return c.openDir()
	}
	if !startsWith(c.Path, gguf.Magic) {
		if strings.HasSuffix(c.Path, ".safetensors") {
			return fmt.Errorf("%s %w; give the folder, not one of its files", c.Path, ErrNotModel)
		}
		return fmt.Errorf("%s %w", c.Path, ErrNotModel)
	}
	return c.openGGUF()
}

func startsWith(path, magic string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, len(magic))
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == magic
}

func (c *Checkpoint) openDir() error {
	if _, err := os.Stat(filepath.Join(c.Path, "config.json")); err == nil {
		if err := c.openFolder(); err != nil {
			return fmt.Errorf("model %s: %w", c.Path, err)
		}
		return nil
	}
	files, err := filepath.Glob(filepath.Join(c.Path, "*.gguf"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s %w", c.Path, ErrNotModel)
	}
	if len(files) > 1 {
		slices.Sort(files)
		return fmt.Errorf("%s holds %d GGUF files; name one of them, such as %s", c.Path, len(files), files[0])
	}
	c.Path = files[0]
	return c.openGGUF()
}

func (c *Checkpoint) mapped(path string) ([]byte, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	c.maps = append(c.maps, m)
	return m.data, nil
}

func (c *Checkpoint) openGGUF() error {
	c.Format = FormatGGUF
	data, err := c.mapped(c.Path)
	if err != nil {
		return fmt.Errorf("model: %w", err)
	}
	if err := c.parseGGUF(data); err != nil {
		return fmt.Errorf("model %s: %w", c.Path, err)
	}
	return nil
}

func (c *Checkpoint) parseGGUF(data []byte) error {
	f, err := gguf.Parse(data)
	if err == nil {
		err = c.add(f.Tensors())
	}
	if err == nil {
		c.Config, err = ggufConfig(f)
	}
	if err == nil {
		c.Tokenizer, err = ggufTokenizer(f)
	}
	if n := len(c.Tokenizer.Tokens); err == nil && n > c.Config.Vocab {
		err = fmt.Errorf("GGUF key \"tokenizer.ggml.tokens\": %d tokens for an embedding table of %d rows", n, c.Config.Vocab)
	}
	return err
}

func (c *Checkpoint) openFolder() error {
	c.Format = FormatSafetensors
	config, err := readSide(c.Path, "config.json")
	if err != nil {
		return err
	}
	generation, err := readSide(c.Path, "generation_config.json")
	if err != nil {
		return err
	}
	// The configuration comes first: "unsupported architecture" says more than
	// what its weights fail with.
	if c.Config, err = parseHFConfig(config, generation, true); err != nil {
		return err
	}
	if err := c.openShards(); err != nil {
		return err
	}
	if c.Config, err = parseHFConfig(config, generation, c.Has("output.weight")); err != nil {
		return err
	}
	if c.float8, err = float8Blocks(config); err != nil {
		return err
	}
	c.Tokenizer, err = hfTokenizer(c.Path, &c.Config)
	return err
}

// singleName is the weights file of a checkpoint that is not split.
const singleName = "model.safetensors"

func (c *Checkpoint) openShards() error {
	raw, err := readSide(c.Path, safetensors.IndexName)
	if err != nil {
		return err
	}
	if raw == nil {
		if _, err := os.Stat(filepath.Join(c.Path, singleName)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w (neither %s nor %s is there)", ErrNotModel, singleName, safetensors.IndexName)
		}
		_, err := c.openShard(singleName)
		return err
	}
	ix, err := safetensors.ParseIndex(raw)
	if err != nil {
		return err
	}
	owner := map[string]string{}
	for _, shard := range ix.Shards {
		tensors, err := c.openShard(shard)
		if err != nil {
			return err
		}
		for _, t := range tensors {
			owner[t.Name] = shard
		}
	}
	var missing []string
	for name, shard := range ix.Tensors {
		if owner[name] != shard {
			missing = append(missing, fmt.Sprintf("tensor %q is not in %s, where %s has it", name, shard, safetensors.IndexName))
		}
	}
	if len(missing) > 0 {
		return errors.New(slices.Min(missing))
	}
	return nil
}

func (c *Checkpoint) openShard(name string) ([]tensor.Host, error) {
	data, err := c.mapped(filepath.Join(c.Path, name))
	if err != nil {
		return nil, err
	}
	f, err := safetensors.Parse(data)
	if err == nil {
		err = c.add(f.Tensors())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f.Tensors(), nil
}
