// Package router places legs on instances: round robin, by load, by conversation.
//
// Routers are state machines under one lock: no I/O, no clock, no randomness. They learn who may be chosen with each
// request, through Request.Candidates, so that an instance that vanished meanwhile cannot be picked. They know nothing
// of HTTP. Example: r.Select(Request{Candidates: list}) returns an instance and a Reservation, which the caller releases
// exactly once when the leg ended.
package router
