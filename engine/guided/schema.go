package guided

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// member is a member of an object, whose order counts: it is that of the output.
type member struct {
	name  string
	value json.RawMessage
}

// object reads the members of an object.
func object(raw json.RawMessage) ([]member, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%s is not an object", cutText(string(raw)))
	}
	var out []member
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		m := member{name: t.(string)}
		if err := d.Decode(&m.value); err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

func cutText(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// schema compiles the JSON schema root. Each subschema that is referred to is a rule,
// named by its pointer.
type schema struct {
	root  json.RawMessage
	extra map[string]*expr    // further rules, see members
	known map[string][]member // members of what was looked into, by pointer
	stop  func() bool
}

// ignored are keywords that do not change what is valid.
var ignored = []string{
	"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "discriminator",
}

// ask is a schema's keywords, of which use takes those that are understood.
type ask struct {
	at   string
	all  []member
	used []string
}

func (a *ask) use(name string) (json.RawMessage, bool) {
	a.used = append(a.used, name)
	for i := range a.all {
		if a.all[i].name == name {
			return a.all[i].value, true
		}
	}
	return nil, false
}

// rest reports a keyword that nobody has used.
func (a *ask) rest() error {
	for i := range a.all {
		if n := a.all[i].name; !slices.Contains(a.used, n) && !slices.Contains(ignored, n) {
			return fmt.Errorf("%s: the keyword %q is not supported here", a.at, cutText(n))
		}
	}
	return nil
}

// number reads a keyword that is a whole number of at least 0.
func (a *ask) number(name string, def int) (int, error) {
	raw, ok := a.use(name)
	if !ok {
		return def, nil
	}
	var n float64
	if err := json.Unmarshal(raw, &n); err != nil || n != math.Trunc(n) || n < 0 || n > 1e6 {
		return 0, fmt.Errorf("%s: %s is %s, not a whole number from 0 to 1000000", a.at, name, cutText(string(raw)))
	}
	return int(n), nil
}

// rule is the body of the rules of a schema.
func (s *schema) rule(name string) (*expr, error) {
	if e, ok := s.extra[name]; ok {
		return e, nil
	}
	if !strings.HasPrefix(name, "#") {
		return basics(name), nil
	}
	raw, err := s.find(name)
	if err != nil {
		return nil, err
	}
	return s.of(name, raw)
}

// find follows a JSON pointer.
func (s *schema) find(pointer string) (json.RawMessage, error) {
	raw, at := s.root, "#"
	for _, part := range strings.Split(strings.TrimPrefix(pointer, "#"), "/")[1:] {
		above := at
		at += "/" + part
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		var list []json.RawMessage
		if i, err := strconv.Atoi(part); err == nil && json.Unmarshal(raw, &list) == nil && i >= 0 && i < len(list) {
			raw = list[i]
			continue
		}
		members, ok := s.known[above]
		if !ok {
			var err error
			if members, err = object(raw); err != nil {
				return nil, fmt.Errorf("$ref %q: %w", cutText(pointer), err)
			}
			s.known[above] = members
		}
		i := slices.IndexFunc(members, func(m member) bool { return m.name == part })
		if i < 0 {
			return nil, fmt.Errorf("$ref %q leads nowhere: %q is missing", cutText(pointer), cutText(part))
		}
		raw = members[i].value
	}
	return raw, nil
}

// of is what a schema at a pointer accepts.
func (s *schema) of(at string, raw json.RawMessage) (*expr, error) {
	if s.stop() {
		return nil, errTime
	}
	switch string(bytes.TrimSpace(raw)) {
	case "true":
		return ref(ruleValue), nil
	case "false":
		return nil, fmt.Errorf("%s: a schema that accepts nothing", at)
	}
	members, err := object(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: a schema must be an object or true: %w", at, err)
	}
	a := &ask{at: at, all: members}
	e, err := s.kind(a)
	if err != nil {
		return nil, err
	}
	return e, a.rest()
}

func (s *schema) kind(a *ask) (*expr, error) {
	if raw, ok := a.use("$ref"); ok {
		var to string
		if err := json.Unmarshal(raw, &to); err != nil || to != "#" && !strings.HasPrefix(to, "#/") {
			return nil, fmt.Errorf("%s: $ref %s must be # or begin with #/", a.at, cutText(string(raw)))
		}
		return ref(to), nil
	}
	for _, name := range []string{"anyOf", "oneOf", "allOf"} {
		if raw, ok := a.use(name); ok {
			return s.choices(a, name, raw)
		}
	}
	if raw, ok := a.use("const"); ok {
		return literal(a, raw)
	}
	if raw, ok := a.use("enum"); ok {
		return s.enum(a, raw)
	}
	raw, ok := a.use("type")
	if !ok {
		if slices.ContainsFunc(a.all, func(m member) bool { return m.name == "properties" }) {
			return s.typed(a, "object")
		}
		if len(a.all) == 0 || a.rest() == nil {
			return ref(ruleValue), nil
		}
		return nil, fmt.Errorf("%s: a schema needs a type, enum, const, anyOf or $ref", a.at)
	}
	var one string
	var several []string
	if json.Unmarshal(raw, &one) == nil {
		return s.typed(a, one)
	}
	if err := json.Unmarshal(raw, &several); err != nil || len(several) == 0 {
		return nil, fmt.Errorf("%s: type is %s, not a name or a list of names", a.at, cutText(string(raw)))
	}
	var subs []*expr
	for _, t := range several {
		e, err := s.typed(a, t)
		if err != nil {
			return nil, err
		}
		subs = append(subs, e)
	}
	return alt(subs...), nil
}

// choices are the alternatives of anyOf; oneOf is taken for the same, and allOf may
// have one part.
func (s *schema) choices(a *ask, name string, raw json.RawMessage) (*expr, error) {
	var parts []json.RawMessage
	if err := json.Unmarshal(raw, &parts); err != nil || len(parts) == 0 {
		return nil, fmt.Errorf("%s: %s must be a list of schemas", a.at, name)
	}
	if name == "allOf" && len(parts) > 1 {
		return nil, fmt.Errorf("%s: allOf of more than one schema is not supported", a.at)
	}
	a.use("type") // beside alternatives it says what they say
	var subs []*expr
	for i, p := range parts {
		e, err := s.of(fmt.Sprintf("%s/%s/%d", a.at, name, i), p)
		if err != nil {
			return nil, err
		}
		subs = append(subs, e)
	}
	return alt(subs...), nil
}

// literal is one value as it is written without white space.
func literal(a *ask, raw json.RawMessage) (*expr, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("%s: %w", a.at, err)
	}
	a.use("type")
	return lit(b.String()), nil
}

func (s *schema) enum(a *ask, raw json.RawMessage) (*expr, error) {
	var values []json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil || len(values) == 0 {
		return nil, fmt.Errorf("%s: enum must be a list of values", a.at)
	}
	var subs []*expr
	for _, v := range values {
		e, err := literal(a, v)
		if err != nil {
			return nil, err
		}
		subs = append(subs, e)
	}
	return alt(subs...), nil
}

func (s *schema) typed(a *ask, name string) (*expr, error) {
	switch name {
	case "object":
		return s.object(a)
	case "array":
		return s.array(a)
	case "string":
		return s.text(a)
	case "number", "integer":
		return number(a, name)
	case "boolean":
		return alt(lit("true"), lit("false")), nil
	case "null":
		return lit("null"), nil
	}
	return nil, fmt.Errorf("%s: there is no type %q", a.at, cutText(name))
}
