// Command processor applies stored events to the mirror of the provider's objects. An older state
// never overwrites a newer one. It also publishes lost events again.
package main

import (
	"os"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/terminal"
)

func main() {
	os.Exit(app.Daemon("processor", app.Options{Processor: true, AdminListen: config.DefaultProcessorListen},
		os.Args[1:], terminal.Writer(os.Stderr)))
}
