package operations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// follow is a database with a follower.
type follow struct {
	*operations.Follower
	db   *testkit.DB
	shop int32
}

func newFollow(t *testing.T) *follow {
	t.Helper()
	db, sources := withSources(t)
	f := &follow{&operations.Follower{Pool: db.Role(t, "operator"), Logger: testkit.Logger(t),
		Interval: 20 * time.Millisecond}, db, sources["shop"]}
	t.Cleanup(f.Close)
	return f
}

// append appends an event for each of these keys, and returns the last id.
func (f *follow) append(t *testing.T, keys ...string) (last int64) {
	t.Helper()
	for _, key := range keys {
		last = f.appendDelivery(t, key)
	}
	return last
}

// appendDelivery appends a delivery with several events, whose ids have no known order.
func (f *follow) appendDelivery(t *testing.T, keys ...string) int64 {
	t.Helper()
	all := make([]provider.Event, len(keys))
	for i, key := range keys {
		all[i] = provider.Event{Key: key, Type: "order." + key[:1], ObjectType: "order", ObjectID: key}
	}
	return store(t, f.db, f.shop, `{}`, all...)
}

// watch subscribes and waits until the follower delivers.
func (f *follow) watch(t *testing.T, p operations.TailParams) (batches <-chan operations.TailBatch, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	batches, err := f.Subscribe(ctx, p)
	testkit.Must(t, err)
	return batches, cancel
}

// watchLive subscribes to all events, and returns once the follower delivers new events.
func (f *follow) watchLive(t *testing.T) <-chan operations.TailBatch {
	t.Helper()
	batches, _ := f.watch(t, operations.TailParams{})
	for i := 0; ; i++ {
		id := f.append(t, fmt.Sprint("w", i))
		for last := int64(0); last < id; {
			select {
			case batch := <-batches:
				if last = batch.Last; last == id {
					return batches
				}
			case <-time.After(100 * time.Millisecond):
				last = id // it was not followed yet, so try another
			}
		}
	}
}

// keys reads batches until it has the last key, and returns all keys.
func keys(t *testing.T, batches <-chan operations.TailBatch, last string) string {
	t.Helper()
	var got []string
	for !slices.Contains(got, last) {
		batch, ok := receive(t, batches)
		if !ok {
			t.Fatalf("ended after %q", got)
		}
		for _, e := range batch.Items {
			got = append(got, e.EventID)
		}
	}
	return strings.Join(got, " ")
}

func receive(t *testing.T, batches <-chan operations.TailBatch) (operations.TailBatch, bool) {
	t.Helper()
	select {
	case batch, ok := <-batches:
		return batch, ok
	case <-time.After(time.Minute):
		t.Fatal("no batch")
		return operations.TailBatch{}, false
	}
}

func TestFollower_filters_selectEvents(t *testing.T) {
	t.Parallel()
	f := newFollow(t)
	first := f.append(t, "z1")
	filter := func(pairs ...string) operations.TailParams {
		p := operations.TailParams{After: first}
		testkit.Must(t, operations.Parse(&p, paramsOf(pairs...)))
		return p
	}
	f.append(t, "a1", "a2", "z2") // stored: selected in SQL
	for _, c := range []struct {
		p    operations.TailParams
		want string
	}{
		{filter(), "a1 a2 z2 a3 b3 z3"},
		{filter("type", "order.*"), "a1 a2 z2 a3 b3 z3"},
		{filter("type", "order.z"), "z2 z3"},
		{filter("type", "*.z", "source", "shop", "account", "", "origin", "webhook", "status", "pending"), "z2 z3"},
		{filter("object_type", "order", "object_id", "z3"), "z3"},
		{filter("key", "z3"), "z3"},
	} {
		batches, _ := f.watch(t, c.p)
		if c.want[:2] != "z3" {
			c.want = strings.TrimPrefix(c.want, keys(t, batches, "z2")+" ")
		}
		t.Run(fmt.Sprint(operations.Texts(c.p)), func(t *testing.T) {
			t.Parallel()
			if got := keys(t, batches, "z3"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	none, end := f.watch(t, filter("type", "invoice.*"))
	f.append(t, "a3", "b3", "z3") // new: selected in Go
	last, _ := f.watch(t, filter())
	keys(t, last, "z3")
	end()
	if batch, ok := receive(t, none); ok {
		t.Errorf("another type: %+v", batch)
	}
	for _, p := range []operations.TailParams{filter("source", "none"), filter("origin", "x")} {
		if _, err := f.Subscribe(t.Context(), p); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("%v: %v", operations.Texts(p), err)
		}
	}
}

// An event whose commit is late comes before those with greater ids, and a watcher that continues
// after any id gets the rest, each once.
func TestFollower_lateCommit_losesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	f := newFollow(t)
	first := f.append(t, "z0")
	batches, _ := f.watch(t, operations.TailParams{After: first})
	late := testkit.OpenTx(t, f.db.Pool, `INSERT INTO events SELECT (jsonb_populate_record(e, jsonb_build_object('id',
		((extract(epoch FROM clock_now()) * 1000)::bigint + 1) << 20, 'event_id', 'late'))).* FROM events e
		WHERE id = $1`, first)
	f.append(t, "a1", "a2")
	testkit.Must(t, late.Commit(t.Context()))
	f.append(t, "z1")
	page, err := events.List(t.Context(), f.db.Pool, events.Filter{AfterID: first}, "", 0)
	testkit.Must(t, err)
	var all []string
	for _, e := range slices.Backward(page.Items) {
		all = append(all, e.EventID)
	}
	last := all[len(all)-1]
	if got := keys(t, batches, last); len(all) != 4 || got != strings.Join(all, " ") {
		t.Errorf("got %q, want %q", got, all)
	}
	for i, e := range page.Items[1:] {
		again, end := f.watch(t, operations.TailParams{After: e.ID})
		if got := keys(t, again, last); got != strings.Join(all[len(all)-1-i:], " ") {
			t.Errorf("after %s: %q of %q", e.EventID, got, all)
		}
		end()
	}
}

func TestFollower_manyEvents_areCounted(t *testing.T) {
	t.Parallel()
	f := newFollow(t)
	f.MaxRows = 3
	batches := f.watchLive(t)
	other, _ := f.watch(t, operations.TailParams{EventFilter: operations.EventFilter{
		EventSelection: operations.EventSelection{Type: "order.z"}}})
	last := f.appendDelivery(t, "a1", "a2", "a3", "a4", "a5")
	batch, _ := receive(t, batches)
	if len(batch.Items) != 3 || batch.More != 2 || batch.Last < last-10 {
		t.Errorf("%+v", batch)
	}
	f.append(t, "z2")
	if got := keys(t, other, "z2"); got != "z2" {
		t.Errorf("a watcher of another type got %q", got)
	}
}

func TestFollower_watchers_endWithCauses(t *testing.T) {
	t.Parallel()
	f := newFollow(t)
	first := f.append(t, "z0")
	var ends []func()
	var all []<-chan operations.TailBatch
	slow := f.watchLive(t) // it reads no stored events first
	for range 49 {
		batches, end := f.watch(t, operations.TailParams{After: first})
		all, ends = append(all, batches), append(ends, end)
	}
	if _, err := f.Subscribe(t.Context(), operations.TailParams{}); !errors.Is(err, operations.ErrTooManyWatchers) {
		t.Errorf("51 watchers: %v", err)
	}
	ends[0]()
	if _, ok := receive(t, all[0]); ok {
		t.Error("a watcher whose context ended got a batch")
	}
	testkit.Eventually(t, time.Minute, func() error {
		_, err := f.Subscribe(t.Context(), operations.TailParams{})
		return err
	})
	// A watcher that does not read is ended. It loses nothing, because it continues after its last
	// id.
	for i, fast := 0, all[1]; i < 40; i++ {
		key := fmt.Sprint("a", i)
		f.append(t, key)
		keys(t, fast, key)
	}
	n := 0
	for batch, ok := receive(t, slow); ok; batch, ok = receive(t, slow) {
		n += len(batch.Items)
	}
	if n == 0 || n > 20 {
		t.Errorf("a watcher that did not read got %d events", n)
	}
	f.Close()
	for _, batches := range all[1:] {
		for ok := true; ok; {
			_, ok = receive(t, batches)
		}
	}
	if _, err := f.Subscribe(t.Context(), operations.TailParams{}); !errors.Is(err, operations.ErrFollowerClosed) {
		t.Errorf("a closed follower: %v", err)
	}
}

// A watcher that still reads stored events ends with the follower, also if its events are not read.
func TestFollower_closedWhileEventsAreRead_ends(t *testing.T) {
	t.Parallel()
	f := newFollow(t)
	f.append(t, "a1", "a2")
	for _, p := range []operations.TailParams{{}, {After: 1}} {
		follower := &operations.Follower{Pool: f.Pool, Interval: time.Hour}
		batches, err := follower.Subscribe(t.Context(), p)
		testkit.Must(t, err)
		follower.Close()
		testkit.Eventually(t, time.Minute, func() error {
			if n := operations.Watchers(follower); n != 0 {
				return fmt.Errorf("%d watchers", n)
			}
			return nil
		})
		if _, open := <-batches; open {
			t.Error("an event of a closed follower")
		}
	}
}
