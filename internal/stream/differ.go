package stream

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Difference is a setting of a stream, or of the processors' consumer, that is not as Postern makes it.
type Difference struct {
	Setting, Have, Want string
	// Harmful: events may be lost from the stream, held up, or given to nobody, until it is mended; else it costs something.
	Harmful bool
	// Fixed: a server does not change it: the stream, or the consumer, must be deleted, and is made again.
	Fixed bool
}

// Differences are those from what the limits want. Of one that is missing there are none.
func (s *Status) Differences(l Limits) (all []Difference) {
	if s.Missing {
		return nil
	}
	subject := map[string]string{EventsStream: EventsSubject, ChangesStream: ChangesSubject, ReplaysStream: ReplaysSubject, RunsStream: RunsSubject}[s.Name]
	if s.Name == RunsStream {
		l = l.ofRuns()
	}
	want, have := streamConfig(s.Name, subject, "", l), s.config
	differ := func(setting string, have, want any, harmful, fixed bool) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			all = append(all, Difference{setting, h, w, harmful, fixed})
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
		return []Difference{{"consumer " + ProcessorConsumer, "there is none", "one that all processors share", true, false}}
	}
	want, have := consumerConfig(l), s.Consumers[i].config
	differ := func(setting string, have, want any, harmful, fixed bool) {
		if h, w := fmt.Sprint(have), fmt.Sprint(want); h != w {
			all = append(all, Difference{"consumer " + ProcessorConsumer + ", " + setting, h, w, harmful, fixed})
		}
	}
	differ("acknowledgement", have.AckPolicy, want.AckPolicy, true, true)
	differ("deliveries at most", have.MaxDeliver, want.MaxDeliver, true, false)
	differ("acknowledged within", have.AckWait, want.AckWait, false, false)
	differ("unacknowledged at most", have.MaxAckPending, want.MaxAckPending, have.MaxAckPending < want.MaxAckPending, false)
	differ("filter", have.FilterSubject+fmt.Sprint(have.FilterSubjects), "[]", true, false)
	return all
}

// ServerStatus is what a client can learn of the servers.
type ServerStatus struct {
	Version string
	// Now is the clock of the server that has the stream of events; zero where there is none.
	Now time.Time
	// Servers are the members of the cluster that the connection knows of.
	Servers int
	// Store is how many bytes of streams the account may have on disk, -1: as many as there is room; Used is how many they have.
	Store, Used int64
	// Lagging are copies of streams that are not current, in words.
	Lagging []string
}

// Server asks what a client can learn of the servers.
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
			continue // it is missing, or the next question says what is wrong
		}
		out.Lagging = append(out.Lagging, lagging(name, s.CachedInfo())...)
		if name == EventsStream {
			out.Now = s.CachedInfo().TimeStamp
		}
	}
	return out, nil
}

func lagging(name string, info *jetstream.StreamInfo) (all []string) {
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
