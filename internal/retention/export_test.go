package retention

// OnStep makes a runner call a function before each step. An error ends the run there.
func (r *Runner) OnStep(step func(name string) error) { r.onStep = step }

// RequestOnce does what RequestDaily does at each interval.
var RequestOnce = requestRun
