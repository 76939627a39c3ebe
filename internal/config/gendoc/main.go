// Command gendoc writes docs/reference/configuration.md from the comments and tags of package
// config. Run it at the module's root:
//
//	go run ./internal/config/gendoc         # writes the page
//	go run ./internal/config/gendoc -check  # fails if the page is not current
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
)

const page = "docs/reference/configuration.md"

// sources are the Go files whose structs define the settings.
var sources = []string{"internal/config/config.go", "internal/config/api.go", "internal/signature/scheme.go",
	"internal/signature/key.go", "internal/provider/declared/spec.go", "internal/provider/declared/responses.go",
	"internal/provider/rest/spec.go", "internal/config/schedule.go", "internal/config/reconcile.go",
	"internal/config/destination.go", "internal/config/effects.go", "internal/config/effect_schedule.go",
	"internal/config/effect_summary.go", "internal/config/mail.go", "internal/config/notify.go",
	"internal/config/forward.go"}

func main() {
	check := flag.Bool("check", false, "compare only; exit 1 if the page is not current")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	want, err := render(sources...)
	if err != nil {
		return err
	}
	if !check {
		return os.WriteFile(page, want, 0o644)
	}
	have, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, want) {
		return errors.New(page + " is not current: run go run ./internal/config/gendoc")
	}
	return nil
}
