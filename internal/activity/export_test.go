package activity

import "context"

// ReportCounts reports the counts of a process once.
func ReportCounts(ctx context.Context, r *Reporter) error {
	if r.reported == nil {
		r.reported, r.reportedSecrets = map[string]Counts{}, map[sourceSecret]int64{}
	}
	return r.reportCounts(ctx)
}

// SecretsSQL reads the use of secrets.
const SecretsSQL = secretsSQL

// ReadSQL are the statements that read points.
var ReadSQL = []string{minutesSQL, minutesBySourceSQL, hoursSQL, hoursBySourceSQL}

// ReportTypes reports the event types of a process once.
func ReportTypes(ctx context.Context, r *Reporter) error { return r.reportTypes(ctx) }
