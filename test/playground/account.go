package main

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// account is a fake of a provider's API together with the source that gets its webhooks. Its
// objects are of one type. It is for one goroutine at a time.
type account struct {
	*fakeapi.Base
	add     func() (id string)
	change  func(id string, silently bool)
	remove  func(id string) // silently
	deliver func(send func(*provider.Delivery) bool) int

	source, objectType string
	// endpoint is where webhooks are sent.
	endpoint string
	// objects are the ids of the living objects; the one that changed last is the last.
	objects []string
	// loseEvery is 3 where every third webhook is lost, and 0 where none is. sent counts since it
	// was set.
	loseEvery, sent int
	// lost are the objects whose webhooks were lost by the present command, failed is why one was
	// not accepted.
	lost   []string
	failed error
}

// newStripe starts a fake Stripe account whose clock is an hour late until it is filled.
func newStripe(o fakeapi.Owner) *account {
	f := stripefake.New(o, stripefake.Options{Start: time.Now().Add(-time.Hour), Running: true})
	changes := 0
	return &account{Base: &f.Base, deliver: f.Deliver, objectType: "customer",
		add: func() string { return f.Create("", "customer", nil) },
		change: func(id string, silently bool) {
			changes++
			set := f.Set
			if silently {
				set = f.SetWithoutEvent
			}
			set("", id, map[string]any{"description": fmt.Sprint("change ", changes)})
		},
		remove: func(id string) { f.DeleteWithoutEvent("", id) },
	}
}

// newShop starts a fake Shopify shop whose clock is an hour late until it is filled.
func newShop(o fakeapi.Owner) *account {
	f := shopifyfake.New(o, shopifyfake.Options{Start: time.Now().Add(-time.Hour), Running: true})
	return &account{Base: &f.Base, deliver: f.Deliver, objectType: "product",
		add:    func() string { return f.Create("product") },
		change: func(id string, silently bool) { f.Change("product", id, silently) },
		remove: func(id string) { f.Delete("product", id, true) },
	}
}

// fill creates objects one hour ago, so that lists, which may be a minute old, already show them.
func (a *account) fill(n int) error {
	for range n {
		a.create()
	}
	a.Advance(time.Since(a.Now()))
	a.deliverDue("")
	return a.failed
}

func (a *account) create() string {
	id := a.add()
	a.objects = append(a.objects, id)
	return id
}

// oldest takes the object that changed longest ago out of objects. A list may show a state of a
// minute ago, so that a reconciliation leaves alone an object that was read or changed since.
func (a *account) oldest() (id string) {
	id, a.objects = a.objects[0], a.objects[1:]
	return id
}

func (a *account) changeOldest(silently bool) string {
	id := a.oldest()
	a.change(id, silently)
	a.objects = append(a.objects, id)
	return id
}

// deliverDue sends the webhooks that are due. One that is lost counts as delivered at the provider,
// as where a proxy answers in the endpoint's place.
func (a *account) deliverDue(id string) {
	a.deliver(func(d *provider.Delivery) bool {
		a.sent++
		if a.loseEvery > 0 && a.sent%a.loseEvery == 0 {
			a.lost = append(a.lost, id)
			return true
		}
		_, err := post(a.endpoint, d.Header, bytes.NewReader(d.Body))
		if err != nil {
			a.failed = fmt.Errorf("send a webhook of %s: %w", a.source, err)
		}
		return err == nil
	})
}

// maxNumber limits the work of a command, which Ctrl-C of the playground waits for.
const maxNumber = 1000

// do executes a command and says what it did.
func (a *account) do(command, value string) (string, error) {
	a.lost, a.failed = nil, nil
	if command == "delay-lists" {
		by, err := time.ParseDuration(value)
		if err != nil || by < 0 {
			return "", fmt.Errorf("delay-lists %s: want a time, such as 3s", value)
		}
		a.Delay(func(r *http.Request) bool { return r.URL.Query().Has("limit") }, by)
		return fmt.Sprintf("%s delays its responses to list requests by %s from now on", a.source, by), nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxNumber {
		return "", fmt.Errorf("%s %s: want a number from 0 to %d", command, value, maxNumber)
	}
	switch command {
	case "lose-every":
		if a.loseEvery, a.sent = n, 0; n == 0 {
			return a.source + " loses no webhook from now on", nil
		}
		if n == 1 {
			return a.source + " loses every webhook from now on", nil
		}
		return fmt.Sprintf("%s loses the last of each %d webhooks from now on", a.source, n), nil
	case "answer-429":
		a.ScriptFaults(slices.Repeat([]fakeapi.Fault{fakeapi.RateLimited}, n)...)
		return fmt.Sprintf("%s answers the next %d API requests with 429", a.source, n), nil
	case "create":
		return a.each("created", n, a.create)
	case "change":
		return a.each("changed", n, func() string { return a.changeOldest(false) })
	case "change-silently":
		return a.each("changed silently", n, func() string { return a.changeOldest(true) })
	case "delete-silently":
		return a.each("deleted silently", n, func() string {
			id := a.oldest()
			a.remove(id)
			return id
		})
	}
	return "", fmt.Errorf("there is no command %q\n\n%s", command, usage())
}

// each changes n objects, one after the other, and sends the webhooks that tell of it.
func (a *account) each(done string, n int, one func() (id string)) (string, error) {
	if living := len(a.objects); n > living && done != "created" {
		return "", fmt.Errorf("%s has %d objects of type %s, fewer than %d", a.source, living, a.objectType, n)
	}
	said := fmt.Sprintf("%s %s %d objects of type %s:", a.source, done, n, a.objectType)
	for range n {
		id := one()
		said += "\n  " + id
		a.deliverDue(id)
	}
	if len(a.lost) > 0 {
		said += "\nlost webhooks of:\n  " + strings.Join(a.lost, "\n  ")
	}
	return said, a.failed
}
