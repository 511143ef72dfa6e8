package worker

import (
	"os"
	"runtime/debug"
)

// What the process takes beside the records it holds, in bytes: code, stacks,
// connections, and garbage that is not yet collected.
const memoryBeside = 56 << 20

// TuneMemory sets the garbage collector of the whole process by the budget for
// records, limits.max_inflight_bytes: it runs less often than Go's default has it,
// which would be a fifth of the worker's CPU, but often enough that the process
// stays near the budget and 56 MiB. A GOGC or GOMEMLIMIT of the environment stands.
// It is for programs that are a worker; one that embeds a worker decides itself.
func TuneMemory(maxInflightBytes int64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(300)
	debug.SetMemoryLimit(maxInflightBytes + memoryBeside)
}
