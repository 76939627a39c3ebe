package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/stream"
)

// checkNATS checks JetStream.
func (e *examination) checkNATS(ctx context.Context) {
	e.checkMonitor(ctx)
	if e.ConnError != nil {
		e.add(Error, "nats.reached", e.ConnError.Error(), "start NATS, or correct nats.url and its credentials; "+
			"nothing else of NATS was checked. Meanwhile deliveries are stored, and applied later")
		return
	}
	if e.Conn == nil {
		return
	}
	if err := e.Conn.CheckServer(); err != nil {
		e.add(Error, "nats.version", err.Error(), "upgrade each server of the cluster: only this one was checked")
	}
	requestedAt := e.Now()
	server, err := e.Conn.Server(ctx)
	if err != nil {
		e.add(Error, "nats.reached", err.Error(), "check that JetStream is enabled for this account (jetstream {} in "+
			"the server's configuration)")
		return
	}
	duration := e.Now().Sub(requestedAt)
	e.add(OK, "nats.reached", fmt.Sprintf("version %s, %s known", server.Version, countOf(server.Servers, "server")),
		"")
	if !server.Now.IsZero() {
		e.checkClock("nats.clock", "NATS' clock", server.Now.Sub(requestedAt.Add(duration/2)), duration)
	}
	for _, lag := range server.Lagging {
		e.add(Warn, "nats.copies", lag, "start that server, and wait until its copy is current before you stop "+
			"the next one")
	}
	e.checkStorage(server)
	e.checkPayload()
	e.checkStreams(ctx)
}

// streamLimits returns the configured limits of the streams.
func (e *examination) streamLimits() stream.Limits {
	l := stream.DefaultLimits
	if c := e.Config; c != nil {
		l.MaxMessages, l.MaxBytes, l.MaxAge, l.Replicas = c.Stream.MaxMessages, int64(c.Stream.MaxBytes),
			c.Stream.MaxAge, c.NATS.Replicas
	}
	return l
}

// checkStorage requires enough storage for the two permanent streams.
func (e *examination) checkStorage(s *stream.ServerStatus) {
	need := 2 * e.streamLimits().MaxBytes * int64(e.streamLimits().Replicas)
	if s.Store < 0 {
		e.add(OK, "nats.disk", fmt.Sprintf("the account uses %d MiB for streams, without a limit", s.Used>>20), "")
		return
	}
	e.add(okIf(s.Store >= need, Warn), "nats.disk", fmt.Sprintf("the account uses %d MiB of %d MiB for streams",
		s.Used>>20, s.Store>>20), fmt.Sprintf("allow %d MiB (two streams of stream.max_bytes, nats.replicas times), "+
		"or lower stream.max_bytes", need>>20))
}

func (e *examination) checkPayload() {
	largest := e.Conn.MaxMessageBody()
	e.add(okIf(largest >= stream.MaxBody, Warn), "nats.payload", fmt.Sprintf("bodies of up to %d KiB are part of the "+
		"stream's messages, larger ones are read from the log", largest>>10), fmt.Sprintf("raise max_payload of the "+
		"server (its default is 1MB): Postern uses up to %d KiB", stream.MaxBody>>10))
}

func (e *examination) checkStreams(ctx context.Context) {
	all, err := e.Conn.Status(ctx)
	if err != nil {
		e.add(Error, "nats.streams", err.Error(), "check that the account may read its streams")
		return
	}
	for i := range all {
		s := &all[i]
		if s.Missing {
			if s.Name == stream.EventsStream || s.Name == stream.ChangesStream {
				e.add(Warn, "nats.streams", s.Name+" does not exist", "start a daemon, which creates it; the "+
					"republisher publishes its events again")
			}
			continue
		}
		e.checkStream(s)
	}
}

func (e *examination) checkStream(s *stream.Status) {
	differences := s.Differences(e.streamLimits())
	for _, d := range differences {
		verdict, do := Warn, "restart a daemon with this configuration, which sets it, or change the configuration"
		if d.Harmful {
			verdict = Error
		}
		if d.NeedsRecreation {
			do = fmt.Sprintf("nats stream rm %s, or its consumer, and start a daemon, which creates it again; then "+
				"postern stream republish", s.Name)
		}
		e.add(verdict, "nats.streams", fmt.Sprintf("%s: %s is %s, but %s is configured", s.Name, d.Setting, d.Have,
			d.Want), do)
	}
	if len(differences) == 0 {
		messages := countOf(int(s.Messages), "message") //nolint:gosec // a count
		e.add(OK, "nats.streams", fmt.Sprintf("%s is as configured, with %s", s.Name, messages), "")
	}
	for _, c := range s.Consumers {
		if s.Name == stream.EventsStream && c.Name == stream.ProcessorConsumer {
			e.add(okIf(c.Waiting > 0 || c.Unacknowledged > 0, Warn), "nats.consumer",
				fmt.Sprintf("%d messages wait, %d are in progress", c.Pending, c.Unacknowledged),
				"no processor fetches messages: start one")
		}
	}
}

// variables is the part of a server's /varz that the checks use.
type variables struct {
	Now       time.Time `json:"now"`
	JetStream struct {
		Config *struct {
			StoreDir     string        `json:"store_dir"`
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
			MaxStorage   int64         `json:"max_storage"`
		} `json:"config"`
	} `json:"jetstream"`
}

const (
	monitorTimeout  = 3 * time.Second
	maxMonitorBytes = 1 << 20
)

// checkMonitor checks settings that a client cannot read. It reads them from the monitoring address
// of a server.
func (e *examination) checkMonitor(ctx context.Context) {
	if e.Monitor == "" {
		return
	}
	v, err := fetchVariables(ctx, strings.TrimRight(e.Monitor, "/")+"/varz")
	if err != nil {
		e.add(Error, "nats.monitor", err.Error(), "give the monitoring address of a server (http: in its "+
			"configuration), e.g. http://127.0.0.1:8222")
		return
	}
	c := v.JetStream.Config
	if c != nil && c.MaxStorage > 0 {
		need := 2 * e.streamLimits().MaxBytes
		e.add(okIf(c.MaxStorage >= need, Warn), "nats.room", fmt.Sprintf("the server stores up to %d MiB of streams",
			c.MaxStorage>>20), fmt.Sprintf("set jetstream { max_file } to %d MiB or more, with that much free disk: "+
			"two streams of stream.max_bytes", need>>20))
	}
	switch {
	case c == nil:
		e.add(Error, "nats.sync", "JetStream is not enabled on the server",
			"set jetstream { store_dir: ... } in the server's configuration")
	case strings.HasPrefix(c.StoreDir, "/tmp/"):
		e.add(Warn, "nats.sync", "streams are stored in "+c.StoreDir+", which is emptied when the machine starts",
			"set jetstream { store_dir } to a folder on a disk")
	case c.SyncAlways:
		e.add(Warn, "nats.sync", "each message is synced to the disk (sync_interval: always), which reduces the rate "+
			"to a twentieth", "use the default: the log in PostgreSQL is authoritative, and after a power failure "+
			"the republisher publishes lost messages again")
	default:
		e.add(OK, "nats.sync", fmt.Sprintf("synced every %s: after a power failure, the republisher publishes the "+
			"lost messages again", c.SyncInterval), "")
	}
}

func fetchVariables(ctx context.Context, address string) (*variables, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, monitorTimeout, fmt.Errorf("no response within %s", monitorTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read NATS' monitoring: %w", err)
	}
	defer res.Body.Close()
	v := &variables{}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxMonitorBytes)).Decode(v); err != nil ||
		res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read NATS' monitoring: %s did not return /varz (status %s)", address, res.Status)
	}
	return v, nil
}
