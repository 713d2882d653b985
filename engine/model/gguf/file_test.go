package gguf

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

func readSmall(t testing.TB) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/small.gguf")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestParseAgreesWithPython(t *testing.T) {
	raw, err := os.ReadFile("testdata/small.json")
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Keys    []string
		Tensors []struct {
			Name, Type, SHA256 string
			Shape              []int
		}
	}
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	f, err := Parse(readSmall(t))
	if err != nil {
		t.Fatal(err)
	}
	if f.Version != 3 || f.Alignment != 32 {
		t.Errorf("version %d, alignment %d", f.Version, f.Alignment)
	}
	if !reflect.DeepEqual(f.Keys(), want.Keys) {
		t.Errorf("keys %q, want %q", f.Keys(), want.Keys)
	}
	if len(f.Tensors()) != len(want.Tensors) || len(want.Tensors) != 11 {
		t.Fatalf("%d tensors, want %d", len(f.Tensors()), len(want.Tensors))
	}
	for _, w := range want.Tensors {
		got, ok := f.Tensor(w.Name)
		if !ok {
			t.Errorf("tensor %q is not found", w.Name)
			continue
		}
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(got.Data)
		if got.DType.String() != w.Type || !reflect.DeepEqual(got.Shape, w.Shape) || hex.EncodeToString(sum[:]) != w.SHA256 {
			t.Errorf("%s: %s %v %x, want %+v", w.Name, got.DType, got.Shape, sum, w)
		}
	}
}

func TestGetters(t *testing.T) {
	f, err := Parse(readSmall(t))
	if err != nil {
		t.Fatal(err)
	}
	check := func(name string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %v, %v, want %v", name, got, err, want)
		}
	}
	for key, want := range map[string]int64{
		"v.u8": 200, "v.i8": -100, "v.u16": 60000, "v.i16": -30000,
		"v.u32": 4000000000, "v.i32": -2000000000, "v.i64": -(1 << 62),
	} {
		got, err := f.Int(key)
		check(key, got, err, want)
	}
	u, err := f.Uint("v.u64")
	check("v.u64", u, err, uint64(math.MaxUint64))
	x, err := f.Float("v.f32")
	check("v.f32", x, err, 0.15625)
	x, err = f.Float("v.f64")
	check("v.f64", x, err, 1e-300)
	x, err = f.Float("v.i8")
	check("v.i8", x, err, -100.0)
	b, err := f.Bool("v.yes")
	check("v.yes", b, err, true)
	b, err = f.Bool("v.no")
	check("v.no", b, err, false)
	s, err := f.String("v.str")
	check("v.str", s, err, "Grüße, 世界\x00!")
	ss, err := f.Strings("a.str")
	check("a.str", ss, err, []string{"a", "bc", "", "Ġd"})
	is, err := f.Ints("a.i32")
	check("a.i32", is, err, []int64{1, -2, 3})
	fs, err := f.Floats("a.f32")
	check("a.f32", fs, err, []float32{0.5, -1.5})
	v, _ := f.Value("a.bool")
	check("a.bool", v.Data, nil, []bool{true, false, true})
}

func TestGetterErrorsNameTheKey(t *testing.T) {
	f, err := Parse(readSmall(t))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(string) error{
		"String":  func(k string) error { _, err := f.String(k); return err },
		"Bool":    func(k string) error { _, err := f.Bool(k); return err },
		"Int":     func(k string) error { _, err := f.Int(k); return err },
		"Uint":    func(k string) error { _, err := f.Uint(k); return err },
		"Float":   func(k string) error { _, err := f.Float(k); return err },
		"Strings": func(k string) error { _, err := f.Strings(k); return err },
		"Floats":  func(k string) error { _, err := f.Floats(k); return err },
		"Ints":    func(k string) error { _, err := f.Ints(k); return err },
	}
	for name, call := range calls {
		if err := call("no.such"); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), `"no.such"`) {
			t.Errorf("%s of a missing key: %v", name, err)
		}
		if err := call("a.bool"); err == nil || !strings.Contains(err.Error(), `"a.bool"`) {
			t.Errorf("%s of a wrong type: %v", name, err)
		}
	}
	if err := calls["Int"]("v.u64"); err == nil {
		t.Error("Int of 2^64-1 gave no error")
	}
	if err := calls["Uint"]("v.i8"); err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("Uint of -100: %v", err)
	}
	if err := calls["Ints"]("a.u64"); err == nil {
		t.Error("Ints of 2^63 gave no error")
	}
}

// Every prefix of a good file is a truncated file: none may crash, all must fail.
func TestTruncated(t *testing.T) {
	data := readSmall(t)
	for n := range data {
		if n > 4096 && n%97 != 0 {
			continue // within the data only the length matters
		}
		if _, err := Parse(data[:n:n]); err == nil {
			t.Fatalf("%d of %d bytes parsed without error", n, len(data))
		}
	}
}

func FuzzParse(f *testing.F) {
	small := readSmall(f)
	f.Add(small)
	f.Add(small[:1500])
	f.Add(build(nil, tensorRecord{name: "t", dims: []uint64{32}, kind: 8, data: 34}))
	f.Add(bytes.Repeat([]byte("GGUF"), 20))
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
		for _, k := range file.Keys() {
			_, _ = file.Float(k)
			_, _ = file.Ints(k)
		}
	})
}
