// Command processor applies stored events to the mirror, newer only, and makes sure that none is forgotten.
package main

import (
	"os"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/terminal"
)

func main() {
	os.Exit(app.Daemon("processor", app.Options{Processor: true, AdminListen: config.DefaultProcessorListen}, os.Args[1:], terminal.Writer(os.Stderr)))
}
