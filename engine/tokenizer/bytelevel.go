package tokenizer

// Byte-level vocabularies spell each byte as one printable character: printable
// Latin-1 stands for itself, the other 68 bytes for U+0100 and up in order.

var byteToRune, runeToByte = func() ([256]rune, map[rune]byte) {
	var to [256]rune
	from := make(map[rune]byte, 256)
	spare := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae && r <= 0xff) {
			r = spare
			spare++
		}
		to[b] = r
		from[r] = byte(b)
	}
	return to, from
}()

// byteLevelBytes returns the bytes a byte-level spelling stands for; ok is false
// if a character stands for no byte (as in many added tokens).
func byteLevelBytes(spelling string) (string, bool) {
	out := make([]byte, 0, len(spelling))
	for _, r := range spelling {
		b, ok := runeToByte[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}
