package ingest_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// What a proven service of the user's own is refused is told each time, and why; what is not proven, once in a while.
func TestDirectRefusalsAreToldEachTime(t *testing.T) {
	t.Parallel()
	log, tune := logging(slog.LevelInfo)
	b := setup(t, tune)
	b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t)
	release := b.hold(t)
	under := b.send(t, t.Context(), "api", pushed(event("2", "2"), ofOne))
	b.blocked(t, 1)
	long := strings.Repeat("k", 3000)
	for range 2 {
		b.post(t, "api", pushed(event("2", "2"), ofOne)).refused(t, 409, "in-flight")
	}
	release()
	(<-under).receipt(t)
	for range 2 {
		b.post(t, "api", pushed("["+event("new", "1")+","+event("1", "0")+"]", ofMany)).refused(t, 422, "key-reused")
		b.post(t, "api", pushed(`{}`, ofJSON)).refused(t, 400, "invalid")
		b.post(t, "api", pushed(`a=1`, "Content-Type: text/"+long, "Idempotency-Key: a")).refused(t, 415, "invalid")
		b.post(t, "api", pushed(`{}`, ofJSON, "Authorization: Bearer wrong")).refused(t, 401, "unauthenticated")
	}
	lines := map[string]int{}
	for _, l := range log.take(t, "delivery") {
		detail := fmt.Sprint(l["detail"])
		if len(detail) > 1000 {
			t.Errorf("%d bytes of detail", len(detail))
		}
		lines[fmt.Sprintf("%v %v %v %.30s", l["result"], l["status"], l["event_id"], detail)]++
	}
	for want, n := range map[string]int{
		"in_flight 409 /s 2 A delivery with this key is be":  2,
		"conflict 422 /s new Stored before with other conte": 2,
		"invalid 400 <nil> the header Idempotency-Key is ":   2,
		"rejected 401 <nil> <nil>":                           1,
		"accepted 200 /s 1 <nil>":                            1,
		"accepted 200 /s 2 <nil>":                            1,
	} {
		if lines[want] != n {
			t.Errorf("%s: %d lines, want %d", want, lines[want], n)
		}
		delete(lines, want)
	}
	for l, n := range lines {
		if !strings.HasPrefix(l, "invalid 415 <nil> ") || n != 2 {
			t.Errorf("and besides %d: %s", n, l)
		}
	}
	if len(lines) != 1 {
		t.Errorf("what is no JSON is told in %d ways", len(lines))
	}
}
