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

// nats looks at JetStream.
func (e *examination) nats(ctx context.Context) {
	e.monitor(ctx)
	if e.ConnError != nil {
		e.add(Error, "nats.reached", e.ConnError.Error(), "start NATS, or mend nats.url and its credentials; nothing else of NATS was looked at. Deliveries are stored meanwhile, and applied later")
		return
	}
	if e.Conn == nil {
		return
	}
	if err := e.Conn.CheckServer(); err != nil {
		e.add(Error, "nats.version", err.Error(), "do so on each server of the cluster: this one alone was asked")
	}
	asked := e.Now()
	server, err := e.Conn.Server(ctx)
	if err != nil {
		e.add(Error, "nats.reached", err.Error(), "is JetStream on for this account (jetstream {} in the server's configuration)?")
		return
	}
	took := e.Now().Sub(asked)
	e.add(OK, "nats.reached", fmt.Sprintf("version %s, %s known", server.Version, counted(server.Servers, "server")), "")
	if !server.Now.IsZero() {
		e.clock("nats.clock", "NATS' clock", server.Now.Sub(asked.Add(took/2)), took)
	}
	for _, copied := range server.Lagging {
		e.add(Warn, "nats.copies", copied, "start that server, and wait until its copy is current before the next one is stopped")
	}
	e.store(server)
	e.payload()
	e.streams(ctx)
}

// limits are what the configuration wants of the streams.
func (e *examination) limits() stream.Limits {
	l := stream.DefaultLimits
	if c := e.Config; c != nil {
		l.MaxMessages, l.MaxBytes, l.MaxAge, l.Replicas = c.Stream.MaxMessages, int64(c.Stream.MaxBytes), c.Stream.MaxAge, c.NATS.Replicas
	}
	return l
}

// store wants room for the streams that there always are.
func (e *examination) store(s *stream.ServerStatus) {
	need := 2 * e.limits().MaxBytes * int64(e.limits().Replicas)
	if s.Store < 0 {
		e.add(OK, "nats.disk", fmt.Sprintf("the account has %d MiB of streams, without a limit of its own", s.Used>>20), "")
		return
	}
	e.add(unless(s.Store >= need, Warn), "nats.disk", fmt.Sprintf("the account has %d MiB of streams of %d MiB allowed", s.Used>>20, s.Store>>20),
		fmt.Sprintf("allow %d MiB (two streams of stream.max_bytes, nats.replicas times), or lower stream.max_bytes", need>>20))
}

func (e *examination) payload() {
	largest := e.Conn.LargestBody()
	e.add(unless(largest >= stream.MaxBody, Warn), "nats.payload", fmt.Sprintf("bodies of up to %d KiB go through the stream, larger ones are read from the log", largest>>10),
		fmt.Sprintf("raise max_payload of the server (its default is 1MB): %d KiB are meant to", stream.MaxBody>>10))
}

func (e *examination) streams(ctx context.Context) {
	all, err := e.Conn.Status(ctx)
	if err != nil {
		e.add(Error, "nats.streams", err.Error(), "may the account see its streams?")
		return
	}
	for i := range all {
		s := &all[i]
		if s.Missing {
			if s.Name == stream.EventsStream || s.Name == stream.ChangesStream {
				e.add(Warn, "nats.streams", s.Name+" is not there", "start a daemon, which makes it; what was in it the auditor publishes again")
			}
			continue
		}
		e.stream(s)
	}
}

func (e *examination) stream(s *stream.Status) {
	differences := s.Differences(e.limits())
	for _, d := range differences {
		verdict, do := Warn, "start a daemon with this configuration again, which sets it, or change the configuration"
		if d.Harmful {
			verdict = Error
		}
		if d.Fixed {
			do = fmt.Sprintf("nats stream rm %s, or its consumer, and start a daemon, which makes it anew; then postern stream heal", s.Name)
		}
		e.add(verdict, "nats.streams", fmt.Sprintf("%s: %s is %s, wanted is %s", s.Name, d.Setting, d.Have, d.Want), do)
	}
	if len(differences) == 0 {
		e.add(OK, "nats.streams", fmt.Sprintf("%s is as it should be, with %s", s.Name, counted(int(s.Messages), "message")), "") //nolint:gosec // a count
	}
	for _, c := range s.Consumers {
		if s.Name == stream.EventsStream && c.Name == stream.ProcessorConsumer {
			e.add(unless(c.Waiting > 0 || c.Unacknowledged > 0, Warn), "nats.consumer", fmt.Sprintf("%d messages wait, %d are in hand", c.Pending, c.Unacknowledged), "nobody asks for messages: start a processor")
		}
	}
}

// variables is what is read of a server's /varz.
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
	monitorWithin = 3 * time.Second
	monitorBytes  = 1 << 20
)

// monitor asks a server for what a client cannot learn.
func (e *examination) monitor(ctx context.Context) {
	if e.Monitor == "" {
		return
	}
	v, err := ask(ctx, strings.TrimRight(e.Monitor, "/")+"/varz")
	if err != nil {
		e.add(Error, "nats.monitor", err.Error(), "name the monitoring address of a server (http: in its configuration), e.g. http://127.0.0.1:8222")
		return
	}
	c := v.JetStream.Config
	if c != nil && c.MaxStorage > 0 {
		need := 2 * e.limits().MaxBytes
		e.add(unless(c.MaxStorage >= need, Warn), "nats.room", fmt.Sprintf("the server takes up to %d MiB of streams", c.MaxStorage>>20),
			fmt.Sprintf("set jetstream { max_file } to %d MiB or more, of as much free disk: two streams of stream.max_bytes", need>>20))
	}
	switch {
	case c == nil:
		e.add(Error, "nats.sync", "the server has no JetStream", "jetstream { store_dir: ... } in the server's configuration")
	case strings.HasPrefix(c.StoreDir, "/tmp/"):
		e.add(Warn, "nats.sync", "streams are stored in "+c.StoreDir+", which is emptied at a start", "set jetstream { store_dir } to a folder on a disk")
	case c.SyncAlways:
		e.add(Warn, "nats.sync", "each message is synced to the disk (sync_interval: always), at a twentieth of the rate", "leave the default: the log in PostgreSQL is the truth, and the auditor publishes again what a power cut takes")
	default:
		e.add(OK, "nats.sync", fmt.Sprintf("synced every %s: a power cut may take the messages of that time, which the auditor publishes again", c.SyncInterval), "")
	}
}

func ask(ctx context.Context, address string) (*variables, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, monitorWithin, fmt.Errorf("no answer within %s", monitorWithin))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask NATS' monitoring: %w", err)
	}
	defer res.Body.Close()
	v := &variables{}
	if err := json.NewDecoder(io.LimitReader(res.Body, monitorBytes)).Decode(v); err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask NATS' monitoring: %s is no answer of /varz (status %s)", address, res.Status)
	}
	return v, nil
}
