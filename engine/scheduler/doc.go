// Package scheduler decides what one iteration runs: which requests, with how
// many tokens each, who is admitted and who must give its blocks back. One rule
// serves prefill and decode alike: a request has known tokens and computed ones,
// and a step lets it catch up.
//
// Decisions depend on the queues, the limits and the block counts only: no
// clock, no map order, no randomness. The scheduler moves requests between its
// queues and grants blocks; states and everything a client sees are the
// executor's.
package scheduler
