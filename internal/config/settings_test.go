package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/settings"
)

const spoolExample = `
database: {url: "postgres://postern:pw@localhost/postern"}
ingest: {spool: {dir: %q, unsafe_dir: %t}}
sources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}
`

// The folder of a spool is the same wherever the process starts, and survives a restart of the
// machine.
func TestCheckSpool_folder_survivesRestart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dir    string
		unsafe bool
		want   string
	}{
		"none":                 {dir: ""},
		"on a disk":            {dir: "/nonexistent/spool"},
		"relative":             {dir: "spool", want: "line 3: ingest.spool.dir: spool depends on the folder"},
		"relative, unsafe_dir": {dir: "./spool", unsafe: true, want: "write an absolute path"},
		"temporary": {dir: "/tmp/postern/spool", want: "/tmp/postern/spool is in /tmp, which is emptied " +
			"at a start"},
		"the temporary folder":  {dir: "/tmp", want: "unsafe_dir: true"},
		"with dots in the path": {dir: "/nonexistent/../tmp/spool", want: "is in /tmp"},
		"temporary, unsafe_dir": {dir: "/tmp/postern/spool", unsafe: true},
		"same prefix":           {dir: "/tmpfiles/spool"},
	} {
		_, err := config.Parse(fmt.Appendf(nil, spoolExample, c.dir, c.unsafe), environment())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Settings that are probably not intended are reported. Existing files of the spool need no
// additional space.
func TestWarnings_fullDisk_isReported(t *testing.T) {
	t.Parallel()
	const tooLarge = 4 << 40
	dir := filepath.Join(t.TempDir(), "spool")
	c := config.Default()
	if got := c.Warnings(); got != nil {
		t.Errorf("warnings without a spool: %q", got)
	}
	c.Ingest.Spool = config.Spool{Dir: dir, MaxBytes: tooLarge, UnsafeDir: true}
	got := strings.Join(c.Warnings(), "\n")
	if !strings.Contains(got, "ingest.spool.unsafe_dir is on") ||
		!strings.Contains(got, "MiB are free for "+dir+", but 4194304 MiB may be needed") {
		t.Errorf("warns %q", got)
	}
	if diff := cmp.Diff([]string{"ingest.spool.unsafe_dir"}, c.UnsafeSettings()); diff != "" {
		t.Error(diff)
	}

	must(t, os.Mkdir(dir, 0o700))
	used := filepath.Join(dir, "1.spool")
	write(t, used, "")
	if err := os.Truncate(used, tooLarge); err != nil { // a sparse file, which uses no space
		t.Fatal(err)
	}
	if got := strings.Join(c.Warnings(), "\n"); strings.Contains(got, "free") {
		t.Errorf("warns %q, although the spool is full already", got)
	}
}

// No form of an address may ask for commits that are not durable.
func TestDatabaseURL_weakerDurability_isRejected(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://u@h/d?synchronous_commit=off", "postgres://u@h/d?options=-c%20synchronous_commit%3Doff",
		"postgres://u@h/d?options=--Synchronous-Commit%3dlocal",
		"postgres://u@h/d?options=-c%20synchronous%5fcommit%3Doff", "host=h dbname=d synchronous_commit=off",
		"postgres://u@h/d?options=-c%20default%5ftransaction_isolation%3Dserializable",
	} {
		for setting, text := range databasesAt(address) {
			checkRejected(t, text, setting+": sets ")
		}
	}
}

func TestEndpoints_networksAndRates_areApplied(t *testing.T) {
	t.Parallel()
	c := parse(t, `
database: {url: postgres://x}
ingest:
  trusted_proxies: [127.0.0.1, '::1', fd00::/8]
sources:
  a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}], `+
		`allow_from: [192.0.2.0/24], rate_limit: {per_second: 7}}
  b: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}], rate_limit: {per_second: 7, burst: 2}}
  c: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}
`, "POSTERN_SOURCES_B_ALLOW_FROM=192.0.2.7, 2001:db8::/32", "POSTERN_SOURCES_C_RATE_LIMIT_PER_SECOND=9")
	if got := fmt.Sprint(c.Ingest.Proxies()); got != "[127.0.0.1/32 ::1/128 fd00::/8]" {
		t.Errorf("proxies %s", got)
	}
	for i, want := range []string{"[192.0.2.0/24] {7 7}", "[192.0.2.7/32 2001:db8::/32] {7 2}", "[] {9 9}"} {
		e := c.Endpoints()[i]
		if got := fmt.Sprint(e.AllowFrom, e.RateLimit); got != want {
			t.Errorf("source %s: %s, want %s", e.Source.Name, got, want)
		}
	}
}

// A schedule has defaults, its parameters are texts whatever YAML makes of them, and variables
// override the file.
func TestSchedules_yaml_isChecked(t *testing.T) {
	t.Parallel()
	c := parse(t, `database: {url: postgres://x}
schedules:
  nightly:
    job: replay
    cron: "30 3 * * *"
    parameters: {source: shop, rate: 50, since: 25h, publish: true}
`, "POSTERN_SCHEDULES=weekly", "POSTERN_SCHEDULES_WEEKLY_JOB=replay",
		"POSTERN_SCHEDULES_WEEKLY_CRON=0 4 * * 1", "POSTERN_SCHEDULES_WEEKLY_OVERLAP=queue",
		"POSTERN_SCHEDULES_WEEKLY_PARAMETERS=source=shop,type=invoice.*")
	want := map[string]*config.Schedule{
		"nightly": {Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: "skip", Missed: "run",
			Parameters: map[string]string{"source": "shop", "rate": "50", "since": "25h", "publish": "true"}},
		"weekly": {Job: "replay", Cron: "0 4 * * 1", TimeZone: "UTC", Overlap: "queue", Missed: "run",
			Parameters: map[string]string{"source": "shop", "type": "invoice.*"}},
	}
	if diff := cmp.Diff(want, c.Schedules); diff != "" {
		t.Error(diff)
	}
	for path, place := range map[string]string{
		"schedules.nightly.parameters.rate": "line 6: schedules.nightly.parameters.rate: x",
		"schedules.weekly.job":              "POSTERN_SCHEDULES_WEEKLY_JOB: x"} {
		if err := c.Locate(errors.Join(&settings.Problem{Path: path, Msg: "x"})); err.Error() != place {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := config.Default().Locate(&settings.Problem{Path: "a", Msg: "x"}); err.Error() != "a: x" {
		t.Error(err)
	}
	if err := c.Locate(nil); err != nil {
		t.Error(err)
	}
	if text := c.String(); !strings.Contains(text, "30 3 * * *") {
		t.Error(text)
	}
}

func TestMaskURL_passwords_areMasked(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"postgres://u:pw@h:5432/db?sslmode=require": "postgres://u:[hidden]@h:5432/db?sslmode=require",
		"postgres://u@h/db":                         "postgres://u@h/db",
		"postgres://h/db":                           "postgres://h/db",
		"postgres://u:p@w/x@h/db":                   "postgres://u:[hidden]@h/db",
		"postgres://u:pw@h1:1,h2:2/db":              "postgres://u:[hidden]@h1:1,h2:2/db",
		"postgres:///db?user=u&password=pw&x=1":     "postgres:///db?user=u&password=[hidden]&x=1",
		"host=h user=u password='p w' dbname=d":     "host=h user=u password=[hidden] dbname=d",
		"host=h sslpassword=pw":                     "host=h sslpassword=[hidden]",
		"nats://u:pw@a:4222,nats://token@b:4222,c":  "nats://u:[hidden]@a:4222,nats://[hidden]@b:4222,c",
		"": "",
	} {
		if got := settings.MaskURL(in); got != want {
			t.Errorf("MaskURL(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestConfig_printing_showsNoSecret(t *testing.T) {
	t.Parallel()
	c, err := config.Parse([]byte("database: {url: 'postgres://u:s3cret@h/d'}\nnats: {url: 'nats://s3cret@h'}\n"+
		"sources: {a: {provider: stripe, secrets: [{name: n, value: whsec_s3cret_of_a_test}]"+
		", api: {key: {value: s3cret}}}"+
		", b: {provider: hmac, secrets: [{name: n, value: whsec_s3cret_of_a_test}], scheme: {header: X-S}"+
		", handshake: {challenge: {echo: query:c, token: {from: query:t, value: s3cret}}}}}\n"), environment())
	if err != nil || !strings.Contains(c.String(), "query:t") {
		t.Fatal(err, c)
	}
	var out bytes.Buffer
	for _, log := range []*slog.Logger{slog.New(slog.NewTextHandler(&out, nil)),
		slog.New(slog.NewJSONHandler(&out, nil))} {
		log.Info("config", "config", c, "database", c.Database, "source", c.Sources["a"], "secret",
			c.Sources["a"].Secrets[0], "api", c.Endpoints()[0].API, "key", c.Sources["a"].API.Key)
	}
	fmt.Fprint(&out, c)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&out, verb, c.Database)
		fmt.Fprintf(&out, verb, *c.Sources["a"])
		fmt.Fprintf(&out, verb, c.Sources["a"].Secrets)
		fmt.Fprintf(&out, verb, c.Sources["a"].API)
		fmt.Fprintf(&out, verb, *c.Endpoints()[0].API)
	}
	b, err := json.Marshal(c)
	must(t, err)
	out.Write(b)
	if strings.Contains(out.String(), "s3cret") {
		t.Fatal(out.String())
	}
	for _, bytesOfSecret := range []string{"115 51 99", "0x73, 0x33", fmt.Sprintf("%x", "s3cret")} {
		if strings.Contains(out.String(), bytesOfSecret) {
			t.Fatalf("the secret's bytes are shown: %s", out.String())
		}
	}
}

func TestTemplate_secretSet_loads(t *testing.T) {
	t.Parallel()
	c := parse(t, config.Template(), "STRIPE_WEBHOOK_SECRET=whsec_secret_of_a_test",
		"POSTERN_DB_PASSWORD=x")
	if e := c.Endpoints(); len(e) != 1 || e[0].Source.Name != "stripe" ||
		string(e[0].Source.Secrets[0].Value) != "whsec_secret_of_a_test" {
		t.Fatalf("sources: %v", c.Sources)
	}
	checkRejected(t, config.Template(), "STRIPE_WEBHOOK_SECRET is not set")
}

// Every commented-out setting of the template must exist.
func TestTemplate_allSettingsUncommented_loads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"shopify.secret", "postern.creds", "tls.crt", "tls.key"} {
		write(t, filepath.Join(dir, name), "secret of a test")
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(config.Template(), "/etc/postern", dir)) {
		bare := strings.TrimLeft(line, " ")
		for _, setting := range []string{"# credentials:", "# replicas:", "# tls:", "# listen:", "# shopify:",
			"# acme:", "# forward:", "#   "} {
			if strings.HasPrefix(bare, setting) {
				line = strings.Replace(line, "# ", "", 1)
				break
			}
		}
		lines = append(lines, line)
	}
	c := parse(t, strings.Join(lines, ""), "STRIPE_WEBHOOK_SECRET=whsec_secret_of_a_test",
		"ACME_WEBHOOK_SECRET=secret of a test", "FORWARD_SECRET=whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	if len(c.Endpoints()) != 3 || c.NATS.Replicas != 3 || c.Ingest.TLS.Key == "" || c.Admin.Listen == "" {
		t.Fatalf("not everything was switched on: %v", c)
	}
}

func TestDemoSources_everyProvider_isRejectedElsewhere(t *testing.T) {
	t.Parallel()
	demo := &config.Config{Sources: config.DemoSources()}
	names := map[string]string{}
	for _, e := range demo.Endpoints() {
		names[e.Source.Name] = e.Provider.Name()
		if err := e.Provider.Check(e.Source); err != nil {
			t.Errorf("%s: %v", e.Source.Name, err)
		}
		value := string(e.Source.Secrets[0].Value)
		checkRejected(t, "database: {url: postgres://x}\nsources: {a: {provider: "+e.Provider.Name()+
			", accounts: ['*'], secrets: [{name: n, value: "+value+"}]}}", "demo secret")
	}
	want := map[string]string{}
	for _, p := range all.All() {
		want[p.Name()] = p.Name()
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}

func TestInstance_writtenFile_isReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := parse(t, "database: {url: postgres://x}\nsources: {mine: {provider: shopify, accounts: "+
		"[a.myshopify.com], secrets: [{name: n, value: s3cret of a test}]}}")
	c.Sources["stripe"] = config.DemoSources()["stripe"]
	want := &config.Instance{DatabaseURL: "postgres://x?a=b&c=d", NATSURL: "nats://x", IngestURL: "http://i",
		AdminURL: "http://a", PID: 7, Sources: c.InstanceSources()}
	if _, err := config.ReadInstance(dir); err == nil || !strings.Contains(err.Error(), "postern dev --dir "+dir) {
		t.Errorf("no instance: %v", err)
	}
	for range 2 {
		must(t, config.WriteInstance(dir, want))
	}
	if text, err := os.ReadFile(filepath.Join(dir, config.InstanceFile)); err != nil ||
		!strings.Contains(string(text), `"postgres://x?a=b&c=d"`) {
		t.Errorf("a URL can be copied out of the file: %v\n%s", err, text)
	}
	got, err := config.ReadInstance(dir)
	must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if s := got.Sources["mine"]; s.Secret != "" || s.Account != "a.myshopify.com" {
		t.Errorf("a real secret must not be written: %+v", s)
	}
	if got.Sources["stripe"].Secret != config.DemoStripeSecret {
		t.Errorf("the demo secret is missing: %+v", got.Sources["stripe"])
	}
}
