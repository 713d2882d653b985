// Package conversation finds out which conversation a request belongs to, from its body and headers.
//
// It owns the order of the sources and their limits, and the two views (ctx leg, gen leg) that routing reads. It knows
// neither routers nor workers. Example: a request with "X-Session-ID: s1" and no id in its body resolves to "s1".
package conversation
