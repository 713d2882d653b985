package guided

// Names of the rules that all JSON grammars share.
const (
	ruleChar   = "char"   // a character of a string
	ruleString = "string" // with its quotes
	ruleNumber = "number"
	ruleWS     = "ws"
	ruleValue  = "value"
	ruleObject = "object"
	ruleArray  = "array"
)

// basics are the rules of JSON. White space is bounded, and so are the digits of
// numbers: a model that repeats itself must come to an end.
func basics(name string) *expr {
	ws := ref(ruleWS)
	switch name {
	case ruleWS:
		return opt(alt(lit(" "), seq(lit("\n"), rep(lit(" "), 0, 16))))
	case ruleChar:
		hex := alt(bytesIn('0', '9'), bytesIn('a', 'f'), bytesIn('A', 'F'))
		escape := seq(lit(`\`), alt(oneOf(`"\/bfnrt`), seq(lit("u"), hex, hex, hex, hex)))
		return alt(runes(' ', '!', '#', '[', ']', 0x10FFFF), escape)
	case ruleString:
		return seq(lit(`"`), rep(ref(ruleChar), 0, -1), lit(`"`))
	case ruleNumber:
		return seq(opt(lit("-")), whole(), opt(seq(lit("."), rep(bytesIn('0', '9'), 1, 17))), opt(seq(oneOf("eE"), opt(oneOf("+-")), rep(bytesIn('0', '9'), 1, 3))))
	case ruleValue:
		return alt(ref(ruleObject), ref(ruleArray), ref(ruleString), ref(ruleNumber), lit("true"), lit("false"), lit("null"))
	case ruleObject:
		return mapOf(ref(ruleValue), 0, -1)
	case ruleArray:
		return seq(lit("["), ws, list(ref(ruleValue), 0, -1), lit("]"))
	}
	return nil
}

// whole is a whole number of at least 0.
func whole() *expr {
	return alt(lit("0"), seq(bytesIn('1', '9'), rep(bytesIn('0', '9'), 0, 15)))
}

// comma is what stands between two members.
func comma() *expr { return seq(ref(ruleWS), lit(","), ref(ruleWS)) }

// list is lo to hi items with commas between them; hi -1 = any number.
func list(item *expr, lo, hi int) *expr {
	if hi == 0 {
		return seq()
	}
	more := -1
	if hi > 0 {
		more = hi - 1
	}
	some := seq(item, rep(seq(comma(), item), max(lo-1, 0), more), ref(ruleWS))
	if lo == 0 {
		return opt(some)
	}
	return some
}

// mapOf is an object with any keys.
func mapOf(value *expr, lo, hi int) *expr {
	return seq(lit("{"), ref(ruleWS), list(seq(ref(ruleString), lit(":"), ref(ruleWS), value), lo, hi), lit("}"))
}
