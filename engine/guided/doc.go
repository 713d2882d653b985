// Package guided confines what a model writes to a grammar: a regular expression, a
// list of choices, JSON, JSON of a schema, or the rules of a grammar.
//
// A grammar is compiled to a network of states over bytes that may call each other,
// for JSON nests. What may follow is found from it lazily: a set of places in the
// network, with the calls they return to, is one state of an automaton that is built
// as far as outputs go. Each such state has a mask of the tokens of a vocabulary that
// it takes whole.
//
// Compile bounds time and size; nothing here has a clock, goroutine or I/O.
package guided
