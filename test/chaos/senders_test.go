package main

import (
	"testing"
	"testing/synctest"
	"time"
)

// A fault is charged with the longest silence that some of it falls into, and with no other.
func TestSilenceOfAFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began := newSilence(), time.Now()
		for _, pause := range []time.Duration{3 * time.Second, 10 * time.Millisecond, time.Second} { // heard after 3 s, 3.01 s and 4.01 s
			time.Sleep(pause)
			s.heard()
		}
		during := func(from, to time.Duration) span { return span{began.Add(from), began.Add(to)} }
		for _, tc := range []struct {
			during span
			want   time.Duration
		}{
			{during(0, time.Second), 3 * time.Second},
			{during(2*time.Second, 4*time.Second), 3 * time.Second},
			{during(3005*time.Millisecond, 4*time.Second), time.Second},
			{during(3001*time.Millisecond, 3009*time.Millisecond), 0}, // too short to be one
			{during(5*time.Second, 6*time.Second), 0},
		} {
			if got := s.longest(tc.during); got != tc.want {
				t.Errorf("from %s to %s: %s, want %s", tc.during.from.Sub(began), tc.during.to.Sub(began), got, tc.want)
			}
		}
	})
}
