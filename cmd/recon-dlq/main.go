// Command recon-dlq makes sure that no reconciliation discrepancy is forgotten.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/recon-dlq/recon-dlq/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly stop. From then on signals have
	// their default effect again: a second one kills at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
