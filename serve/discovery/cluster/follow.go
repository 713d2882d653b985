package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"tandem/serve/discovery"
)

// WarnStorage is the code of the warning in /cluster_info while the storage cannot be reached.
const WarnStorage = "W_CLUSTER_STORAGE"

// Source is where registrations are kept, as a frontend reads it.
type Source interface {
	// Follow calls apply with all keys below prefix and their values, first with those that are there and then after
	// changes, until ctx ends. problem is told when the source cannot be reached, and nil when it can again.
	Follow(ctx context.Context, prefix string, apply func(map[string]string), problem func(error))
}

// Members is what registrations become; *discovery.Registry is one.
type Members interface {
	SetMembers(list []discovery.Member)
	SetWarning(code, message string)
}

// Follow turns the registrations of a cluster into members until ctx ends. A malformed one is logged once and skipped.
func Follow(ctx context.Context, src Source, clusterName string, to Members, log *slog.Logger) {
	prefix := Prefix(clusterName)
	skipped := map[string]string{}
	failing := false
	src.Follow(ctx, prefix, func(list map[string]string) {
		members := make([]discovery.Member, 0, len(list))
		for _, key := range slices.Sorted(maps.Keys(list)) {
			m, err := Parse(prefix, key, list[key])
			if err != nil {
				if skipped[key] != list[key] {
					log.Warn("registration skipped", "error", err)
				}
				skipped[key] = list[key]
				continue
			}
			members = append(members, m)
		}
		maps.DeleteFunc(skipped, func(key, _ string) bool { _, ok := list[key]; return !ok })
		to.SetMembers(members)
	}, func(err error) {
		switch {
		case err != nil && !failing:
			log.Warn("the cluster storage cannot be read; the last list of workers holds", "error", err)
			to.SetWarning(WarnStorage, fmt.Sprintf("the last list of workers holds: %v", err))
		case err == nil && failing:
			log.Info("the cluster storage can be read again")
			to.SetWarning(WarnStorage, "")
		}
		failing = err != nil
	})
}
