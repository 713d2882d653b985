package safetensors

import (
	"encoding/binary"
	"strings"
	"testing"

	"tandem/engine/tensor"
)

func build(header string, body int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, body)...)
}

func TestParse(t *testing.T) {
	data := build(`{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},`+
		`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"s":{"dtype":"F16","shape":[],"data_offsets":[20,22]}}  `, 22)
	data[len(data)-1] = 7
	f, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if f.Metadata["format"] != "pt" || len(f.Tensors()) != 3 || f.Tensors()[0].Name != "a" {
		t.Errorf("metadata %v, tensors %v", f.Metadata, f.Tensors())
	}
	b, ok := f.Tensor("b")
	if !ok || b.DType != tensor.BF16 || b.Rows() != 2 || b.Cols() != 3 || b.Validate() != nil {
		t.Errorf("b = %v, %v", b, b.Validate())
	}
	if s, _ := f.Tensor("s"); s.Elems() != 1 || s.Data[1] != 7 {
		t.Errorf("s = %v", s)
	}
	if _, ok := f.Tensor("c"); ok {
		t.Error("found a tensor that is not there")
	}
}

func TestLyingFiles(t *testing.T) {
	one := func(fields string) []byte { return build(`{"w":{`+fields+`}}`, 8) }
	good := `{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`
	cases := map[string]struct {
		data []byte
		want string
	}{
		"empty":            {nil, "not a safetensors"},
		"huge header":      {append(binary.LittleEndian.AppendUint64(nil, 1<<60), good...), "not a safetensors"},
		"header over cap":  {append(binary.LittleEndian.AppendUint64(nil, MaxHeader+1), good...), "not a safetensors"},
		"no object":        {build(`[1]`, 0), "not a safetensors"},
		"no JSON":          {build(`GGUF`, 0), "not a safetensors"},
		"cut JSON":         {build(good[:len(good)-1], 8), "header"},
		"cut entry":        {build(good[:30], 8), `"w"`},
		"twice":            {build(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `"w" occurs twice`},
		"dtype":            {one(`"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]`), `"w": element type "F8_E5M2"`},
		"negative dim":     {one(`"dtype":"F32","shape":[-2],"data_offsets":[0,8]`), `"w"`},
		"zero dim":         {one(`"dtype":"F32","shape":[0],"data_offsets":[0,0]`), `"w": dimension 0`},
		"overflow":         {one(`"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]`), `"w": dimension`},
		"nine dims":        {one(`"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]`), `"w": has 9`},
		"short":            {one(`"dtype":"F32","shape":[3],"data_offsets":[0,8]`), `"w": shape [3] of F32 needs 12`},
		"outside":          {one(`"dtype":"F32","shape":[3],"data_offsets":[0,12]`), `"w": data_offsets [0, 12]`},
		"reversed":         {one(`"dtype":"F32","shape":[1],"data_offsets":[8,4]`), `"w": data_offsets`},
		"three offsets":    {one(`"dtype":"F32","shape":[2],"data_offsets":[0,4,8]`), `"w": data_offsets has 3`},
		"fraction":         {one(`"dtype":"F32","shape":[2.5],"data_offsets":[0,8]`), `"w"`},
		"metadata numbers": {build(`{"__metadata__":{"a":1}}`, 0), "__metadata__"},
		"truncated":        {build(good, 8)[:8+len(good)+7], `"w": data_offsets`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(c.data); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	data := build(good, 8)
	for n := range data {
		if _, err := Parse(data[:n:n]); err == nil {
			t.Fatalf("%d of %d bytes parsed without error", n, len(data))
		}
	}
}

func TestParseIndex(t *testing.T) {
	ix, err := ParseIndex([]byte(`{"metadata":{"total_size":1},"weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-1.safetensors"}}`))
	if err != nil || len(ix.Shards) != 2 || ix.Shards[0] != "m-1.safetensors" || ix.Tensors["b"] != "m-2.safetensors" {
		t.Errorf("index %+v, %v", ix, err)
	}
	for name, raw := range map[string]string{
		"no JSON": `x`, "empty": `{}`, "escape": `{"weight_map":{"a":"../m"}}`, "absolute": `{"weight_map":{"a":"/m"}}`,
		"dots": `{"weight_map":{"a":".."}}`, "number": `{"weight_map":{"a":1}}`, "nul": `{"weight_map":{"a":"a\u0000"}}`,
	} {
		if _, err := ParseIndex([]byte(raw)); err == nil || !strings.Contains(err.Error(), IndexName) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(build(`{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(build(`{"__metadata__":{"a":"b"},"w":{"dtype":"BF16","shape":[],"data_offsets":[6,8]}}`, 8))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse(data)
		if err != nil {
			return
		}
		for _, h := range file.Tensors() {
			if err := h.Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"a":"m-1.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ix, err := ParseIndex(data)
		if err == nil && len(ix.Shards) == 0 {
			t.Fatal("an index without shards")
		}
	})
}
