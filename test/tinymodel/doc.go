// Package tinymodel holds tiny random models of every supported architecture,
// with the logits that a second implementation computes for them, and checks
// any backend against those. testdata/make.py writes the data.
package tinymodel
