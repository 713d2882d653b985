package openai

import "encoding/json"

// MaxGrammar bounds the text of a grammar.
const MaxGrammar = 256 << 10

// Guided is the structure that the answer must have.
type Guided struct {
	Kind  string // json_object, json_schema, regex, choice or grammar
	Text  string // schema, expression, list of strings or rules; schema and list as JSON
	Param string // the field that asked for it
}

// guide sets the structure, which only one field may ask for.
func (r *Request) guide(kind, text, param string) error {
	if r.Guided != nil {
		return Invalid(param, "%s and %s both ask for a structure of the answer: send one of them", r.Guided.Param, param)
	}
	if len(text) > MaxGrammar {
		return Invalid(param, "%s has %d bytes: the limit is %d", param, len(text), MaxGrammar)
	}
	r.Guided = &Guided{Kind: kind, Text: text, Param: param}
	return nil
}

func setResponseFormat(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	kind, ok := body.Get("type")
	if !ok {
		return Invalid(p+".type", "response_format needs a type: \"text\", \"json_object\" or \"json_schema\"")
	}
	s, err := stringOf(p+".type", kind)
	if err != nil {
		return err
	}
	switch s {
	case "text":
		return nil
	case "json_object":
		return r.guide("json_object", "", p)
	case "json_schema":
	default:
		return Unsupported(p, "response_format %q is not supported: use \"text\", \"json_object\" or \"json_schema\"", Cut(s, 64))
	}
	outer, _ := body.Get("json_schema")
	inner, err := objectOf(p+".json_schema", outer)
	if err != nil {
		return err
	}
	schema, ok := inner.Get("schema")
	if !ok || isNull(schema) {
		return Invalid(p+".json_schema.schema", "response_format.json_schema needs schema, the JSON schema of the answer")
	}
	return r.guide("json_schema", string(schema), p+".json_schema.schema")
}

// setGuidedJSON takes a schema as an object or as text.
func setGuidedJSON(r *Request, p string, raw json.RawMessage) error {
	if raw[0] != '"' {
		if _, err := objectOf(p, raw); err != nil {
			return err
		}
		return r.guide("json_schema", string(raw), p)
	}
	s, err := stringOf(p, raw)
	if err != nil {
		return err
	}
	return r.guide("json_schema", s, p)
}

func setGuidedRegex(r *Request, p string, raw json.RawMessage) error {
	s, err := stringOf(p, raw)
	if err != nil {
		return err
	}
	return r.guide("regex", s, p)
}

func setGuidedGrammar(r *Request, p string, raw json.RawMessage) error {
	s, err := stringOf(p, raw)
	if err != nil {
		return err
	}
	return r.guide("grammar", s, p)
}

func setGuidedChoice(r *Request, p string, raw json.RawMessage) error {
	list, err := stringsOf(p, raw)
	if err == nil && len(list) == 0 {
		err = Invalid(p, "%s is empty: name at least one choice", p)
	}
	if err != nil {
		return err
	}
	return r.guide("choice", string(raw), p)
}

// setStructured takes the object that newer versions of vLLM have instead of guided_*.
func setStructured(r *Request, p string, raw json.RawMessage) error {
	body, err := objectOf(p, raw)
	if err != nil {
		return err
	}
	for _, m := range body.members {
		if isNull(m.raw) {
			continue
		}
		at := p + "." + m.name
		switch m.name {
		case "json":
			err = setGuidedJSON(r, at, m.raw)
		case "regex":
			err = setGuidedRegex(r, at, m.raw)
		case "choice":
			err = setGuidedChoice(r, at, m.raw)
		case "grammar":
			err = setGuidedGrammar(r, at, m.raw)
		case "json_object":
			var on bool
			if on, err = boolOf(at, m.raw); on {
				err = r.guide("json_object", "", at)
			}
		default:
			err = Unsupported(at, "%s is not supported: use json, json_object, regex, choice or grammar", Cut(at, 80))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
