// Command gateway receives webhooks. It verifies the sender, stores each event once, responds after
// the commit, and publishes the event.
package main

import (
	"os"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/terminal"
)

func main() {
	os.Exit(app.Daemon("gateway", app.Options{Gateway: true, AdminListen: config.DefaultAdminListen}, os.Args[1:],
		terminal.Writer(os.Stderr)))
}
