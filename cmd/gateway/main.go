// Command gateway takes webhooks in: it proves the sender, makes each event durable once, answers, and publishes.
package main

import (
	"os"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/terminal"
)

func main() {
	os.Exit(app.Daemon("gateway", app.Options{Gateway: true, AdminListen: config.DefaultAdminListen}, os.Args[1:], terminal.Writer(os.Stderr)))
}
