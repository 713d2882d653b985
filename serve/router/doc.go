// Package router places legs on instances: round robin, by load, by conversation, by what they can reuse, or by all of these.
//
// Routers are state machines under one lock: no I/O, no clock, no randomness. They learn who may be chosen with each
// request, through Request.Candidates, so that an instance that vanished meanwhile cannot be picked. What instances can
// reuse comes to a Listener as events. Routers know nothing of HTTP. Example: r.Select(Request{Candidates: list}) returns an instance and a Reservation, which the caller releases
// exactly once when the leg ended.
package router
