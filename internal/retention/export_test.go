package retention

// AtStep has a runner tell of each step before it is taken; an error ends it there.
func (r *Runner) AtStep(step func(name string) error) { r.step = step }

// Ask is what Daily does once in a while.
var Ask = ask
