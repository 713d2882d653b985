package kvcache

// Priorities is how many retention priorities there are, from 0 on.
const Priorities = maxPriority + 1

// Buckets sets how many reusable blocks each retention priority has. Blocks of
// lower ones are given up first.
func (m *Manager) Buckets(by *[Priorities]int) {
	copy(by[:], m.lists.size[:Priorities])
}
