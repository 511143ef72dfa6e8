package deadletter

import (
	"maps"
	"slices"
)

// KnownHeaders are the keys of all headers that become facts.
func KnownHeaders() []string { return slices.Sorted(maps.Keys(knownHeaders)) }
