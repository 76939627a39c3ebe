package config

import _ "embed" // for the template

//go:embed postern.yaml
var template string

// Template returns the commented configuration that `postern init` writes. It loads once
// STRIPE_WEBHOOK_SECRET is set.
func Template() string { return template }
