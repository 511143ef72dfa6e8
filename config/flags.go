package config

import "github.com/spf13/pflag"

// flagKeys says which key of the configuration a flag sets.
var flagKeys = map[string]string{
	"brokers":        "kafka.brokers",
	"group":          "kafka.group",
	"instance":       "kafka.instance",
	"metrics-listen": "metrics.listen",
}

// flagFirstStart is a decision for one start, so it is a flag only: in a file
// it would switch the check off for good.
const flagFirstStart = "first-start"

// ClientFlags defines the flags of commands that only need to reach Kafka.
func ClientFlags(fs *pflag.FlagSet) {
	fs.StringSlice("brokers", nil, "Kafka brokers, host:port, comma-separated (kafka.brokers)")
}

// Flags defines the flags of commands that run the worker or show its
// configuration. Only flags that were given on the command line have an effect.
func Flags(fs *pflag.FlagSet) {
	ClientFlags(fs)
	fs.String("group", "", "consumer group, also the prefix of transactional ids (kafka.group)")
	fs.String("instance", "", "name of this worker that outlives restarts (kafka.instance)")
	fs.String("metrics-listen", "", "address of /metrics, /healthz and /readyz (metrics.listen)")
	fs.Bool(flagFirstStart, false, "start although the group has no progress: what is in the source is handled again")
}
