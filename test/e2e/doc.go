// Package e2e drives whole processes from outside, as users do: workers and
// frontends are started from their binaries, spoken to over HTTP, killed, and
// searched for leaks. The tests have the build tag e2e and run under make test-e2e.
package e2e
