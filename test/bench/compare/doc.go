// Package compare says how far two servers differ that were given the same
// requests in turns, and how sure that is. Each turn (slice) gives one pair of
// values for each metric; the pairs, not the single requests, are what the
// statistics count, since requests of one slice share the machine's mood.
package compare
