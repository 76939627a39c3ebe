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
	// maxTrouble bounds what is kept of an answer that was no success.
	maxTrouble = 500
	// maxRetryAfter bounds how long another side can make an effect wait.
	maxRetryAfter = 24 * time.Hour
)

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
	body   []byte
	// whole: all of the body was read.
	whole bool
	err   error
	// unsent: nothing of the request was sent.
	unsent bool
}

// errLate: the process stood still for so long that another one may have taken the effect.
var errLate = errors.New("the process stood still")

// make makes a call and says what came of it.
func (d *destination) make(ctx context.Context, c *call) *ending {
	err := d.limit.Wait(ctx) // which fails where the process ends
	if err == nil && time.Since(c.at)+c.step.Timeout > d.lease {
		err = errLate
	}
	if err != nil {
		return c.unsent("not sent: " + err.Error())
	}
	if c.step.Do.Mail != nil && !c.check {
		return d.mail(ctx, c)
	}
	a := d.send(ctx, c)
	d.breaker.tell(a.err == nil && a.status < 500)
	if a.err == nil && a.status == http.StatusTooManyRequests {
		wait := max(retryAfter(a.header, time.Now()), c.step.Retry.First)
		d.breaker.rest(wait)
		return c.spared(fmt.Sprintf("status %d: %s", a.status, excerpt(a.body)), wait)
	}
	if c.check {
		return d.checked(c, a)
	}
	switch {
	case errors.Is(a.err, errGuarded):
		end := c.stepped(effects.StepFailed, 0, d.clean(a.err.Error()))
		end.state, end.reason = effects.Review, "step "+c.step.Name+": "+end.trouble
		return end
	case a.err != nil && a.unsent:
		return c.again(effects.StepFailed, 0, d.clean(a.err.Error()), 0, rand.Float64())
	case a.err != nil:
		return c.again(effects.Unknown, 0, "no answer: "+d.clean(a.err.Error()), 0, rand.Float64())
	case c.succeeded(a.status):
		captured, missing := c.capture(a, "")
		return c.done(a.status, captured, missing)
	}
	return d.failed(c, a)
}

func (c *call) succeeded(status int) bool {
	if c.undo { // what is gone already is undone
		return status >= 200 && status <= 299 || status == http.StatusNotFound || status == http.StatusGone
	}
	return c.step.Succeeds(status)
}

// failed reads an answer that is no success. One of 4xx means that the step was not done, and by itself will not be; after any other, and after those of 4xx that tell of time, nobody knows.
func (d *destination) failed(c *call, a answer) *ending {
	trouble := fmt.Sprintf("status %d: %s", a.status, excerpt(a.body))
	is := effects.Unknown
	switch {
	case a.status >= 500, a.status == http.StatusRequestTimeout, a.status == http.StatusConflict, a.status == http.StatusTooEarly:
		return c.again(is, a.status, trouble, retryAfter(a.header, time.Now()), rand.Float64())
	case slices.Contains(c.step.Retry.On, a.status):
		return c.again(effects.StepFailed, a.status, trouble, retryAfter(a.header, time.Now()), rand.Float64())
	case a.status >= 400:
		is = effects.StepFailed
	case a.status >= 300:
		trouble = fmt.Sprintf("status %d leads to %q, where nobody follows", a.status, d.clean(a.header.Get("Location")))
	}
	end := c.stepped(is, a.status, trouble)
	end.state, end.reason = effects.Review, "step "+c.step.Name+": "+trouble
	return end
}

// checked reads what the other side says of a step in doubt.
func (d *destination) checked(c *call, a answer) *ending {
	if a.err != nil {
		return c.again(effects.Unknown, 0, "asked whether it was done: "+d.clean(a.err.Error()), 0, rand.Float64())
	}
	untold := fmt.Sprintf("asked whether it was done: status %d: %s", a.status, excerpt(a.body))
	if !a.tells() {
		return c.again(effects.Unknown, a.status, untold, retryAfter(a.header, time.Now()), rand.Float64())
	}
	c.facts.Answer = rules.Answer{Status: a.status, Body: decoded(a.body)}
	done, err := c.step.Check.Done.Holds(c.facts)
	switch {
	case err != nil:
		return c.review(d.clean(fmt.Sprintf("step %s, check: %v, answer %d: %s", c.step.Name, err, a.status, excerpt(a.body))))
	case done && !a.succeeds(): // nobody says yes so
		return c.again(effects.Unknown, a.status, untold+"; it says yes, which is believed of 2xx alone", 0, rand.Float64())
	case done:
		captured, missing := c.capture(a, c.step.Check.Found)
		return c.done(a.status, captured, missing)
	case c.once:
		return c.doubt(c.step, c.undo, fmt.Sprintf("asked at %s, the other side did not know of it (status %d), it may be done later, and it must not be repeated", c.now.UTC().Format(time.RFC3339), a.status))
	}
	end := c.again(effects.StepFailed, a.status, "the other side says that it was not done", 0, 0)
	if end.state == effects.Failed {
		end.wait = 0
	}
	return end
}

// tells says whether an answer can be believed that says whether a step was done: one that is whole, and of somebody who may say so.
func (a *answer) tells() bool {
	return a.whole && (a.succeeds() || a.status == http.StatusNotFound || a.status == http.StatusGone)
}

func (a *answer) succeeds() bool { return a.status >= 200 && a.status <= 299 }

// capture reads what is to be kept of an answer, below a path of it. What is missing a person must see, since the step is done.
func (c *call) capture(a answer, below string) (captured map[string]any, missing string) {
	captured = map[string]any{}
	if c.step.Do.Mail != nil {
		captured[rules.CapturedID] = c.messageID(c.step)
		return captured, ""
	}
	if len(c.step.Capture) == 0 || c.undo {
		return captured, ""
	}
	body := decoded(a.body)
	if below != "" {
		body, _ = rules.Find(body, below)
	}
	for name, path := range c.step.Capture {
		v, ok := rules.Find(body, path)
		if !ok || !a.whole {
			missing = fmt.Sprintf("step %s is done, and its answer has no %s to capture; give it with `postern effects resolve`", c.step.Name, path)
			continue
		}
		captured[name] = storable(v)
	}
	return captured, missing
}

// storable takes NUL out of a captured value, which the ledger cannot hold.
func storable(v any) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, "\x00", "")
	case []any:
		for i := range v {
			v[i] = storable(v[i])
		}
	case map[string]any:
		for name, of := range v {
			delete(v, name)
			v[strings.ReplaceAll(name, "\x00", "")] = storable(of)
		}
	}
	return v
}

// decoded is a body as JSON; nil where it is none.
func decoded(body []byte) any {
	wrapped, err := rules.Decode(fmt.Appendf(nil, `{"v":%s}`, body))
	if err != nil {
		return nil
	}
	return wrapped["v"]
}
