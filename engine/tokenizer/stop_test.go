package tokenizer

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The contract that the engine core has for the text of a request.
var _ interface {
	Push(token int32) (text string, stopped bool)
	Flush() string
} = (*Matcher)(nil)

// firstStop is the obvious search: the stop that is complete first, of several
// complete at one byte the longest.
func firstStop(text string, stops []string) (from, to int) {
	for to := 1; to <= len(text); to++ {
		from := -1
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:to], s) && (from < 0 || to-len(s) < from) {
				from = to - len(s)
			}
		}
		if from >= 0 {
			return from, to
		}
	}
	return -1, -1
}

func TestMatcherEqualsNaiveSearch(t *testing.T) {
	tok := byteTokenizer(t)
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.SampledFrom([]int32{'a', 'a', 'b', 'b', 256, 257, 0xc3, 0xa9, '\n'})
		ids := rapid.SliceOfN(alphabet, 0, 40).Draw(t, "ids")
		stops := rapid.SliceOfN(rapid.StringMatching("[ab]{1,4}|[ab]{3}|[abhi\n]{1,5}|é|\uFFFD|aé|aaaaab"), 0, 5).Draw(t, "stops")
		include := rapid.Bool().Draw(t, "include")
		m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: stops, IncludeStop: include})
		var shown strings.Builder
		stopped := false
		for _, id := range ids {
			text, stop := m.Push(id)
			shown.WriteString(text)
			if stopped = stop; stop {
				break
			}
		}
		if !stopped {
			shown.WriteString(m.Flush())
			stopped = m.Stopped()
		}
		if late, _ := m.Push('a'); late != "" || m.Flush() != "" {
			t.Fatal("text after the end")
		}
		text := tok.Decode(ids, true)
		want := text
		from, to := firstStop(text, stops)
		if from >= 0 {
			want = text[:from]
			if include {
				want = text[:to]
			}
		}
		if shown.String() != want || stopped != (from >= 0) {
			t.Fatalf("shown %q, stopped %v, want %q of %q", shown.String(), stopped, want, text)
		}
	})
}

func TestMatcherSingleStopEqualsIndex(t *testing.T) {
	tok := byteTokenizer(t)
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("[ab]{0,30}").Draw(t, "text")
		stop := rapid.StringMatching("[ab]{1,4}").Draw(t, "stop")
		m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: []string{stop}})
		var shown string
		for i := range len(text) {
			s, _ := m.Push(int32(text[i]))
			shown += s
		}
		shown += m.Flush()
		want, _, found := strings.Cut(text, stop)
		if shown != want || m.Stopped() != found {
			t.Fatalf("shown %q, want %q", shown, want)
		}
	})
}

func TestMatcherPrefersTheLongestAtOnePlace(t *testing.T) {
	tok := byteTokenizer(t)
	for name, c := range map[string]struct {
		stops []string
		want  string
	}{
		"long first":     {[]string{"cab", "ab", "b"}, "x"},
		"short first":    {[]string{"b", "ab", "cab"}, "x"},
		"inner is first": {[]string{"cabd", "a"}, "xc"},
		"empty ignored":  {[]string{"", "b"}, "xca"},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: c.stops})
			shown := ""
			for _, b := range []byte("xcabdy") {
				s, _ := m.Push(int32(b))
				shown += s
			}
			if shown += m.Flush(); shown != c.want || !m.Stopped() {
				t.Errorf("shown %q, want %q", shown, c.want)
			}
		})
	}
}

// Nothing is shown late: what cannot begin a stop string comes at once.
func TestMatcherHoldsOnlyWhatMayBeginAStop(t *testing.T) {
	tok := byteTokenizer(t)
	m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: []string{"END", "\n\n"}})
	var parts []string
	for _, b := range []byte("xE\nyENx\n\nz") {
		s, stopped := m.Push(int32(b))
		parts = append(parts, s)
		if stopped {
			break
		}
	}
	if got := strings.Join(parts, "|"); got != "x||E|\ny|||ENx||" {
		t.Errorf("parts %q", got)
	}
}

func TestMatcherHidesEndTokens(t *testing.T) {
	tok := byteTokenizer(t)
	m := NewMatcher(tok.NewStream(nil, false), MatchOptions{Hidden: []int32{257, 'q'}})
	shown := ""
	for _, id := range []int32{'a', 256, 257, 'q'} {
		s, stopped := m.Push(id)
		if stopped {
			t.Fatal("an end token is not a stop string")
		}
		shown += s
	}
	if shown += m.Flush(); shown != "ahi" {
		t.Errorf("shown %q", shown)
	}
}

func TestMatcherMinTokens(t *testing.T) {
	tok := byteTokenizer(t)
	for name, c := range map[string]struct {
		min  int
		want string
		stop bool
	}{
		"from the first":  {0, "", true},
		"second counts":   {2, "", true},
		"first too early": {3, "abc", true},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: []string{"ab"}, Hidden: []int32{'q'}, MinTokens: c.min})
			shown, stopped := "", false
			for _, b := range []byte("abcab") {
				var s string
				s, stopped = m.Push(int32(b))
				if shown += s; stopped {
					break
				}
			}
			if shown != c.want || stopped != c.stop {
				t.Errorf("shown %q, stopped %v, want %q, %v", shown, stopped, c.want, c.stop)
			}
		})
	}
	m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Hidden: []int32{'q'}, MinTokens: 2})
	first, _ := m.Push('q')
	second, _ := m.Push('q')
	if first != "q" || second != "" {
		t.Errorf("hidden ids show %q, %q, want them only before MinTokens", first, second)
	}
}

func BenchmarkMatcherPush(b *testing.B) {
	tok := byteTokenizer(b)
	m := NewMatcher(tok.NewStream(nil, true), MatchOptions{Stop: []string{"\n\nHuman:", "</s>", "END"}})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Push(int32('a' + i%20))
	}
}
