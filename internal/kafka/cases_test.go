package kafka_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/internal/kafka"
	"github.com/recon-dlq/recon-dlq/test/brokers"
)

// A retry topic modelled as a table of keys: the second record of a key
// replaces the first. The worker refuses to start on one. Hold topics are not
// looked at: nothing is written to them yet.
func TestC052_ACompactedTopicIsRefusedAtTheStart(t *testing.T) {
	l := layout()
	cl := applied(t, brokers.NewKfake(t), l)
	for _, topic := range []string{l.Sources[0], tier(l, 10*time.Second), tier(l, time.Hour), l.Poison, l.Audit} {
		for _, cleanup := range []string{"compact", "compact,delete"} {
			set(t, cl, topic, "cleanup.policy", cleanup)
			_, err := kafka.Verify(t.Context(), cl, l)
			fault, ok := errors.AsType[*kafka.SettingError](err)
			if !ok || fault.Topic != topic || fault.Key != "cleanup.policy" || fault.Have != cleanup {
				t.Errorf("%s with %s: Verify says %v", topic, cleanup, err)
				continue
			}
			if !strings.Contains(err.Error(), "recon-dlq topics apply") {
				t.Errorf("the error does not name the fix: %v", err)
			}
		}
		set(t, cl, topic, "cleanup.policy", "delete")
	}
	if _, err := kafka.Verify(t.Context(), cl, l); err != nil {
		t.Errorf("Verify says %v of topics that are mended", err)
	}
}
