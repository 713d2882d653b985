package guided

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func never() bool { return false }

// toy has a token for each byte and some that cross the borders of what grammars know.
func toy() *Vocab {
	more := []string{`{"`, `":`, `",`, `"}`, `, "`, `": "`, "true", "false", "null", "name", `"name"`, "ab", "abc", "é", "é\"", "12", "0.", "}}", "\n  ", "[]", "{}", " {", "}\n"}
	return NewVocab(257+len(more), func(id int32) []byte {
		switch {
		case id < 256:
			return []byte{byte(id)}
		case id == 256:
			return nil // special
		}
		return []byte(more[id-257])
	})
}

// accepts feeds text byte by byte.
func accepts(g *Grammar, text string) bool {
	m := g.Start()
	for _, b := range []byte(text) {
		mask, _, err := m.Mask()
		if err != nil {
			return false
		}
		if allowed := mask[b>>6]>>(b&63)&1 == 1; allowed != m.Push(int32(b)) {
			panic(fmt.Sprintf("mask and push differ on %q in %q", b, text))
		} else if !allowed {
			return false
		}
	}
	_, end, err := m.Mask()
	return end && err == nil
}

func compile(t testing.TB, kind Kind, text string) *Grammar {
	t.Helper()
	g, err := Compile(kind, text, toy(), never)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return g
}

func TestRegexAgreesWithRegexp(t *testing.T) {
	patterns := []string{
		`abc`, `a*b`, `(ab|a)c?`, `[a-c]{2,4}`, `\d+(\.\d{1,2})?`, `^x.y$`, `(?i)hello`, `é+`, `[^a]b`, `[à-ü]{1,3}z`, `a{0,3}`, `(a|b)*abb`,
		`\w+@\w+`, `[\x{1F600}-\x{1F64F}]`, `.{0,5}`, `(foo|bar|)baz`, `\s?x`, `[^\x00-\x7f]`,
	}
	texts := []string{
		"", "a", "b", "abc", "ab", "ac", "aab", "abb", "babb", "12", "12.5", "12.555", "xzy", "x\ny", "HELLO", "hello", "heLlo!", "é", "éé", "bb", "ab",
		"éb", "àéz", "z", "aaa", "aaaa", "me@you", "😀", "日本", "foobaz", "baz", " x", "x", "\tx", "cab", "ü", "\xff", "aé",
	}
	for _, p := range patterns {
		g, re := compile(t, Regex, p), regexp.MustCompile(`^(?:`+p+`)$`)
		for _, s := range texts {
			if strings.Contains(s, "\xff") {
				if accepts(g, s) {
					t.Errorf("%s takes what is not UTF-8", p)
				}
				continue
			}
			if got, want := accepts(g, s), re.MatchString(s); got != want {
				t.Errorf("%s on %q: %v", p, s, got)
			}
		}
	}
}

func TestJSON(t *testing.T) {
	g := compile(t, JSON, "")
	for text, want := range map[string]bool{
		`{}`: true, `{ }`: true, `{"a":1}`: true, `{"a": [1, 2.5e3, {"b": null}], "c": "\u00e9\n é"}`: true, "{\n  \"a\": true\n}": true,
		``: false, `[]`: false, `{"a":1,}`: false, `{a:1}`: false, `{"a":01}`: false, `{"a":"` + "\n" + `"}`: false, `{"a":1}}`: false, `{"a":"\x"}`: false, `{"a"}`: false,
	} {
		if got := accepts(g, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
		if want && !json.Valid([]byte(text)) {
			t.Errorf("%s is no JSON", text)
		}
	}
	if deep := strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500); accepts(g, deep) {
		t.Error("there is no bound of nests")
	}
	if deep := strings.Repeat(`{"a":`, 15) + "1" + strings.Repeat("}", 15); !accepts(g, deep) {
		t.Error("15 nests are too many")
	}
}

const person = `{
	"type": "object",
	"properties": {
		"name": {"type": "string", "minLength": 1, "maxLength": 8},
		"age": {"type": "integer", "minimum": 0, "maximum": 150},
		"tags": {"type": "array", "items": {"enum": ["a", "b", 3]}, "minItems": 1, "maxItems": 3},
		"boss": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
		"born": {"type": "string", "format": "date"},
		"score": {"type": ["number", "null"]},
		"ok": {"type": "boolean", "description": "whether"},
		"extra": {"type": "object", "additionalProperties": {"$ref": "#/$defs/even"}}
	},
	"required": ["name", "boss"],
	"additionalProperties": false,
	"$defs": {"even": {"type": "string", "pattern": "^(..)*$"}}
}`

func TestSchema(t *testing.T) {
	g := compile(t, Schema, person)
	for text, want := range map[string]bool{
		`{"name":"Ann","boss":null}`: true, `{"name": "Ann", "age": 41, "tags": ["a", 3], "boss": {"name":"Bo","boss":null}, "born":"1999-12-31", "score": -1.5, "ok":true}`: true,
		`{"name":"é","boss":null,"extra":{"x":"abab","y":""}}`: true, `{"name":"Ann","age":150,"boss":null}`: true, `{"name":"\n","boss":null,"score":null}`: true,
		`{"name":"Ann"}`: false, `{"boss":null}`: false, `{"name":"","boss":null}`: false, `{"name":"123456789","boss":null}`: false, `{"age":4,"name":"Ann","boss":null}`: false,
		`{"name":"Ann","age":151,"boss":null}`: false, `{"name":"Ann","age":-1,"boss":null}`: false, `{"name":"Ann","tags":[],"boss":null}`: false, `{"name":"Ann","tags":["c"],"boss":null}`: false,
		`{"name":"Ann","tags":["a","a","a","a"],"boss":null}`: false, `{"name":"Ann","boss":{}}`: false, `{"name":"Ann","boss":null,"born":"1999-13-01"}`: false, `{"name":"Ann","boss":null,"x":1}`: false,
		`{"name":"Ann","boss":null,"extra":{"x":"aba"}}`: false, `{"name":"Ann","boss":null,}`: false, `null`: false,
	} {
		if got := accepts(g, text); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// TestManyOptionalPropertiesStaySmall: their subsets are many.
func TestManyOptionalPropertiesStaySmall(t *testing.T) {
	var props []string
	for i := range 200 {
		props = append(props, fmt.Sprintf(`"p%d": {"type":"boolean"}`, i))
	}
	g := compile(t, Schema, `{"type":"object","properties":{`+strings.Join(props, ",")+`}}`)
	if n := len(g.net.places); n > 20000 {
		t.Errorf("%d places", n)
	}
	if !accepts(g, `{"p3":true,"p77":false, "p199":true}`) || accepts(g, `{"p77":true,"p3":false}`) || !accepts(g, `{}`) {
		t.Error("not the subsets in their order")
	}
}

func TestWhatIsNotSupportedIsNamed(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":"object","patternProperties":{}}`:                   `"patternProperties" is not supported`,
		`{"type":"array","uniqueItems":true}`:                        `"uniqueItems"`,
		`{"type":"string","format":"uri"}`:                           `format "uri"`,
		`{"type":"integer","minimum":5}`:                             "bounds of numbers",
		`{"type":"number","multipleOf":2}`:                           `"multipleOf"`,
		`{"not":{}}`:                                                 "needs a type",
		`{"allOf":[{"type":"string"},{"type":"null"}]}`:              "allOf of more than one",
		`{"$ref":"other.json"}`:                                      "must be # or begin with #/",
		`{"$ref":"#/$defs/none"}`:                                    "leads nowhere",
		`{"type":"object","properties":{"a":{"type":"thing"}}}`:      `#/properties/a: there is no type "thing"`,
		`{"type":"object","properties":{"a":true},"required":["b"]}`: `"b" is not among`,
		`{"type":"object","properties":{"a":true},"additionalProperties":{"type":"string"}}`: "beside properties",
		`{"type":"string","pattern":"(?=a)"}`:                                                "cannot be read",
		`{"type":"string","pattern":"a\\bc"}`:                                                "not supported",
		`{"type":"string","pattern":"a^b"}`:                                                  "not supported there",
		`{"type":"string","pattern":"(a$)*"}`:                                                "not supported there",
		`{"type":"string","pattern":"^a|b"}`:                                                 "only some have",
		`{"type":"string","pattern":"a$|b"}`:                                                 "only some have",
		`{"type":"object","minProperties":3,"maxProperties":2}`:                              "less than minProperties",
		`{"type":"array","minItems":3,"maxItems":2}`:                                         "less than minItems",
		`[]`:                                    "must be an object or true",
		`{"type":`:                              "not JSON",
		`{"type":"string","maxLength":1000000}`: "too large",
		`{"$ref":"#"}`:                          "no token",
		`false`:                                 "accepts nothing",
	} {
		_, err := Compile(Schema, text, toy(), never)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := Compile(Choice, `[]`, toy(), never); err == nil {
		t.Error("no choices")
	}
	calls := 0
	if _, err := Compile(Schema, person, toy(), func() bool { calls++; return true }); err == nil || !strings.Contains(err.Error(), "too long") || calls == 0 {
		t.Errorf("out of time: %v", err)
	}
}

// TestEveryAllowedPathIsValid writes what the masks allow, at random, towards an end:
// it has to parse, and to be what the grammar says.
func TestEveryAllowedPathIsValid(t *testing.T) {
	grammars := map[string]*Grammar{
		"json": compile(t, JSON, ""), "person": compile(t, Schema, person), "regex": compile(t, Regex, `(ab|é)+\d{2}`), "choice": compile(t, Choice, `["true","{}","name"]`),
	}
	v := toy()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"json", "person", "regex", "choice"}).Draw(t, "grammar")
		g := grammars[name]
		m := g.Start()
		var text []byte
		for n := 0; ; n++ {
			mask, end, err := m.Mask()
			if err != nil {
				t.Fatal(err)
			}
			if end && (n > 40 || rapid.IntRange(0, 2).Draw(t, "stop") == 0) {
				break
			}
			var ids []int32
			for id := range int32(v.size) {
				if mask[id>>6]>>(id&63)&1 == 1 {
					ids = append(ids, id)
				}
			}
			if len(ids) == 0 {
				if !end {
					t.Fatalf("%s: nothing may follow %q", name, text)
				}
				break
			}
			if n > 400 {
				return // a long string, which is fine
			}
			id := ids[rapid.IntRange(0, len(ids)-1).Draw(t, "token")]
			if n > 30 { // come to an end
				if i := slices.IndexFunc(ids, func(id int32) bool { return id == '"' || id == '}' || id == ']' }); i >= 0 {
					id = ids[i]
				}
			}
			if !m.Push(id) {
				t.Fatalf("%s: %q refused after %q", name, v.bytes[id], text)
			}
			text = append(text, v.bytes[id]...)
		}
		if (name == "json" || name == "person") && !json.Valid(text) {
			t.Fatalf("%s: %s", name, text)
		}
		if name == "regex" && !regexp.MustCompile(`^(ab|é)+\d{2}$`).Match(text) {
			t.Fatalf("%s", text)
		}
	})
}

func TestPushRefusesAndStaysRefused(t *testing.T) {
	m := compile(t, Choice, `["ab"]`).Start()
	if m.Push('x') || m.Push('a') {
		t.Error("what is not allowed was taken")
	}
	mask, end, _ := m.Mask()
	if some(mask) || end {
		t.Error("something may follow what is refused")
	}
	for _, id := range []int32{-1, 256, 100000} {
		if compile(t, JSON, "").Start().Push(id) {
			t.Errorf("token %d was taken", id)
		}
	}
}

// FuzzSchema: schemas are written by strangers.
func FuzzSchema(f *testing.F) {
	for _, s := range []string{person, `{"$ref":"#"}`, `{"type":["object","null"],"properties":{"a":{"$ref":"#"}}}`, `{"anyOf":[{"$ref":"#"},{"const":{"a":[1]}}]}`, `{"type":"string","pattern":"(a*)*b{3,}"}`} {
		f.Add(s)
	}
	v := toy()
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		g, err := Compile(Schema, text, v, func() bool { n++; return n > 200 })
		if err != nil {
			return
		}
		if mask, end, err := g.Start().Mask(); err == nil && !end && !some(mask) {
			t.Errorf("%s begins with nothing", text)
		}
	})
}
