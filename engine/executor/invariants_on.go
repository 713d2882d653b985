//go:build invariants

package executor

// checked tells whether the books are checked at every call of Effects.
const checked = true

// verify panics when the core's books do not balance. It is compiled in under
// the build tag invariants only: it walks every request and block.
func (c *Core) verify() {
	if err := c.Check(); err != nil {
		panic("executor: broken invariant: " + err.Error())
	}
}
