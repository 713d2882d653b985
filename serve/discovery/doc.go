// Package discovery knows which workers exist, what they say of themselves and whether a request may be sent to them.
//
// The table is a pure state machine that takes the time as a value; Registry drives it with a prober. It knows nothing of
// requests or placement: callers report how their connections fared and read lists of instances. Example: after two
// failed probes of gen0, Candidates(Generation) no longer lists it.
package discovery
