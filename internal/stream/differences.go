package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Difference is a setting of a stream, or of the processors' consumer, that differs from Postern's.
type Difference struct {
	Setting, Have, Want string
	// Harmful is true if events may be lost from the stream, delayed or not delivered until the
	// setting is corrected. Otherwise the difference only costs resources.
	Harmful bool
	// NeedsRecreation is true if a server cannot change the setting. The stream or consumer must be
	// deleted, and Postern creates it again.
	NeedsRecreation bool
}

// Differences returns the differences from the configuration for the given limits; none for a
// missing stream.
func (s *Status) Differences(l Limits) (all []Difference) {
	if s.Missing {
		return nil
	}
	subject := map[string]string{EventsStream: EventsSubject, ChangesStream: ChangesSubject,
		ReplaysStream: ReplaysSubject, RunsStream: RunsSubject}[s.Name]
	if s.Name == RunsStream {
		l = l.forRuns()
	}
	want, have := streamConfig(s.Name, subject, "", l), s.config
	differ := func(setting string, have, want any, harmful, needsRecreation bool) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			all = append(all, Difference{setting, h, w, harmful, needsRecreation})
		}
	}
	differ("subjects", have.Subjects, want.Subjects, true, false)
	differ("storage", have.Storage, want.Storage, true, true)
	differ("retention", have.Retention, want.Retention, true, true)
	differ("discard", have.Discard, want.Discard, true, false)
	differ("duplicate window", have.Duplicates, want.Duplicates, have.Duplicates > time.Second, false)
	differ("max messages", have.MaxMsgs, want.MaxMsgs, false, false)
	differ("max bytes", have.MaxBytes, want.MaxBytes, false, false)
	differ("max age", have.MaxAge, want.MaxAge, false, false)
	differ("max messages per subject", max(have.MaxMsgsPerSubject, 0), 0, true, false)
	differ("replicas", have.Replicas, want.Replicas, have.Replicas < want.Replicas, false)
	differ("sealed", have.Sealed, false, true, true)
	if s.Name == EventsStream {
		all = append(all, s.consumerDifferences(l)...)
	}
	return all
}

func (s *Status) consumerDifferences(l Limits) (all []Difference) {
	i := slices.IndexFunc(s.Consumers, func(c ConsumerStatus) bool { return c.Name == ProcessorConsumer })
	if i < 0 {
		return []Difference{{"consumer " + ProcessorConsumer, "missing", "one that all processors share", true,
			false}}
	}
	want, have := consumerConfig(l), s.Consumers[i].config
	differ := func(setting string, have, want any, harmful, needsRecreation bool) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			all = append(all, Difference{"consumer " + ProcessorConsumer + ", " + setting, h, w, harmful,
				needsRecreation})
		}
	}
	differ("acknowledgement", have.AckPolicy, want.AckPolicy, true, true)
	differ("deliveries at most", have.MaxDeliver, want.MaxDeliver, true, false)
	differ("acknowledged within", have.AckWait, want.AckWait, false, false)
	differ("unacknowledged at most", have.MaxAckPending, want.MaxAckPending, have.MaxAckPending < want.MaxAckPending,
		false)
	differ("filter", have.FilterSubject+fmt.Sprint(have.FilterSubjects), "[]", true, false)
	return all
}

// ServerStatus is the state of the NATS servers as a client sees it.
type ServerStatus struct {
	Version string
	// Now is the clock of the server that leads the events stream; zero if there is none.
	Now time.Time
	// Servers is the number of cluster members that the connection knows.
	Servers int
	// Store is how many bytes of streams the account may store on disk, -1 for no limit; Used is
	// how many it stores.
	Store, Used int64
	// Lagging describes the replicas of streams that are not current.
	Lagging []string
}

// Server reads the state of the NATS servers.
func (c *Conn) Server(ctx context.Context) (*ServerStatus, error) {
	out := &ServerStatus{Version: c.nc.ConnectedServerVersion(), Servers: max(1, len(c.nc.DiscoveredServers()))}
	account, err := c.js.AccountInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the account: %w", err)
	}
	out.Store, out.Used = account.Limits.MaxStore, int64(account.Store) //nolint:gosec // bytes on a disk
	for _, name := range streamNames {
		s, err := c.js.Stream(ctx, name)
		if err != nil {
			continue // it is missing, or the next request returns the error
		}
		out.Lagging = append(out.Lagging, laggingReplicas(name, s.CachedInfo())...)
		if name == EventsStream {
			out.Now = s.CachedInfo().TimeStamp
		}
	}
	return out, nil
}

func laggingReplicas(name string, info *jetstream.StreamInfo) (all []string) {
	if info.Cluster == nil {
		return nil
	}
	if info.Cluster.Leader == "" {
		all = append(all, name+" has no leader")
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			all = append(all, fmt.Sprintf("the copy of %s on %s is %d messages behind", name, r.Name, r.Lag))
		}
	}
	return all
}
