// Command bench measures Postern beside references on one machine: see docs/benchmarks.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"time"

	"github.com/postern-gateway/postern/bench/machine"
	"github.com/postern-gateway/postern/bench/suite"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	dir := flag.String("dir", "", "folder for everything that is stored; a new one below the system's for temporary files if empty")
	conns := flag.Int("c", 64, "connections")
	rate := flag.Float64("rate", 0, "")
	rounds := flag.Int("rounds", 3, "")
	secs := flag.Duration("for", 5*time.Second, "")
	dup := flag.Float64("dup", 0, "")
	body := flag.Int("body", 2400, "")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	m, err := machine.Start(ctx, *dir, log)
	if err != nil {
		return err
	}
	defer func() {
		if e := m.Stop(); err == nil {
			err = e
		}
	}()
	s := suite.New(m, log)
	targets := flag.Args()
	samples, err := s.Compare(ctx, "try", *rounds, suite.Shape{Connections: *conns, Rate: *rate, Body: *body, For: *secs, Sources: 1, Duplicates: *dup}, targets...)
	for _, x := range samples {
		fmt.Printf("%-10s %7.0f/s p50 %.2f p99 %.2f p999 %.2f max %.1f err %d cpu %.0f %v wal %.0f mem %v %v\n", x.Target, x.Rate, x.P50, x.P99, x.P999, x.Max, x.Errors, x.ServerCPU(), x.CPU, x.WAL, x.Memory, x.More)
	}
	return err
}
