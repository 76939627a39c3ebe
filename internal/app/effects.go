package app

import (
	"context"
	"crypto/rand"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
)

// maxEffectsConns limits the connections for effects: the runner uses short transactions, and rules
// on a schedule plan within a second.
const maxEffectsConns = 5

// addEffects adds the runner of effects and the planner of rules on a schedule. They run with the
// processor, which plans the other effects.
func (a *App) addEffects(ctx context.Context, t Tuning) (*runner.Runner, error) {
	pool, err := a.namedPool(ctx, string(a.Config.Database.URL), "postern_processor", "postern_processor_effects",
		maxEffectsConns)
	if err != nil {
		return nil, err
	}
	metrics, err := runner.NewMetrics(a.metrics)
	if err != nil {
		return nil, err
	}
	windowMetrics, err := windows.NewMetrics(a.metrics)
	if err != nil {
		return nil, err
	}
	effectRunner := runner.New(runner.Options{Pool: pool, Metrics: metrics, ID: processID() + "/" + rand.Text(),
		Settings: t.Effects, Logger: a.Logger.With("component", "effects")})
	a.windows = windows.New(windows.Options{Pool: pool, Settings: t.Windows,
		Logger: a.Logger.With("component", "effects"), Metrics: windowMetrics, NotifyDestinations: effectRunner.Wake})
	return effectRunner, nil
}

// replaceEffects replaces rules and destinations. Destinations come first, so that every planned
// effect can be executed.
func (a *App) replaceEffects(cfg *config.Config) {
	rules := effects.NewRules(cfg.Rules())
	a.effects.Replace(rules, cfg.ResolveDestinations())
	a.processor.ReplaceRules(rules)
	a.windows.Replace(rules)
	for _, warning := range cfg.EffectWarnings() {
		a.Logger.Warn(warning)
	}
}
