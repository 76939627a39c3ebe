package app

import (
	"context"
	"crypto/rand"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/effects/windows"
)

// effectsConnections is how many connections the carrying out of effects may hold, which takes and records in short transactions, and rules on a schedule, which plan in some of a second at most.
const effectsConnections = 5

// addEffects makes what carries out effects, and what asks rules on a schedule; they run with the processor, which plans the others.
func (a *App) addEffects(ctx context.Context, t Tuning) (*runner.Runner, error) {
	pool, err := a.namedPool(ctx, string(a.Config.Database.URL), "postern_processor", "postern_processor_effects", effectsConnections)
	if err != nil {
		return nil, err
	}
	metrics, err := runner.NewMetrics(a.metrics)
	if err != nil {
		return nil, err
	}
	late, err := windows.NewMetrics(a.metrics)
	if err != nil {
		return nil, err
	}
	carrier := runner.New(runner.Options{Pool: pool, Metrics: metrics, ID: processID() + "/" + rand.Text(), Settings: t.Effects, Logger: a.Logger.With("component", "effects")})
	a.windows = windows.New(windows.Options{Pool: pool, Settings: t.Windows, Logger: a.Logger.With("component", "effects"), Metrics: late, Planned: carrier.Wake})
	return carrier, nil
}

// replaceEffects makes a configuration's rules and destinations those in use: destinations first, so that what is planned can be carried out.
func (a *App) replaceEffects(cfg *config.Config) {
	rules := effects.NewRules(cfg.Rules())
	a.effects.Replace(rules, cfg.Reaches())
	a.processor.ReplaceRules(rules)
	a.windows.Replace(rules)
	for _, warning := range cfg.EffectWarnings() {
		a.Logger.Warn(warning)
	}
}
