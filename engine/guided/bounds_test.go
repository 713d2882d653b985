package guided

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// TestHostileTextsCostLittle: what strangers send is refused, or compiled, before it
// takes the memory of the machine.
func TestHostileTextsCostLittle(t *testing.T) {
	var props []string
	for i := range 2000 {
		props = append(props, fmt.Sprintf(`"p%d":{"type":"boolean"}`, i))
	}
	v := toy()
	for _, c := range []struct {
		name string
		kind Kind
		text string
		want string // of the error; empty: it compiles
	}{
		{"large classes", Regex, strings.Repeat(`\pL`, 1000), "too large"},
		{"many properties", Schema, `{"type":"object","properties":{` + strings.Join(props, ",") + `}}`, ""},
		{"deep nests", Schema, strings.Repeat(`{"type":"array","items":`, 9000) + `{}` + strings.Repeat("}", 9000), "too long"},
		{"copies of empty ways", Schema, `{"type":"array","maxItems":30000,"items":{"type":"string","pattern":"^(` + strings.Repeat("a{0}|", 10000) + `b)$"}}`, "too large"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		asked := 0
		_, err := Compile(c.kind, c.text, v, func() bool { asked++; return asked > 500 && c.want == "too long" })
		runtime.ReadMemStats(&after)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 400 {
			t.Errorf("%s: %d MB were allocated", c.name, took)
		}
	}
}

// TestAsManyChoicesAsTheLimit: and as many numbers in a range.
func TestAsManyChoicesAsTheLimit(t *testing.T) {
	var list []string
	for i := range maxChoices {
		list = append(list, fmt.Sprintf(`"c%d"`, i))
	}
	if g := compile(t, Choice, "["+strings.Join(list, ",")+"]"); !accepts(g, "c4095") || accepts(g, "c4096") {
		t.Error("not the choices")
	}
	if g := compile(t, Schema, `{"type":"integer","minimum":1,"maximum":4096}`); !accepts(g, "4096") || accepts(g, "4097") {
		t.Error("not the range")
	}
}

// TestOneMaskIsBounded: the other requests of a batch wait for it.
func TestOneMaskIsBounded(t *testing.T) {
	g := compile(t, Regex, `(.*a.{300}|.*b.{300}|.*c.{300})x`)
	m := g.Start()
	for i := range 400 {
		var err error
		if i%100 == 99 {
			_, _, err = m.Mask()
		}
		if g.work > maxWork+maxPlaces*10 {
			t.Fatalf("mask %d followed %d places", i, g.work)
		}
		if errors.Is(err, errComplex) {
			return
		}
		if err != nil || !m.Push(int32("abc"[i%3])) {
			t.Fatalf("token %d: %v", i, err)
		}
	}
	t.Error("the grammar is never too complex")
}

// TestOnePushIsBounded: a resumed output is pushed without any mask. Where the grammar
// is too complex it is that, and not the token, that is wrong.
func TestOnePushIsBounded(t *testing.T) {
	m := compile(t, Regex, `(.*a.{900}|.*b.{900}|.*c.{900})x`).Start()
	for i := 0; m.err == nil; i++ {
		if i == 900 {
			t.Fatal("the grammar is never too complex")
		}
		if !m.Push(int32("abc"[i%3])) || m.g.work > maxWork+2*maxPlaces {
			t.Fatalf("token %d, which followed %d places", i, m.g.work)
		}
	}
	if _, _, err := m.Mask(); !errors.Is(err, errComplex) || !m.Push('a') {
		t.Errorf("then: %v", err)
	}
}

// TestWhatIsKeptIsBounded: states hold each other, so all of them have to be let go.
func TestWhatIsKeptIsBounded(t *testing.T) {
	g := compile(t, Regex, `(a|b)*a(a|b){12}`)
	m := g.Start()
	for i := range 40_000 {
		if !m.Push(int32('a' + i*i/7%2)) {
			t.Fatal("refused")
		}
		if i%64 == 0 {
			g.bytes += maxBytes // as if there were more states
		}
	}
	seen, todo := map[*state]bool{}, []*state{g.start, m.at} // an output under way holds states too
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, n := range s.next {
			if n != nil && !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	if len(seen) > len(g.states)+1 {
		t.Errorf("%d states can be reached, %d are kept", len(seen), len(g.states))
	}
	if _, end, err := m.Mask(); err != nil || !accepts(g, "ab"+strings.Repeat("a", 11)) {
		t.Errorf("after all was forgotten: %v %v", end, err)
	}
}

// TestDeadIsNeverWritten: all grammars share it.
func TestDeadIsNeverWritten(t *testing.T) {
	m := compile(t, Choice, `["ab"]`).Start()
	for _, id := range []int32{'x', 257, 'a'} {
		m.Push(id)
	}
	if mask, end, err := m.Mask(); some(mask) || end || err != nil {
		t.Errorf("%v %v %v", mask, end, err)
	}
	if dead.next != [256]*state{} || dead.mask != nil {
		t.Error("the dead state was changed")
	}
}

func TestAnchorsOfAlternatives(t *testing.T) {
	g := compile(t, Schema, `{"type":"string","pattern":"^a$|^bc$"}`)
	for text, want := range map[string]bool{`"a"`: true, `"bc"`: true, `"ax"`: false, `"xbc"`: false, `"abc"`: false} {
		if accepts(g, text) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
	if g := compile(t, Schema, `{"type":"object","properties":{"a<b":true},"required":["a<b"]}`); !accepts(g, `{"a<b":1}`) {
		t.Error("a name is written as HTML")
	}
}
