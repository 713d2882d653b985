package config

import (
	"errors"
	"fmt"

	"tandem/serve/disagg"
)

// Guard says who may send how much.
type Guard struct {
	APIKeys       []APIKey `mapstructure:"api_keys"`              // empty = everybody
	IsolateCaches bool     `mapstructure:"isolate_tenant_caches"` // no key's prompts find blocks of another's
	MaxQueued     int      `mapstructure:"max_queued_requests"`   // wait for a place of max_inflight_requests
	QueueTimeout  float64  `mapstructure:"queue_timeout_sec"`     // how long they wait
	BodyMemoryMB  int      `mapstructure:"max_body_memory_mb"`    // of request bodies held at once, 0 = unlimited
}

// APIKey is one client, or a group of them.
type APIKey struct {
	Name   string   `mapstructure:"name"`
	Key    string   `mapstructure:"key"`    // literal, env:NAME or file:PATH
	Weight *float64 `mapstructure:"weight"` // nil = 1
}

func defaultGuard() Guard {
	return Guard{
		QueueTimeout: disagg.DefaultConfig().QueueTimeout.Seconds(), BodyMemoryMB: int(disagg.DefaultConfig().MaxBodyMemory >> 20),
	}
}

// validate checks what can be checked before the keys are read.
func (g Guard) validate() error {
	if g.BodyMemoryMB < 0 || g.BodyMemoryMB > 1<<20 {
		return fmt.Errorf("max_body_memory_mb: %d is outside 0..%d", g.BodyMemoryMB, 1<<20)
	}
	if g.IsolateCaches && len(g.APIKeys) == 0 {
		return errors.New("isolate_tenant_caches: has no effect without api_keys, whose holders it sets apart")
	}
	for i, k := range g.APIKeys {
		switch {
		case k.Name == "":
			return fmt.Errorf("api_keys[%d].name: is missing", i)
		case k.Key == "":
			return fmt.Errorf("api_keys[%d].key: is missing; give a text of at least 16 bytes, env:NAME or file:PATH", i)
		}
	}
	return nil
}

// apply fills in the part of the server's configuration and reads the keys.
func (g Guard) apply(c *disagg.Config) error {
	c.IsolateCaches = g.IsolateCaches
	for i, k := range g.APIKeys {
		key, err := Secret(fmt.Sprintf("api_keys[%d].key", i), k.Key)
		if err != nil {
			return err // names the key
		}
		weight := 1.0
		if k.Weight != nil {
			weight = *k.Weight
		}
		c.APIKeys = append(c.APIKeys, disagg.APIKey{Name: k.Name, Key: key, Weight: weight})
	}
	return nil
}
