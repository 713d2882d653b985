// Package kvcache keeps the books of one pool of KV blocks: which blocks are
// free, used or reusable, which content each holds, and what to give up first.
// It never touches K or V itself and has no clock, goroutine or I/O.
//
// A block has at most one content hash and a hash at most one block. A block
// that nobody references but that has a hash stays reusable until the room is
// needed; within a priority the one released longest ago goes first. Tables are
// released from the tail, so a chain always loses its leaves before its root.
package kvcache
