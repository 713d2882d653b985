package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// maxDepth bounds the nesting of messages and tools; templates walk them
// recursively.
const maxDepth = 100

// parseValue turns JSON text into a template value: objects keep the order of
// their keys, 2 is an integer and 2.0 a float.
func parseValue(raw []byte) (jinja.Value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := readValue(d, 0)
	if err != nil {
		return v, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, errors.New("more than one JSON value")
	}
	return v, nil
}

func readValue(d *json.Decoder, depth int) (jinja.Value, error) {
	if depth > maxDepth {
		return jinja.None(), fmt.Errorf("nested deeper than %d", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return jinja.None(), err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return readDict(d, depth)
		}
		return readList(d, depth)
	case string:
		return jinja.NewString(t), nil
	case bool:
		return jinja.NewBool(t), nil
	case json.Number:
		return number(t)
	}
	return jinja.None(), nil
}

func readDict(d *json.Decoder, depth int) (jinja.Value, error) {
	v := jinja.NewDict()
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return v, err
		}
		item, err := readValue(d, depth+1)
		if err != nil {
			return v, err
		}
		v.AsDict().Set(key.(string), item) // the decoder admits no other keys
	}
	_, err := d.Token()
	return v, err
}

func readList(d *json.Decoder, depth int) (jinja.Value, error) {
	var items []jinja.Value
	for d.More() {
		item, err := readValue(d, depth+1)
		if err != nil {
			return jinja.None(), err
		}
		items = append(items, item)
	}
	_, err := d.Token()
	return jinja.NewList(items), err
}

func number(n json.Number) (jinja.Value, error) {
	if !strings.ContainsAny(n.String(), ".eE") {
		if i, err := strconv.ParseInt(n.String(), 10, 64); err == nil {
			return jinja.NewInt(i), nil
		}
	}
	f, err := n.Float64()
	if err != nil {
		return jinja.None(), fmt.Errorf("number %.40s is out of range", n)
	}
	return jinja.NewFloat(f), nil
}
