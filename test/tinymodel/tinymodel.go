package tinymodel

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// Model is one tiny model and its expected logits.
type Model struct {
	Name      string
	Path      string // for model.Open
	Vocab     int
	Sequences []Sequence
}

// Sequence is a prompt from position 0 with the logits [vocab] after each token.
type Sequence struct {
	Tokens []int32
	Logits [][]float32
}

// Dir returns the folder with the data, found from this source file, so that
// tests of any package can use it.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "testdata")
}

// Models returns all tiny models ordered by name.
func Models() ([]Model, error) {
	files, err := filepath.Glob(filepath.Join(Dir(), "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no tiny models in %s: %w", Dir(), err)
	}
	slices.Sort(files)
	var out []Model
	for _, file := range files {
		m, err := read(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// Get returns one model by name.
func Get(name string) (Model, error) { return read(filepath.Join(Dir(), name+".json")) }

func read(file string) (Model, error) {
	path := file[:len(file)-len(".json")]
	m := Model{Name: filepath.Base(path), Path: path}
	if _, err := os.Stat(path); err != nil {
		m.Path = path + ".gguf"
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return m, err
	}
	var raw struct {
		Vocab     int
		Sequences []struct {
			Tokens []int32
			Logits string
		}
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return m, err
	}
	m.Vocab = raw.Vocab
	for _, s := range raw.Sequences {
		logits, err := rows(s.Logits, raw.Vocab)
		if err != nil {
			return m, err
		}
		if len(logits) != len(s.Tokens) {
			return m, fmt.Errorf("%d rows of logits for %d tokens", len(logits), len(s.Tokens))
		}
		m.Sequences = append(m.Sequences, Sequence{Tokens: s.Tokens, Logits: logits})
	}
	return m, nil
}

func rows(encoded string, width int) ([][]float32, error) {
	b, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return nil, err
	}
	var out [][]float32
	for len(b) >= 4*width {
		row := make([]float32, width)
		for i := range row {
			row[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		out, b = append(out, row), b[4*width:]
	}
	return out, nil
}
