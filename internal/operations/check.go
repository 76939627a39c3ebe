package operations

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-playground/validator/v10"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// choices are the parameters with a fixed set of values, by their validate tag.
var choices = map[string][]string{
	"outcome_status": textsOf(outcomeStatuses...),
	"event_status":   append([]string{"pending"}, textsOf(outcomeStatuses...)...),
	"retry_status":   textsOf(versioning.Failed, versioning.Dead),
	"origin":         {events.OriginWebhook, events.OriginReconcile, events.OriginImport},
	"rejection_reason": textsOf(provider.MissingSignature, provider.MalformedSignature, provider.WrongSignature,
		provider.StaleTimestamp, provider.FutureTimestamp, provider.MissingHeader, provider.ForbiddenAccount),
	"effect_state": textsOf(effects.AwaitingApproval, effects.Planned, effects.Running, effects.Failed, effects.Review,
		effects.Done, effects.Rejected, effects.Expired, effects.Superseded),
	"job": {replay.Job, replay.RetryJob, rebuild.Job, retention.Job, redaction.Job, reconcile.Job},
	"run_status": textsOf(runs.AwaitingApproval, runs.Queued, runs.Running, runs.Paused, runs.Done, runs.Failed,
		runs.Cancelled),
	"replay_mode":       textsOf(replay.State, replay.Missing, replay.Force),
	"time_order":        {ByApplication, ByOccurrence},
	"difference_kind":   {"missing", "mirror_older", "content_differs", "orphan"},
	"difference_result": {"repaired", "unrepaired"},
	"activity_step":     {activity.Minute, activity.Hour},
}

var outcomeStatuses = []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale,
	versioning.Ambiguous, versioning.Ignored, versioning.Failed, versioning.Dead}

func textsOf[T ~string](values ...T) (all []string) {
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// limit is the range of a parameter that is a number.
type limit struct {
	min, max int
	// fallback is the number where none is given; 0: there is none.
	fallback int
	// message is the error for a number outside the range.
	message string
}

// limits are the parameters that are a number in a range, by their validate tag.
var limits = map[string]limit{
	"page_size": {1, events.MaxLimit, events.DefaultLimit, fmt.Sprintf("give 1 to %d", events.MaxLimit)},
	"rate":      {1, 1000000, 0, "give a number of events per second, at least 1"},
}

var validate = newValidator()

func newValidator() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		return name
	})
	for tag, values := range choices {
		v.RegisterAlias(tag, "oneof="+strings.Join(values, " "))
	}
	for tag, limit := range limits {
		v.RegisterAlias(tag, fmt.Sprintf("min=%d,max=%d", limit.min, limit.max))
	}
	return v
}

// check returns the first error in the parameters of an operation. Errors: events.ErrInvalid.
func check(params any) error {
	err := validate.Struct(params)
	var fields validator.ValidationErrors
	if !errors.As(err, &fields) {
		return err
	}
	f := fields[0]
	if limit, ok := limits[f.Tag()]; ok {
		return invalid("%s %q: %s", f.Field(), fmt.Sprint(f.Value()), limit.message)
	}
	known := choices[f.Tag()]
	return invalid("%s %q is not a valid value; use one of %s", f.Field(), fmt.Sprint(f.Value()),
		strings.Join(known, ", "))
}
