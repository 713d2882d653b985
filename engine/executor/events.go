package executor

import "tandem/engine/kvcache"

// CacheEvent is one change of the index of reusable blocks.
type CacheEvent = kvcache.Event

// CacheEvents keeps a core's last changes for readers on other goroutines.
type CacheEvents = kvcache.Events

// CacheEventKind says what a CacheEvent tells.
type CacheEventKind = kvcache.EventKind

// The kinds of a CacheEvent.
const (
	CacheCreated = kvcache.Created
	CacheStored  = kvcache.Stored
	CacheRemoved = kvcache.Removed
	CacheUpdated = kvcache.Updated
	CacheCleared = kvcache.Cleared
)

// CacheEvents returns the record of the core's index, nil without Config.EventBuffer.
func (c *Core) CacheEvents() *CacheEvents { return c.kv.Events() }

// CacheSnapshot returns the index as events, and lets the record begin.
func (c *Core) CacheSnapshot() []CacheEvent { return c.kv.Snapshot() }
