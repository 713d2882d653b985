package config

import (
	"fmt"
	"math"
	"reflect"
	"strings"
)

// bounds reports the first number in v that nobody can mean: one that is not finite, or a time (a key that ends in _ms or
// _sec) of more than a day, which would overflow where it is added to a clock. at is the dotted key of v.
func bounds(v reflect.Value, at string) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return bounds(v.Elem(), at)
	case reflect.Struct:
		for i := range v.NumField() {
			name, opts, _ := strings.Cut(v.Type().Field(i).Tag.Get("mapstructure"), ",")
			key := strings.TrimPrefix(at+"."+name, ".")
			if opts == "squash" {
				key = at
			}
			if name == "" && opts != "squash" {
				continue
			}
			if err := bounds(v.Field(i), key); err != nil {
				return err
			}
		}
	case reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("%s: %g is not a finite number", at, f)
		}
		return day(at, v.Float())
	case reflect.Int, reflect.Int64:
		return day(at, float64(v.Int()))
	}
	return nil
}

func day(key string, n float64) error {
	for suffix, limit := range map[string]float64{"_ms": 86_400_000, "_sec": 86_400} {
		if strings.HasSuffix(key, suffix) && n > limit {
			return fmt.Errorf("%s: %.17g is more than a day (%.0f)", key, n, limit)
		}
	}
	return nil
}
