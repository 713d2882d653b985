package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// leafKey is one scalar or list of a tree, with its path of YAML keys.
type leafKey struct {
	path []string
	typ  reflect.Type
}

// Keys returns the YAML keys at the top level of T, sorted.
func Keys[T any]() []string {
	fields, _ := fieldsOf(reflect.TypeFor[T]())
	return sortedKeys(fields)
}

// fieldsOf maps YAML key to field type; open tells that other keys are accepted too (a ",remain" field).
func fieldsOf(t reflect.Type) (fields map[string]reflect.Type, open bool) {
	fields = map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		switch {
		case opts == "remain":
			open = true
		case opts == "squash":
			inner, innerOpen := fieldsOf(f.Type)
			for k, v := range inner {
				fields[k] = v
			}
			open = open || innerOpen
		case name != "" && name != "-" && f.IsExported():
			fields[name] = f.Type
		}
	}
	return fields, open
}

func structOf(t reflect.Type) (reflect.Type, bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t, t.Kind() == reflect.Struct
}

func leaves(t reflect.Type, prefix []string) []leafKey {
	fields, _ := fieldsOf(t)
	var out []leafKey
	for _, key := range sortedKeys(fields) {
		path := append(slices.Clone(prefix), key)
		if inner, ok := structOf(fields[key]); ok {
			out = append(out, leaves(inner, path)...)
			continue
		}
		out = append(out, leafKey{path: path, typ: fields[key]})
	}
	return out
}

// checkKeys walks the file beside the struct and reports the first unknown key in sorted order.
func checkKeys(tree map[string]any, shape reflect.Type, prefix string) error {
	shape, ok := structOf(shape)
	if !ok {
		return nil
	}
	fields, open := fieldsOf(shape)
	for _, key := range sortedKeys(tree) {
		typ, known := fields[key]
		if !known {
			if open {
				continue
			}
			return unknownKey(prefix+key, key, sortedKeys(fields))
		}
		if err := checkValue(tree[key], typ, prefix+key); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(val any, typ reflect.Type, path string) error {
	if _, ok := structOf(typ); ok {
		sub, isMap := val.(map[string]any)
		if !isMap {
			return fmt.Errorf("%s: expected a mapping of keys to values, got %v", path, val)
		}
		return checkKeys(sub, typ, path+".")
	}
	list, isList := val.([]any)
	if !isList || typ.Kind() != reflect.Slice {
		return nil
	}
	for i, item := range list {
		if sub, ok := item.(map[string]any); ok {
			if err := checkKeys(sub, typ.Elem(), fmt.Sprintf("%s[%d].", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func unknownKey(path, key string, known []string) error {
	if near := Nearest(key, known); near != "" && editDistance(strings.ToLower(key), near) <= max(2, len(key)/3) {
		return fmt.Errorf("unknown key %q; the nearest known key is %q", path, near)
	}
	return fmt.Errorf("unknown key %q: see docs/configuration.md for all keys", path)
}

// Nearest returns the known word with the smallest edit distance to word, the first in order on a tie, "" if none.
func Nearest(word string, known []string) string {
	best, bestDist := "", int(^uint(0)>>1)
	for _, k := range known {
		if d := editDistance(strings.ToLower(word), k); d < bestDist {
			best, bestDist = k, d
		}
	}
	return best
}

// editDistance counts insertions, deletions and substitutions between two short words, in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diag := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diag
			if a[i-1] != b[j-1] {
				cost++
			}
			diag = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

// dropForeign removes keys that mean something only to other engines and says so.
func dropForeign(tree map[string]any, prefix string, foreign map[string]string) []string {
	var warnings []string
	for _, key := range sortedKeys(tree) {
		path := prefix + key
		if why, ok := foreign[path]; ok {
			delete(tree, key)
			warnings = append(warnings, fmt.Sprintf("%s is ignored: %s", path, why))
			continue
		}
		if sub, ok := tree[key].(map[string]any); ok {
			warnings = append(warnings, dropForeign(sub, path+".", foreign)...)
		}
	}
	return warnings
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
