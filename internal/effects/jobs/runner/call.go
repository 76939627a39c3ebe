package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

const (
	// maxExcerpt bounds the excerpt of an unsuccessful response that is stored.
	maxExcerpt = 500
	// maxRetryAfter bounds how long a destination can delay an effect.
	maxRetryAfter = 24 * time.Hour
)

// response is the result of a request.
type response struct {
	status int
	header http.Header
	body   []byte
	// complete reports that all of the body was read.
	complete bool
	err      error
	// notSent reports that no part of the request was sent.
	notSent bool
}

// errLeaseTooShort means that the process was stalled, and the call could outlast its lease.
// Another process may then have leased the effect.
var errLeaseTooShort = errors.New("the process was stalled")

// perform executes a call and returns its result.
func (d *destination) perform(ctx context.Context, c *call) *result {
	err := d.limit.Wait(ctx) // fails if the process ends
	if err == nil && time.Since(c.leasedAt)+c.step.Timeout > d.lease {
		err = errLeaseTooShort
	}
	if err != nil {
		return c.notSent("not sent: " + err.Error())
	}
	if c.step.Do.Mail != nil && !c.check {
		return d.sendMail(ctx, c)
	}
	a := d.send(ctx, c)
	d.breaker.report(a.err == nil && a.status < 500)
	if a.err == nil && a.status == http.StatusTooManyRequests {
		wait := max(retryAfter(a.header, time.Now()), c.step.Retry.FirstWait)
		d.breaker.pauseFor(wait)
		return c.notCounted(fmt.Sprintf("status %d: %s", a.status, excerpt(a.body)), wait)
	}
	if c.check {
		return d.readCheck(c, a)
	}
	switch {
	case errors.Is(a.err, errAddressNotAllowed):
		end := c.stepResult(effects.StepFailed, 0, d.maskSecrets(a.err.Error()))
		end.state, end.reason = effects.Review, "step "+c.step.Name+": "+end.message
		return end
	case a.err != nil && a.notSent:
		return c.retry(effects.StepFailed, 0, d.maskSecrets(a.err.Error()), 0, rand.Float64())
	case a.err != nil:
		return c.retry(effects.Unknown, 0, "no response: "+d.maskSecrets(a.err.Error()), 0, rand.Float64())
	case c.succeeded(a.status):
		captured, missing := c.capture(a, "")
		return c.done(a.status, captured, missing)
	}
	return d.readFailure(c, a)
}

func (c *call) succeeded(status int) bool {
	if c.undo { // an object that does not exist any more counts as compensated
		return status >= 200 && status <= 299 || status == http.StatusNotFound || status == http.StatusGone
	}
	return c.step.Succeeds(status)
}

// readFailure reads an unsuccessful response. Most 4xx statuses mean that the step was not
// executed, and a repetition would not help. After any other status, and after 4xx statuses about
// timing, the outcome is unknown.
func (d *destination) readFailure(c *call, a response) *result {
	message := fmt.Sprintf("status %d: %s", a.status, excerpt(a.body))
	state := effects.Unknown
	switch {
	case a.status >= 500, a.status == http.StatusRequestTimeout, a.status == http.StatusConflict,
		a.status == http.StatusTooEarly:
		return c.retry(state, a.status, message, retryAfter(a.header, time.Now()), rand.Float64())
	case slices.Contains(c.step.Retry.OnStatuses, a.status):
		return c.retry(effects.StepFailed, a.status, message, retryAfter(a.header, time.Now()), rand.Float64())
	case a.status >= 400:
		state = effects.StepFailed
	case a.status >= 300:
		message = fmt.Sprintf("status %d redirects to %q, which Postern does not follow", a.status,
			d.maskSecrets(a.header.Get("Location")))
	}
	end := c.stepResult(state, a.status, message)
	end.state, end.reason = effects.Review, "step "+c.step.Name+": "+message
	return end
}

// stateBeforeCheck returns the state of a step that the destination is asked about. It keeps this
// state as long as the destination gives no conclusive response.
func (c *call) stateBeforeCheck() effects.StepState {
	if c.first {
		return effects.Checking
	}
	return effects.Unknown
}

// notExecutedBefore returns the result of a check before the first attempt that found nothing. The
// first attempt follows.
func (c *call) notExecutedBefore(status int) *result {
	end := c.stepResult(effects.StepFailed, status, "the destination did not have it before the first attempt")
	end.state, end.reason, end.attempts, end.newRound, end.notFoundBefore = effects.Planned, "", 0, true, true
	return end
}

// readCheck reads the response to the check of a step with an unknown outcome, or of a step before
// its first attempt.
func (d *destination) readCheck(c *call, a response) *result {
	if a.err != nil {
		return c.retry(c.stateBeforeCheck(), 0, "check whether it was executed: "+d.maskSecrets(a.err.Error()), 0,
			rand.Float64())
	}
	message := fmt.Sprintf("check whether it was executed: status %d: %s", a.status, excerpt(a.body))
	if !a.isConclusive() {
		return c.retry(c.stateBeforeCheck(), a.status, message, retryAfter(a.header, time.Now()), rand.Float64())
	}
	c.data.Response = rules.Response{Status: a.status, Body: decodeJSON(a.body)}
	done, err := c.step.Check.Done.EvalBool(c.data)
	switch {
	case err != nil:
		return c.review(d.maskSecrets(fmt.Sprintf("step %s, check: %v, response %d: %s", c.step.Name, err, a.status,
			excerpt(a.body))))
	case done && !a.is2xx(): // only a 2xx may confirm it
		return c.retry(c.stateBeforeCheck(), a.status, message+"; the response says that it was executed, but "+
			"only a 2xx counts", 0, rand.Float64())
	case done:
		captured, missing := c.capture(a, c.step.Check.CapturePath)
		end := c.done(a.status, captured, missing)
		if c.first {
			end.stepReason = foundBefore
		}
		return end
	case c.first:
		return c.notExecutedBefore(a.status)
	case c.neverRepeat:
		return c.needsDecision(c.step, c.undo, fmt.Sprintf("at %s, the destination did not know the step (status "+
			"%d). It may be executed later, and it must not be repeated", c.databaseTime.UTC().Format(time.RFC3339),
			a.status))
	}
	end := c.retry(effects.StepFailed, a.status, "the destination says that it was not executed", 0, 0)
	if end.state == effects.Failed {
		end.delay = 0
	}
	return end
}

// isConclusive reports whether a response can tell if a step was executed. It has to be complete,
// with a status of an API that knows the object or says that it does not exist.
func (a *response) isConclusive() bool {
	return a.complete && (a.is2xx() || a.status == http.StatusNotFound || a.status == http.StatusGone)
}

func (a *response) is2xx() bool { return a.status >= 200 && a.status <= 299 }

// capture returns the values to capture from a response, below a path of it. If one is missing, an
// operator has to act, since the step is done.
func (c *call) capture(a response, below string) (captured map[string]any, missing string) {
	captured = map[string]any{}
	if c.step.Do.Mail != nil {
		captured[rules.CapturedMessageID] = c.messageID(c.step)
		return captured, ""
	}
	if len(c.step.Capture) == 0 || c.undo {
		return captured, ""
	}
	root := decodeJSON(a.body)
	notFound := a.status == http.StatusNotFound || a.status == http.StatusGone
	if notFound && c.step.NullIfMissing {
		root = map[string]any{} // the values of an error message are not those of the step
	}
	body := root
	if below != "" {
		body, _ = rules.Lookup(body, below)
	}
	for name, path := range c.step.Capture {
		v, ok := rules.Lookup(body, path)
		ok = ok || c.step.NullIfMissing && root != nil // a page of HTML does not say that there is none
		if !ok || !a.complete {
			missing = fmt.Sprintf("step %s is done, and its response has no %s to capture; add it with `postern "+
				"effects resolve`", c.step.Name, path)
			continue
		}
		captured[name] = removeNUL(v)
	}
	return captured, missing
}

// removeNUL removes NUL from a captured value, because the ledger cannot store it.
func removeNUL(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "")
	case []any:
		for i := range v {
			v[i] = removeNUL(v[i])
		}
	case map[string]any:
		for name, of := range v {
			delete(v, name)
			v[strings.ReplaceAll(name, "\x00", "")] = removeNUL(of)
		}
	}
	return v
}

// decodeJSON returns a body as JSON; nil if it is not JSON.
func decodeJSON(body []byte) any {
	wrapped, err := rules.Decode(fmt.Appendf(nil, `{"v":%s}`, body))
	if err != nil {
		return nil
	}
	return wrapped["v"]
}
