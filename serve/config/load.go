package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// delimiter separates levels inside viper; "." would split keys that hold host names.
const delimiter = "::"

// envPrefix starts every environment variable that overrides a key.
const envPrefix = "TANDEM_"

// maxFileBytes bounds a configuration file; a larger one is surely not ours.
const maxFileBytes = 1 << 20

// Source says where the values of one configuration tree come from, strongest first.
type Source struct {
	Flags     map[string]any                // dotted key ("kv_cache_config.max_tokens") to value; only flags the user gave
	LookupEnv func(string) (string, bool)   // nil = os.LookupEnv
	File      string                        // path of the YAML file, "" = none
	Data      []byte                        // YAML text used in place of File when not nil
	Foreign   map[string]string             // dotted keys of other engines: accepted, dropped, and warned about with this reason
	Renamed   func(map[string]any) []string // optional: rewrites the parsed file in place before checks, returns warnings
	GPU       bool                          // the defaults of a worker are those of one on a GPU
}

// Load fills a copy of def (the defaults) from src and validates it. T is a struct whose fields carry `mapstructure`
// tags; if T or *T has Validate() error it runs last. The warnings are for the caller's log. Every error is one line and
// names the file and the key.
func Load[T any](def T, src Source) (T, []string, error) {
	out := def
	tree, err := readTree(src)
	if err != nil {
		return out, nil, err
	}
	var warnings []string
	if src.Renamed != nil {
		warnings = src.Renamed(tree)
	}
	warnings = append(warnings, dropForeign(tree, "", src.Foreign)...)
	shape := reflect.TypeFor[T]()
	if err := checkKeys(tree, shape, ""); err != nil {
		return out, warnings, src.wrap(err)
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(delimiter), viper.ExperimentalBindStruct())
	if err := v.MergeConfigMap(tree); err != nil {
		return out, warnings, src.wrap(err)
	}
	if err := src.override(v, shape); err != nil {
		return out, warnings, err
	}
	if err := v.UnmarshalExact(&out, strictTypes); err != nil {
		return out, warnings, src.wrap(flattenDecodeError(err))
	}
	if err := bounds(reflect.ValueOf(out), ""); err != nil {
		return out, warnings, src.wrap(err)
	}
	if err := validate(&out); err != nil {
		return out, warnings, src.wrap(err)
	}
	return out, warnings, nil
}

func validate[T any](out *T) error {
	if val, ok := any(out).(interface{ Validate() error }); ok {
		return val.Validate()
	}
	return nil
}

// wrap names the file in an error, so that a user with several knows which to open.
func (s Source) wrap(err error) error {
	if s.File == "" {
		return fmt.Errorf("config: %w", err)
	}
	return fmt.Errorf("config %s: %w", s.File, err)
}

// readTree parses the YAML text into nested maps with nulls removed (a key without a value means "default").
func readTree(src Source) (map[string]any, error) {
	data := src.Data
	if data == nil {
		if src.File == "" {
			return map[string]any{}, nil
		}
		raw, err := readBounded(src.File)
		if err != nil {
			return nil, err
		}
		data = raw
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	tree := map[string]any{}
	if err := dec.Decode(&tree); err != nil {
		if errors.Is(err, io.EOF) {
			return tree, nil
		}
		return nil, src.wrap(fmt.Errorf("not a YAML mapping of keys to values: %s", oneLine(err)))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, src.wrap(errors.New("holds more than one YAML document; keep one"))
	}
	dropNulls(tree)
	return tree, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("config %s: %w", path, err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("config %s: larger than %d bytes; is it the right file?", path, maxFileBytes)
	}
	return data, nil
}

func dropNulls(tree map[string]any) {
	for k, v := range tree {
		switch x := v.(type) {
		case nil:
			delete(tree, k)
		case map[string]any:
			dropNulls(x)
		}
	}
}

// override lays environment and then flags over the file. Values from the environment are read as YAML scalars or flow
// lists, so they meet the same type rules as the file; a list of strings may also be written "a,b".
func (s Source) override(v *viper.Viper, shape reflect.Type) error {
	lookup := s.LookupEnv
	if lookup == nil {
		lookup = os.LookupEnv
	}
	for _, leaf := range leaves(shape, nil) {
		name := envPrefix + strings.ToUpper(strings.Join(leaf.path, "__"))
		text, ok := lookup(name)
		if !ok {
			continue
		}
		val, err := envValue(text, leaf.typ)
		if err != nil {
			return fmt.Errorf("config: environment %s: %w", name, err)
		}
		v.Set(strings.Join(leaf.path, delimiter), val)
	}
	for key, val := range s.Flags {
		v.Set(strings.ReplaceAll(key, ".", delimiter), val)
	}
	return nil
}

func envValue(text string, typ reflect.Type) (any, error) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if typ.Kind() == reflect.String {
		return text, nil
	}
	var val any
	if err := yaml.Unmarshal([]byte(text), &val); err != nil {
		return nil, fmt.Errorf("%q is not a YAML value", text)
	}
	if s, ok := val.(string); ok && typ.Kind() == reflect.Slice {
		parts := strings.Split(s, ",")
		for i := range parts {
			parts[i] = strings.TrimSpace(parts[i])
		}
		return parts, nil
	}
	if val == nil {
		return nil, errors.New("is empty: give it a value or unset it")
	}
	return val, fits(val, typ)
}

// strictTypes turns off viper's weak conversions ("true" is no boolean, 1.5 no integer) and makes lists replace defaults.
func strictTypes(dc *mapstructure.DecoderConfig) {
	dc.WeaklyTypedInput = false
	dc.ZeroFields = true
	dc.DecodeHook = func(_, to reflect.Type, val any) (any, error) { return val, fits(val, to) }
}

// fits tells whether a value has the type of its key, in words for a user when it has not.
func fits(val any, to reflect.Type) error {
	isInt := func(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uint64 }
	isFloat := func(k reflect.Kind) bool { return k == reflect.Float64 || k == reflect.Float32 }
	from := reflect.ValueOf(val).Kind() // Invalid for nil, which fits nothing
	switch kind := to.Kind(); {
	case isInt(kind) && !isInt(from):
		return fmt.Errorf("expected a whole number, got %v", val)
	case isFloat(kind) && !isInt(from) && !isFloat(from):
		return fmt.Errorf("expected a number, got %v", val)
	case kind == reflect.Bool && from != reflect.Bool:
		return fmt.Errorf("expected true or false without quotes, got %q", fmt.Sprint(val))
	case kind == reflect.String && from != reflect.String:
		return fmt.Errorf("expected text, got %s; put it in quotes", nameOf(from)) // not the value: it may be a key
	case kind == reflect.Slice && from != reflect.Slice:
		return fmt.Errorf("expected a list, got %s", nameOf(from))
	}
	return nil
}

// nameOf says what a value of YAML is.
func nameOf(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint64, reflect.Float64:
		return "a number"
	case reflect.String:
		return "text"
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "keys with values"
	}
	return "something else"
}

// flattenDecodeError makes one line of mapstructure's list.
func flattenDecodeError(err error) error {
	_, text, found := strings.Cut(err.Error(), "following error(s):")
	if !found {
		text = err.Error()
	}
	return errors.New(strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; ")) // one a line
}

// quoted are pieces of the file in an error of the YAML decoder. They may be of a secret, as in a file that is no configuration.
var quoted = regexp.MustCompile(" `[^`]*`")

func oneLine(err error) string {
	return quoted.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), "")
}
