package gguf

import (
	"errors"
	"fmt"
	"math"
)

// ErrMissing occurs when a getter is asked for a key the file does not have.
var ErrMissing = errors.New("is missing")

// Keys returns the metadata keys in file order. The slice must not be changed.
func (f *File) Keys() []string { return f.keys }

// Has reports whether the key is there.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// Value returns the raw value of a key.
func (f *File) Value(key string) (Value, bool) {
	v, ok := f.values[key]
	return v, ok
}

func keyError(key string, err error) error { return fmt.Errorf("GGUF key %q: %w", key, err) }

func (f *File) get(key string) (Value, error) {
	v, ok := f.values[key]
	if !ok {
		return v, fmt.Errorf("GGUF key %q %w", key, ErrMissing)
	}
	return v, nil
}

func (v Value) mismatch(key, want string) error {
	if v.Type == Array {
		return keyError(key, fmt.Errorf("is an array of %s, want %s", v.Elem, want))
	}
	return keyError(key, fmt.Errorf("is a %s, want %s", v.Type, want))
}

// String returns a string value.
func (f *File) String(key string) (string, error) {
	v, err := f.get(key)
	if err != nil {
		return "", err
	}
	s, ok := v.Data.(string)
	if !ok {
		return "", v.mismatch(key, "a string")
	}
	return s, nil
}

// Bool returns a bool value.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.get(key)
	if err != nil {
		return false, err
	}
	b, ok := v.Data.(bool)
	if !ok {
		return false, v.mismatch(key, "a bool")
	}
	return b, nil
}

// integer widens any integer value; big is set when it exceeds int64.
func integer(x any) (n int64, big, ok bool) {
	switch x := x.(type) {
	case uint8:
		return int64(x), false, true
	case int8:
		return int64(x), false, true
	case uint16:
		return int64(x), false, true
	case int16:
		return int64(x), false, true
	case uint32:
		return int64(x), false, true
	case int32:
		return int64(x), false, true
	case uint64:
		return int64(x), x > math.MaxInt64, true
	case int64:
		return x, false, true
	}
	return 0, false, false
}

// Int returns a value of any integer type that fits an int64.
func (f *File) Int(key string) (int64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	n, big, ok := integer(v.Data)
	if !ok {
		return 0, v.mismatch(key, "an integer")
	}
	if big {
		return 0, keyError(key, fmt.Errorf("%d is too large", v.Data))
	}
	return n, nil
}

// Uint returns a value of any integer type that is not negative.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	if u, ok := v.Data.(uint64); ok {
		return u, nil
	}
	n, _, ok := integer(v.Data)
	if !ok {
		return 0, v.mismatch(key, "an integer")
	}
	if n < 0 {
		return 0, keyError(key, fmt.Errorf("%d is negative", n))
	}
	return uint64(n), nil
}

// Float returns a value of any number type. NaN and infinities are errors, as
// no model parameter is one.
func (f *File) Float(key string) (float64, error) {
	v, err := f.get(key)
	if err != nil {
		return 0, err
	}
	var x float64
	switch d := v.Data.(type) {
	case float32:
		x = float64(d)
	case float64:
		x = d
	default:
		n, big, ok := integer(v.Data)
		if !ok || big {
			return 0, v.mismatch(key, "a number")
		}
		x = float64(n)
	}
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0, keyError(key, fmt.Errorf("%v is no finite number", x))
	}
	return x, nil
}

// Strings returns an array of strings, sharing its memory with the file.
func (f *File) Strings(key string) ([]string, error) {
	return array[string](f, key, "an array of strings")
}

// Floats returns an array of float32, sharing its memory with the file.
func (f *File) Floats(key string) ([]float32, error) {
	return array[float32](f, key, "an array of float32")
}

func array[T any](f *File, key, want string) ([]T, error) {
	v, err := f.get(key)
	if err != nil {
		return nil, err
	}
	s, ok := v.Data.([]T)
	if !ok {
		return nil, v.mismatch(key, want)
	}
	return s, nil
}

// Ints returns an array of any integer type, widened.
func (f *File) Ints(key string) ([]int64, error) {
	v, err := f.get(key)
	if err != nil {
		return nil, err
	}
	switch s := v.Data.(type) {
	case []uint8:
		return widen(s), nil
	case []int8:
		return widen(s), nil
	case []uint16:
		return widen(s), nil
	case []int16:
		return widen(s), nil
	case []uint32:
		return widen(s), nil
	case []int32:
		return widen(s), nil
	case []int64:
		return s, nil
	case []uint64:
		for _, x := range s {
			if x > math.MaxInt64 {
				return nil, keyError(key, fmt.Errorf("%d is too large", x))
			}
		}
		return widen(s), nil
	}
	return nil, v.mismatch(key, "an array of integers")
}

func widen[T uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64](s []T) []int64 {
	out := make([]int64, len(s))
	for i, x := range s {
		out[i] = int64(x)
	}
	return out
}
