// Command frontend measures what a proxy in front of workers costs: time to the
// first token against the same worker without it, requests for each second of
// processor time, and memory for each open stream. The workers are stubs in a
// process of their own, so that only the proxies differ. It runs Tandem's
// frontend in both of its ways, one leg (a mixed worker) and two (ctx and gen),
// and sglang-router and litellm beside it where they are installed.
package main
