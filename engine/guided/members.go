package guided

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// object is an object whose properties come in the order of the schema.
func (s *schema) object(a *ask) (*expr, error) {
	var props []member
	if raw, ok := a.use("properties"); ok {
		var err error
		if props, err = object(raw); err != nil {
			return nil, fmt.Errorf("%s/properties: %w", a.at, err)
		}
	}
	var required []string
	if raw, ok := a.use("required"); ok {
		if err := json.Unmarshal(raw, &required); err != nil {
			return nil, fmt.Errorf("%s: required must be a list of names", a.at)
		}
	}
	for _, name := range required {
		if !slices.ContainsFunc(props, func(m member) bool { return m.name == name }) {
			return nil, fmt.Errorf("%s: the required property %q is not among its properties", a.at, cutText(name))
		}
	}
	more, ok := a.use("additionalProperties")
	if len(props) == 0 {
		return s.free(a, more)
	}
	if ok && string(more) != "false" && string(more) != "true" {
		return nil, fmt.Errorf("%s: additionalProperties with a schema is not supported beside properties", a.at)
	}
	return s.members(a.at, props, required)
}

// free is an object without declared properties.
func (s *schema) free(a *ask, more json.RawMessage) (*expr, error) {
	lo, err := a.number("minProperties", 0)
	if err != nil {
		return nil, err
	}
	hi, err := a.number("maxProperties", -1)
	if err != nil {
		return nil, err
	}
	if hi >= 0 && hi < lo {
		return nil, fmt.Errorf("%s: maxProperties %d is less than minProperties %d", a.at, hi, lo)
	}
	switch string(more) {
	case "false":
		return seq(lit("{"), ref(ruleWS), lit("}")), nil
	case "", "true":
		return mapOf(ref(ruleValue), lo, hi), nil
	}
	value, err := s.of(a.at+"/additionalProperties", more)
	if err != nil {
		return nil, err
	}
	return mapOf(value, lo, hi), nil
}

// members writes properties in their order; those that are not required may be left
// out. What may follow a property is a rule, once for when one was written before,
// with a comma, and once for when none was: else a schema with many optional ones
// would grow without end.
func (s *schema) members(at string, props []member, required []string) (*expr, error) {
	name := func(i int, first bool) string { return fmt.Sprintf("%s member %d %v", at, i, first) }
	for i, p := range props {
		key, err := quoted(p.name)
		if err != nil {
			return nil, err
		}
		path := at + "/properties/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(p.name)
		pair := seq(lit(key), lit(":"), ref(ruleWS), ref(path))
		for _, first := range []bool{true, false} {
			e := seq(pair, ref(name(i+1, false)))
			if !first {
				e = seq(comma(), e)
			}
			if !slices.Contains(required, p.name) {
				e = alt(e, ref(name(i+1, first)))
			}
			s.extra[name(i, first)] = e
		}
	}
	end := seq(ref(ruleWS), lit("}"))
	s.extra[name(len(props), true)], s.extra[name(len(props), false)] = lit("}"), end
	return seq(lit("{"), ref(ruleWS), ref(name(0, true))), nil
}

// quoted is a name as JSON writes it, without escapes that only HTML needs.
func quoted(name string) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(name)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func (s *schema) array(a *ask) (*expr, error) {
	lo, err := a.number("minItems", 0)
	if err != nil {
		return nil, err
	}
	hi, err := a.number("maxItems", -1)
	if err != nil {
		return nil, err
	}
	if hi >= 0 && hi < lo {
		return nil, fmt.Errorf("%s: maxItems %d is less than minItems %d", a.at, hi, lo)
	}
	item := ref(ruleValue)
	if raw, ok := a.use("items"); ok {
		if item, err = s.of(a.at+"/items", raw); err != nil {
			return nil, err
		}
	}
	return seq(lit("["), ref(ruleWS), list(item, lo, hi), lit("]")), nil
}

// formats are those of strings that are understood.
var formats = map[string]string{
	"date":      `^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$`,
	"time":      `^([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`,
	"date-time": `^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`,
	"uuid":      `^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`,
	"ipv4":      `^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$`,
	"email":     `^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63}){1,4}$`,
}

func (s *schema) text(a *ask) (*expr, error) {
	lo, err := a.number("minLength", 0)
	if err != nil {
		return nil, err
	}
	hi, err := a.number("maxLength", -1)
	if err != nil {
		return nil, err
	}
	pattern, has, err := patternOf(a)
	switch {
	case err != nil:
		return nil, err
	case has && (lo > 0 || hi >= 0):
		return nil, fmt.Errorf("%s: minLength and maxLength are not supported beside pattern or format", a.at)
	case has:
		e, err := regex(pattern, true)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.at, err)
		}
		return seq(lit(`"`), e, lit(`"`)), nil
	case hi >= 0 && hi < lo:
		return nil, fmt.Errorf("%s: maxLength %d is less than minLength %d", a.at, hi, lo)
	case lo == 0 && hi < 0:
		return ref(ruleString), nil
	}
	return seq(lit(`"`), rep(ref(ruleChar), lo, hi), lit(`"`)), nil
}

func patternOf(a *ask) (pattern string, has bool, err error) {
	if raw, ok := a.use("format"); ok {
		var name string
		_ = json.Unmarshal(raw, &name)
		if pattern, has = formats[name]; !has {
			return "", false, fmt.Errorf("%s: the format %s is not supported", a.at, cutText(string(raw)))
		}
	}
	raw, ok := a.use("pattern")
	if !ok {
		return pattern, has, nil
	}
	if has {
		return "", false, fmt.Errorf("%s: pattern and format together are not supported", a.at)
	}
	if err := json.Unmarshal(raw, &pattern); err != nil {
		return "", false, fmt.Errorf("%s: pattern must be a string", a.at)
	}
	return pattern, true, nil
}

// maxRange is how many whole numbers a range may have.
const maxRange = 4096

// number is a number, or a whole one. Bounds are supported for whole numbers in small
// ranges, and at 0.
func number(a *ask, kind string) (*expr, error) {
	lo, hi, err := bounds(a)
	if err != nil {
		return nil, err
	}
	sign := opt(lit("-"))
	switch {
	case math.IsInf(lo, -1) && math.IsInf(hi, 1):
	case kind == "integer" && !math.IsInf(lo, -1) && !math.IsInf(hi, 1) && hi-lo < maxRange:
		var subs []*expr
		for n := math.Ceil(lo); n <= hi; n++ {
			subs = append(subs, lit(strconv.FormatInt(int64(n), 10)))
		}
		if len(subs) == 0 {
			return nil, fmt.Errorf("%s: no whole number lies between its bounds", a.at)
		}
		return alt(subs...), nil
	case lo == 0 && math.IsInf(hi, 1):
		sign = seq()
	case kind == "integer" && lo == 1 && math.IsInf(hi, 1):
		return seq(bytesIn('1', '9'), rep(bytesIn('0', '9'), 0, 15)), nil
	default:
		return nil, fmt.Errorf("%s: bounds of numbers are supported for whole numbers in a range of at most %d, and as minimum 0", a.at, maxRange)
	}
	if kind == "integer" {
		return seq(sign, whole()), nil
	}
	if len(sign.subs) == 0 {
		return seq(whole(), opt(seq(lit("."), rep(bytesIn('0', '9'), 1, 17)))), nil
	}
	return ref(ruleNumber), nil
}

// bounds reads the bounds of a number; exclusive ones are those of whole numbers.
func bounds(a *ask) (lo, hi float64, err error) {
	lo, hi = math.Inf(-1), math.Inf(1)
	for _, b := range []struct {
		name string
		to   *float64
		by   float64
	}{{"minimum", &lo, 0}, {"exclusiveMinimum", &lo, 1}, {"maximum", &hi, 0}, {"exclusiveMaximum", &hi, -1}} {
		raw, ok := a.use(b.name)
		if !ok {
			continue
		}
		var v float64
		if err := json.Unmarshal(raw, &v); err != nil {
			return 0, 0, fmt.Errorf("%s: %s must be a number", a.at, b.name)
		}
		if v != math.Trunc(v) || math.Abs(v) > 1e15 {
			return 0, 0, fmt.Errorf("%s: %s is %v; only whole bounds are supported", a.at, b.name, v)
		}
		*b.to = v + b.by
	}
	return lo, hi, nil
}
