package cli

import (
	"os"
	"testing"

	"github.com/recon-dlq/recon-dlq/test/brokers"
)

func TestMain(m *testing.M) { os.Exit(brokers.Main(m)) }
