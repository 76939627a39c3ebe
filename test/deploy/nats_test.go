package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// natsWithin is how long a server may take to start, and three servers to elect a leader.
const natsWithin = 60 * time.Second

// natsOptions reads one of our configurations as the server does. The certificates in certs replace
// those in its folder. compose.yaml mounts ca.crt as nats_ca.crt.
func natsOptions(t *testing.T, file, folder, certs string) *server.Options {
	t.Helper()
	dir := t.TempDir()
	text := strings.NewReplacer(folder+"/nats_ca.crt", certs+"/ca.crt", folder, certs, "$SERVER_NAME",
		"n1").Replace(read(t, deployed(file)))
	write(t, filepath.Join(dir, "nats.conf"), text)
	write(t, filepath.Join(dir, "nats-accounts.conf"), read(t, deployed("nats-accounts.conf")))
	o, err := server.ProcessConfigFile(filepath.Join(dir, "nats.conf"))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	o.Host, o.Port, o.HTTPHost, o.HTTPPort = "127.0.0.1", server.RANDOM_PORT, "", 0
	o.StoreDir, o.NoSigs, o.NoLog = t.TempDir(), true, true
	return o
}

func startNATS(t *testing.T, o *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(o)
	testkit.Must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(natsWithin) {
		t.Fatalf("nats server %s not ready within %s", o.ServerName, natsWithin)
	}
	return s
}

// composeNATS starts the server of deploy/compose on a free port and returns its URL.
func composeNATS(t *testing.T, certs string) string {
	t.Helper()
	return tlsURL(startNATS(t, natsOptions(t, "compose/nats.conf", "/run/secrets", certs)))
}

func tlsURL(s *server.Server) string {
	return "tls://127.0.0.1:" + strconv.Itoa(s.Addr().(*net.TCPAddr).Port)
}

// as connects with a user's certificate.
func as(t *testing.T, certs, user, urls string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	file := func(name string) string { return filepath.Join(certs, name) }
	nc, err := nats.Connect(urls, nats.RootCAs(file("ca.crt")), nats.ClientCert(file(user+".crt"), file(user+".key")),
		nats.Timeout(natsWithin),
		// errors are checked by the tests that cause them
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatalf("connect as %s: %v", user, err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(natsWithin))
	testkit.Must(t, err)
	return nc, js
}

// daemon connects as one of our daemons does.
func daemon(t *testing.T, certs, user, urls string) *stream.Conn {
	t.Helper()
	file := func(name string) string { return filepath.Join(certs, name) }
	conn, err := stream.Connect(stream.Options{URL: urls, CA: file("ca.crt"), Cert: file(user + ".crt"),
		Key: file(user + ".key"), Name: user, Logger: testkit.Logger(t)})
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	testkit.Eventually(t, natsWithin, func() error {
		if !conn.Connected() {
			return fmt.Errorf("%s is not connected", user)
		}
		return nil
	})
	return conn
}

// Three servers with deploy/nats.conf form a cluster with three copies of each message. It works
// without one of them.
func TestNATS_cluster_worksWithoutOneServer(t *testing.T) {
	t.Parallel()
	certs := allSecrets(t)
	servers := make([]*server.Server, 3)
	for i := range servers {
		o := natsOptions(t, "nats.conf", "/etc/nats", certs)
		if len(o.Routes) != 3 || !o.Cluster.TLSCheckKnownURLs || !o.TLSMap {
			t.Fatalf("%d routes, routes checked %t, users by certificate %t", len(o.Routes),
				o.Cluster.TLSCheckKnownURLs, o.TLSMap)
		}
		o.ServerName = fmt.Sprintf("n%d", i+1)
		o.Cluster.Host, o.Cluster.Port, o.Routes = "127.0.0.1", server.RANDOM_PORT, nil
		if i > 0 {
			o.Routes = []*url.URL{{Scheme: "nats", Host: "localhost:" + strconv.Itoa(servers[0].ClusterAddr().Port)}}
		} else {
			// an unreachable server; the host name is the one that the certificates must have
			o.Routes = []*url.URL{{Scheme: "nats", Host: "localhost:1"}}
		}
		servers[i] = startNATS(t, o)
	}
	urls := strings.Join([]string{tlsURL(servers[0]), tlsURL(servers[1]), tlsURL(servers[2])}, ",")
	gateway := daemon(t, certs, "gateway", urls)
	limits := stream.DefaultLimits
	limits.Replicas = 3
	testkit.Eventually(t, natsWithin, func() error { return gateway.Ensure(t.Context(), limits) })
	_, js := as(t, certs, "processor", urls)
	info := streamInfo(t, js, stream.EventsStream)
	if info.Config.Replicas != 3 || info.Cluster == nil || len(info.Cluster.Replicas) != 2 {
		t.Errorf("replicas %d, cluster %+v", info.Config.Replicas, info.Cluster)
	}
	testkit.Eventually(t, natsWithin, func() error { // a server lost before all have joined leaves no majority
		c := streamInfo(t, js, stream.EventsStream).Cluster
		if c == nil || c.Leader == "" ||
			slices.ContainsFunc(c.Replicas, func(p *jetstream.PeerInfo) bool { return !p.Current }) {
			return fmt.Errorf("cluster %+v", c)
		}
		return nil
	})
	servers[2].Shutdown()
	servers[2].WaitForShutdown()
	testkit.Eventually(t, natsWithin, func() error { // a response of the lost server never arrives
		ctx, cancel := context.WithTimeout(t.Context(), natsWithin/10)
		defer cancel()
		_, err := js.Publish(ctx, stream.EventsSubject+".stripe.x", nil)
		return err
	})
}

func streamInfo(t *testing.T, js jetstream.JetStream, name string) *jetstream.StreamInfo {
	t.Helper()
	s, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatalf("stream %s: %v", name, err)
	}
	return s.CachedInfo()
}

// An authority whose key is stored elsewhere is not replaced.
func TestSecrets_authoritysKeyElsewhere_keepsAuthority(t *testing.T) {
	t.Parallel()
	dir := allSecrets(t)
	file := func(name string) string { return filepath.Join(dir, name) }
	authority := read(t, file("ca.crt"))
	for _, name := range []string{"ca.key", "pgpass_gateway"} {
		testkit.Must(t, os.Remove(file(name)))
	}
	runs(t, exec.CommandContext(t.Context(), deployed("secrets.sh"), dir))
	if read(t, file("ca.crt")) != authority || read(t, file("pgpass_gateway")) == "" {
		t.Error("another authority, or no new password")
	}
	testkit.Must(t, os.Remove(file("gateway.crt")))
	if out, err := exec.CommandContext(t.Context(), deployed("secrets.sh"), dir).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "ca.key is missing") {
		t.Errorf("a certificate without the authority's key: %v, %s", err, out)
	}
}

// Each user has only the permissions that it needs. A client without a certificate cannot connect.
func TestNATS_users_haveOnlyTheirPermissions(t *testing.T) {
	t.Parallel()
	certs := allSecrets(t)
	url := composeNATS(t, certs)
	if err := daemon(t, certs, "gateway", url).Ensure(t.Context(), stream.DefaultLimits); err != nil {
		t.Fatalf("gateway: %v", err)
	}
	processor := daemon(t, certs, "processor", url)
	if err := processor.Ensure(t.Context(), stream.DefaultLimits); err != nil {
		t.Fatalf("processor: %v", err)
	}
	daemons := map[string]*stream.Conn{"gateway": daemon(t, certs, "gateway", url), "processor": processor}
	for user, conn := range daemons {
		if _, err := conn.Status(t.Context()); err != nil { // postern stream status
			t.Errorf("%s reads the streams: %v", user, err)
		}
		for _, c := range doctor.Examine(t.Context(), doctor.Options{Conn: conn}).Checks {
			if c.Verdict == doctor.Error {
				t.Errorf("the doctor as %s: %s: %s", user, c.Name, c.Found)
			}
		}
	}
	acks := processor.PublishChanges(t.Context(),
		[]stream.Change{{Source: "stripe", ObjectType: "customer", Batch: 1, Envelope: []byte("{}")}})
	if acks[0].Err != nil {
		t.Errorf("processor publishes a change: %v", acks[0].Err)
	}
	_, js := as(t, certs, "consumer", url)
	follow, err := js.CreateOrUpdateConsumer(t.Context(), stream.ChangesStream,
		jetstream.ConsumerConfig{Durable: "mine", AckPolicy: jetstream.AckExplicitPolicy,
			FilterSubject: stream.ChangesSubject + ".stripe.>"})
	if err != nil {
		t.Fatalf("consumer follows the changes: %v", err)
	}
	msg, err := follow.Next(jetstream.FetchMaxWait(natsWithin))
	if err != nil {
		t.Fatalf("consumer reads a change: %v", err)
	}
	if err := msg.DoubleAck(t.Context()); err != nil {
		t.Errorf("consumer acknowledges: %v", err)
	}
	all := stream.EraseFilter{Events: func(_ context.Context, ids []int64) ([]int64, error) { return ids, nil }}
	if n, err := processor.EraseMessages(t.Context(), stream.ChangesStream, all); err != nil || n != 1 {
		t.Errorf("processor purges %d messages, want 1: %v", n, err)
	}
	for user, subjects := range map[string][]string{
		"gateway": {stream.ChangesSubject + ".stripe.customer", "$JS.API.CONSUMER.MSG.NEXT.POSTERN_EVENTS.processor",
			"$JS.API.STREAM.DELETE.POSTERN_EVENTS",
			"$JS.API.STREAM.MSG.DELETE.POSTERN_EVENTS"},
		"consumer": {stream.EventsSubject + ".stripe.x", stream.ChangesSubject + ".stripe.x",
			"$JS.API.CONSUMER.CREATE.POSTERN_EVENTS.processor", "$JS.ACK.POSTERN_EVENTS.processor.1"},
		"processor": {"$JS.API.STREAM.DELETE.POSTERN_CHANGES", "$JS.API.STREAM.PURGE.POSTERN_CHANGES",
			"$JS.API.STREAM.CREATE.OTHER"},
	} {
		for _, subject := range subjects {
			refused(t, certs, user, url, subject)
		}
	}
	if nc, err := nats.Connect(url, nats.RootCAs(filepath.Join(certs, "ca.crt")),
		nats.Timeout(natsWithin)); err == nil {
		nc.Close()
		t.Error("a client without a certificate could connect")
	}
}

// refused fails the test unless the server rejects a publish of a user on a subject.
func refused(t *testing.T, certs, user, url, subject string) {
	t.Helper()
	nc, _ := as(t, certs, user, url)
	ctx, cancel := context.WithTimeout(t.Context(), natsWithin)
	defer cancel()
	testkit.Must(t, errors.Join(nc.Publish(subject, []byte("{}")), nc.FlushWithContext(ctx)))
	testkit.Eventually(t, natsWithin, func() error { // the server's error may arrive after its pong
		if err := nc.LastError(); !errors.Is(err, nats.ErrPermissionViolation) {
			return fmt.Errorf("%s publishes on %s: %v, want a permissions violation", user, subject, err)
		}
		return nil
	})
}

// The limits of the files are large enough for the default configuration of the streams.
func TestNATS_limits_fitStreams(t *testing.T) {
	t.Parallel()
	certs := allSecrets(t)
	var c config.Config
	c.Complete()
	for file, folder := range map[string]string{"nats.conf": "/etc/nats", "compose/nats.conf": "/run/secrets"} {
		o := natsOptions(t, file, folder, certs)
		if want := 2 * int64(c.Stream.MaxBytes); o.JetStreamMaxStore < want {
			t.Errorf("%s: max_file is %d bytes, and the two streams may take %d", file, o.JetStreamMaxStore, want)
		}
		if int(o.MaxPayload) < stream.MaxBody {
			t.Errorf("%s: max_payload is %d bytes, below the largest body that is sent, %d", file, o.MaxPayload,
				stream.MaxBody)
		}
	}
}
