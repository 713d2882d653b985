package guided

import (
	"regexp"
	"strings"
	"testing"
)

const arithmetic = `
# sums of products
root  ::= sum
sum   ::= term (("+" | "-") term)*
term  ::= value ([*/] value)*     # behind another
value ::= num
  | "(" sum ")"                   # nests
num   ::= "-"? [0-9]{1,3} ("." [0-9]+)?`

func TestGrammar(t *testing.T) {
	for _, c := range []struct {
		name, text string
		good, bad  []string
	}{
		{"sums", arithmetic, []string{"1", "-12.5*(3+4)/7", "((1))", "1+2-3"}, []string{"", "+1", "1+", "(1", "1234", "1.", "a"}},
		{"an LL(1) list in one line", `root ::= "[" (item ("," item)*)? "]" item ::= "a" | "é" | root`, []string{"[]", "[a,é,[a]]"}, []string{"[", "[a,]", "[b]"}},
		{"escapes", `root ::= "\"\x41\u00e9\U0001F600\n" [\]\-^a-c]+`, []string{"\"Aé😀\n]-^b"}, []string{"\"Aé😀\nd", "\"Aé😀\n"}},
		{"classes", `root ::= [^a-y\n]{2} [à-ü] .`, []string{"zzéx", "ZZü\n"}, []string{"azéx", "zz", "z\néx"}},
		{"repeats", `root ::= "a"{2} "b"{1,} "c"{0,2} "d"{0} ("e"?)+`, []string{"aab", "aabbbcc", "aabee"}, []string{"ab", "aa", "aabccc", "aabd"}},
		{"nothing", `root ::= "" | "x" root`, []string{"", "x", strings.Repeat("x", 500)}, []string{"y"}},
		{"names", `root ::= my-rule_2 | value
my-rule_2 ::= "a"
value ::= "not JSON's"`, []string{"a", "not JSON's"}, []string{"1"}},
	} {
		g, err := Compile(EBNF, c.text, toy(), never)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, s := range c.good {
			if !accepts(g, s) {
				t.Errorf("%s refuses %q", c.name, s)
			}
		}
		for _, s := range c.bad {
			if accepts(g, s) {
				t.Errorf("%s takes %q", c.name, s)
			}
		}
	}
}

// TestGrammarAgreesWithRegexp on a language that both can say.
func TestGrammarAgreesWithRegexp(t *testing.T) {
	g := compile(t, EBNF, `root ::= word (" " word)* mark?
word ::= [a-c]+ | "(" [a-c]{2,3} ")"
mark ::= [.!]`)
	re := regexp.MustCompile(`^(?:[a-c]+|\([a-c]{2,3}\))(?: (?:[a-c]+|\([a-c]{2,3}\)))*[.!]?$`)
	alphabet := "ac( )!"
	var all func(prefix string)
	all = func(prefix string) {
		if accepts(g, prefix) != re.MatchString(prefix) {
			t.Errorf("they differ on %q", prefix)
		}
		if len(prefix) == 5 {
			return
		}
		for _, r := range alphabet {
			all(prefix + string(r))
		}
	}
	all("")
}

func TestWrongGrammarsAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		``:                               `no rule "root"`,
		`start ::= "a"`:                  `no rule "root"`,
		`root = "a"`:                     `comes no ::=`,
		"root ::= \"a\"\nroot ::= \"b\"": `line 2: the rule "root" is defined twice`,
		"root ::= \"a\"\n  other-rule":   `line 2: the rule "other-rule" is not defined`,
		`root ::= "a`:                    `" is missing`,
		`root ::= ["a"`:                  `] is missing`,
		`root ::= [b-a]`:                 `is empty`,
		`root ::= []`:                    `class is empty`,
		`root ::= ("a"`:                  `) is missing`,
		`root ::= "a")`:                  `is not understood`,
		`root ::= "a"{3,1}`:              `the repeat {3,1}`,
		`root ::= "a"{x}`:                `the repeat {x}`,
		`root ::= "a"{200000}`:           `the repeat {200000}`,
		`root ::= "a"{2`:                 `} is missing`,
		`root ::= "\q"`:                  `\q is not known`,
		`root ::= "\ud800"`:              `is no character`,
		`root ::= root "a" | "b"`:        `the rule "root" begins with itself`,
		"root ::= a \"x\"\na ::= b? root\nb ::= \"b\"": `the rule "root" begins with itself`,
		`root ::= ("a"? | "b"*) root? "c"`:             `begins with itself`,
		`root ::= (= "a") "b"`:                         `look-ahead`,
		"?start: a\na: \"b\"":                          `a rule is expected`,
		"root ::= \"\xff\"":                            `not UTF-8`,
		`root ::= ` + strings.Repeat("(", 200) + `"a"` + strings.Repeat(")", 200): `groups inside each other`,
		`root ::= "a"` + strings.Repeat("?", 200):                                 `repeats of one another`,
		`root ::= ` + strings.Repeat(`("a"{0,100} "b"){100} `, 30):                `too large`,
	} {
		_, err := Compile(EBNF, text, toy(), never)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", cutText(text), err, want)
		}
	}
	if _, err := Compile(EBNF, arithmetic, toy(), func() bool { return true }); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("out of time: %v", err)
	}
}

// FuzzGrammar: grammars are written by strangers.
func FuzzGrammar(f *testing.F) {
	for _, s := range []string{arithmetic, `root ::= "a" root | ""`, `root ::= a a ::= b* "x" b ::= [^\n]{2,} | .`, "root ::= (\"\\x41\"+)?{0,3}# end", `root ::= root`} {
		f.Add(s)
	}
	v := toy()
	f.Fuzz(func(t *testing.T, text string) {
		n := 0
		g, err := Compile(EBNF, text, v, func() bool { n++; return n > 200 })
		if err != nil {
			return
		}
		m := g.Start()
		for range 20 { // what masks allow is taken
			mask, _, err := m.Mask()
			if err != nil || !some(mask) {
				return
			}
			id := int32(0)
			for mask[id>>6]>>(id&63)&1 == 0 {
				id++
			}
			if !m.Push(id) {
				t.Fatalf("%q: token %d is allowed and refused", text, id)
			}
		}
	})
}
