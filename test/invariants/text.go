package invariants

import (
	"fmt"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

func kindName(k deadletter.Kind) string {
	switch k {
	case deadletter.Source:
		return "a source topic"
	case deadletter.Tier:
		return "a tier"
	case deadletter.Hold:
		return "a hold topic"
	default:
		return "poison"
	}
}

func span(from, to int) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d to %d", from, to)
}
