package tokenizer

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// Below the length at which the norm package deviates, the plain algorithm must
// agree with it.
func TestPlainNormalFormsEqualLibrary(t *testing.T) {
	alphabet := []rune("ae oAkö가각ᄀ\u1161\u11a8\u0301\u0316\u0323\u0327\u0344\u0308\u212b\u2126\u0958\u093c\u0915ﬁ①\u1e9b\u0f71\u0f72\u3099か\U0001d15e")
	for name, f := range map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD} {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			s := string(rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 12).Draw(t, "s"))
			runes := decompose(s, f)
			if f == norm.NFC || f == norm.NFKC {
				runes = compose(runes)
			}
			if got, want := string(runes), f.String(s); got != want {
				t.Fatalf("%+q becomes %+q, want %+q", s, got, want)
			}
		}))
	}
}

func TestLongMarkRunsGetNoJoiner(t *testing.T) {
	s := "a" + strings.Repeat("\u0301", 50)
	got, err := form(norm.NFC)(s)
	if want := "á" + strings.Repeat("\u0301", 49); err != nil || got != want {
		t.Errorf("got %+q, %v", got, err)
	}
}
