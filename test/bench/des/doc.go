// Package des runs whole clusters in virtual time: frontends, ctx and gen
// instances of thousands of ranks, the network between them and their clients.
// Everything that decides is the code of production: the lockstep of ranks with
// its queue and router, the executor with scheduler and block manager, the words
// of a hand-over, the routers of the frontend. Modelled are only the devices, by
// the coefficients of a profile, the network and the clients.
//
// A run is a pure function of its Config: one goroutine, no clock, and every
// random number from the seed.
package des
