package safetensors

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// IndexName is the file that lists the shards of a split checkpoint.
const IndexName = "model.safetensors.index.json"

// Index says which shard holds which tensor.
type Index struct {
	Shards  []string          // file names, sorted, each once
	Tensors map[string]string // tensor name to shard
}

// ParseIndex reads the shard index. Shards must be plain file names: an index
// is foreign data and must not point out of the model's folder.
func ParseIndex(data []byte) (*Index, error) {
	var raw struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", IndexName, err)
	}
	if len(raw.WeightMap) == 0 {
		return nil, fmt.Errorf("%s: weight_map is missing or empty", IndexName)
	}
	shards := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(raw.WeightMap)) {
		shard := raw.WeightMap[name]
		if shard == "" || shard == "." || shard == ".." || strings.ContainsAny(shard, "/\\\x00") {
			return nil, fmt.Errorf("%s: tensor %q: %q is no file name", IndexName, name, shard)
		}
		shards[shard] = true
	}
	return &Index{Shards: slices.Sorted(maps.Keys(shards)), Tensors: raw.WeightMap}, nil
}
