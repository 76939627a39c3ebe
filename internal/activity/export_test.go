package activity

import "context"

// ReportCounts reports the counts of a process once.
func ReportCounts(ctx context.Context, r *Reporter) error {
	if r.reported == nil {
		r.reported = map[string]Counts{}
	}
	return r.reportCounts(ctx)
}

// ReadSQL are the statements that read points.
var ReadSQL = []string{minutesSQL, minutesBySourceSQL, hoursSQL, hoursBySourceSQL}

// ReportTypes reports the event types of a process once.
func ReportTypes(ctx context.Context, r *Reporter) error { return r.reportTypes(ctx) }
