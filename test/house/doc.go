// Package house tests the rules of the house: which package may import which,
// how long files and functions may be, and what must never stand in the tree.
package house
