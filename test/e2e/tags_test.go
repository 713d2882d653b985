//go:build e2e && !cuda

package e2e

// buildTags are those of the binaries under test.
const buildTags = ""
