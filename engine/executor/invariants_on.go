//go:build invariants

package executor

// verify panics when the core's books do not balance. It is compiled in under
// the build tag invariants only: it walks every request and block.
func (c *Core) verify() {
	if err := c.Check(); err != nil {
		panic("executor: broken invariant: " + err.Error())
	}
}
