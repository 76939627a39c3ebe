package main

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgress_estimateGiven_showsRemainingTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := newProgress(&out)
		log := slog.New(p)
		log.Info("build", "programs", 7)
		p.setRemaining(10 * time.Minute)
		<-time.After(65 * time.Second)
		log.Warn("not all was taken", "p99", 1.23456)
		log.Debug("debug messages are hidden")
		<-time.After(time.Hour) // past the estimate
		log.Info("done")
		want := " 0:00  build  programs 7\n 1:05 ( 8:55 left)  WARN not all was taken  p99 1.23\n61:05  done\n"
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", out.String(), want)
		}
	})
}
