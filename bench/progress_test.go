package main

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressTellsTheTimeLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		p := newProgress(&out)
		log := slog.New(p)
		log.Info("build", "programs", 7)
		p.left(10 * time.Minute)
		<-time.After(65 * time.Second)
		log.Warn("not all was taken", "p99", 1.23456)
		log.Debug("nobody waits for this")
		<-time.After(time.Hour) // later than was thought
		log.Info("done")
		want := " 0:00  build  programs 7\n 1:05 ( 8:55 left)  WARN not all was taken  p99 1.23\n61:05  done\n"
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", out.String(), want)
		}
	})
}
