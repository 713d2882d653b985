// Package handover tests two engines, ctx and gen, with the real core, driver
// and transfer between them, over a device whose cache decides its tokens: one
// wrong or missing KV byte changes the output.
package handover
