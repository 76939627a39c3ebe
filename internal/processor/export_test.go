package processor

import "context"

// AuditPass returns the auditor of a processor as a function that makes one pass.
func AuditPass(p *Processor) func(context.Context) error {
	return (&auditor{p: p}).pass
}

// ReadBacklog reads what is left to do into the metrics.
func ReadBacklog(ctx context.Context, p *Processor) { p.readBacklog(ctx) }
