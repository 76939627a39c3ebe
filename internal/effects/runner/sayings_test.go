package runner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A line of a topic is said at once, and what comes within a minute of it is counted: it is said with what comes next, or by itself once the minute is over, and nothing of it twice.
func TestTheLogSaysTheSameOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s sayings
		said := func(l *tally) string {
			if l == nil {
				return "nothing"
			}
			return fmt.Sprint(l.effects, l.first, l.rules)
		}
		sink, other, gone := topic{text: "x", of: "destination", name: "sink"}, topic{text: "x", of: "destination", name: "other"}, topic{text: "y", of: "rule", name: "r", waits: true}
		next := int64(0)
		adds := func(t *testing.T, to topic, n int, rule, want string) {
			t.Helper()
			var all []*ending
			for range n {
				next++
				all = append(all, &ending{effect: next, rule: rule})
			}
			if got := said(s.add(to, all)); got != want {
				t.Errorf("said %s, want %s", got, want)
			}
		}
		rests := func(t *testing.T, end bool, to topic, want string) {
			t.Helper()
			rest := s.rest(end)
			if got := said(rest[to]); got != want || len(rest) > 1 {
				t.Errorf("said %s of %v, want %s", got, rest, want)
			}
		}
		adds(t, sink, 2, "a", "2 [1 2] [a]")
		adds(t, sink, 7, "a", "nothing")
		adds(t, sink, 1, "b", "nothing")
		adds(t, other, 1, "a", "1 [11] [a]")
		adds(t, gone, 1, "r", "1 [12] [r]")
		rests(t, false, sink, "nothing")
		<-time.After(sayEvery - 1)
		adds(t, sink, 1, "b", "nothing")
		<-time.After(1)
		rests(t, false, sink, "9 [3 4 5 6 7] [a b]")
		rests(t, false, sink, "nothing")
		adds(t, sink, 1, "a", "nothing")
		<-time.After(sayEvery)
		adds(t, sink, 1, "a", "2 [14 15] [a]")
		<-time.After(sayEvery)
		rests(t, false, sink, "nothing")
		if len(s.all) != 0 {
			t.Errorf("keeps %v", s.all)
		}
		adds(t, gone, 1, "r", "1 [16] [r]")
		adds(t, sink, 1, "a", "1 [17] [a]")
		s.anew()
		adds(t, gone, 1, "r", "1 [18] [r]")
		adds(t, sink, 2, "a", "nothing")
		rests(t, true, sink, "2 [19 20] [a]")
	})
}
