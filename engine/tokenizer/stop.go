package tokenizer

// MatchOptions configures a Matcher.
type MatchOptions struct {
	// Stop are the stop strings; empty ones are ignored.
	Stop []string
	// IncludeStop shows the stop string that ended the text.
	IncludeStop bool
	// Hidden are the ids that end a generation (EOS and stop ids, unless the
	// request ignores them): their text is never shown. That they end it is for
	// the caller to decide.
	Hidden []int32
	// MinTokens: stop strings and Hidden count from this output token on (1-based).
	MinTokens int
}

// Matcher turns output tokens into text that may be shown and finds stop
// strings, across token borders, in time linear in the text. The stop string
// that is complete first ends the text; of several complete at the same byte the
// longest counts. It is a pure function of the tokens pushed, for one goroutine.
type Matcher struct {
	stream  *Stream
	o       MatchOptions
	stops   []stopString
	held    []byte // text that may be the beginning of a stop string
	tokens  int    // pushed so far
	stopped bool   // a stop string ended the text
	flushed bool   // Flush ended it
}

// stopString is the Knuth-Morris-Pratt matcher of one stop string.
type stopString struct {
	text string
	fail []int32 // fail[i]: longest proper border of text[:i+1]
	at   int     // bytes of text matched at the current place
}

// NewMatcher puts a stop-string matcher behind a stream.
func NewMatcher(stream *Stream, o MatchOptions) *Matcher {
	m := &Matcher{stream: stream, o: o}
	for _, s := range o.Stop {
		if s != "" {
			m.stops = append(m.stops, newStopString(s))
		}
	}
	return m
}

func newStopString(s string) stopString {
	fail := make([]int32, len(s))
	for i, k := 1, int32(0); i < len(s); i++ {
		for k > 0 && s[i] != s[k] {
			k = fail[k-1]
		}
		if s[i] == s[k] {
			k++
		}
		fail[i] = k
	}
	return stopString{text: s, fail: fail}
}

// step consumes one byte and reports whether the string is complete at it.
func (s *stopString) step(b byte) bool {
	if s.at == len(s.text) {
		s.at = int(s.fail[s.at-1])
	}
	for s.at > 0 && s.text[s.at] != b {
		s.at = int(s.fail[s.at-1])
	}
	if s.text[s.at] == b {
		s.at++
	}
	return s.at == len(s.text)
}

// Push takes the next output token. It returns the text that may be shown
// because of it, and whether a stop string is complete: then nothing more
// comes, and the text before the stop (with IncludeStop: through it) is out.
func (m *Matcher) Push(token int32) (text string, stopped bool) {
	if m.stopped || m.flushed {
		return "", m.stopped
	}
	m.tokens++
	if m.counts() {
		for _, id := range m.o.Hidden {
			if id == token {
				return "", false
			}
		}
	}
	return m.feed(m.stream.Push(token))
}

// Flush ends the text and returns what is held back, when the request ends
// without a stop string.
func (m *Matcher) Flush() string {
	if m.stopped || m.flushed {
		return ""
	}
	m.flushed = true
	text, stopped := m.feed(m.stream.Flush())
	if stopped {
		return text
	}
	text += string(m.held)
	m.held = nil
	return text
}

// Stopped reports whether a stop string has ended the text.
func (m *Matcher) Stopped() bool { return m.stopped }

// counts reports whether stop rules hold for the current token.
func (m *Matcher) counts() bool { return m.tokens >= m.o.MinTokens }

func (m *Matcher) feed(text string) (shown string, stopped bool) {
	if len(m.stops) == 0 || text == "" {
		return text, false
	}
	for i := range len(text) {
		longest := m.step(text[i])
		if longest == 0 || !m.counts() {
			continue
		}
		all := string(m.held) + text[:i+1]
		if !m.o.IncludeStop {
			all = all[:len(all)-longest]
		}
		m.stopped, m.held = true, nil
		return all, true
	}
	hold := m.open()
	if len(m.held) == 0 && hold == 0 {
		return text, false
	}
	all := append(m.held, text...)
	shown = string(all[:len(all)-hold])
	m.held = append(all[:0], all[len(all)-hold:]...)
	return shown, false
}

// step feeds one byte to all stop strings and returns the length of the longest
// that is complete, 0 if none is.
func (m *Matcher) step(b byte) int {
	longest := 0
	for i := range m.stops {
		if m.stops[i].step(b) {
			longest = max(longest, len(m.stops[i].text))
		}
	}
	return longest
}

// open returns how many bytes at the end of the text may begin a stop string.
func (m *Matcher) open() int {
	n := 0
	for i := range m.stops {
		s := &m.stops[i]
		at := s.at
		if at == len(s.text) { // complete, but it did not count
			at = int(s.fail[at-1])
		}
		n = max(n, at)
	}
	return n
}
