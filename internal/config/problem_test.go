package config_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

func TestParse_problem_namesItsLine(t *testing.T) {
	t.Parallel()
	const db = "database: {url: postgres://x}\n"
	source := func(body string) string { return db + "sources:\n  a:\n    provider: stripe\n" + body }
	for name, tc := range map[string]struct {
		yaml string
		env  []string
		want []string
	}{
		"unknown key": {db + "ingest:\n  lissen: x\n", nil, []string{"line 3: ingest.lissen: unknown field",
			`"lissen"`, "did you mean listen?"}},
		"far from any key": {db + "ingest:\n  colour: x\n", nil,
			[]string{`line 3: ingest.colour: unknown field "colour"; docs/reference/configuration.md`}},
		"nested key": {db + "sources:\n  a:\n    provider: stripe\n    secrets:\n      - {name: n, valeu: " +
			"v}\n", nil, []string{`line 6: sources.a.secrets.0.valeu: unknown field "valeu"; did you mean value?`}},
		"doubled key": {db + "log: {}\nlog: {}\n", nil, []string{"line 3", "log"}},
		"not YAML":    {"a: [\n", nil, []string{"line 1"}},
		"wrong kind": {db + "ingest:\n  queue: many\n", nil,
			[]string{"line 3", "a text was used where a whole number is expected"}},
		"mapping for text": {db + "sources:\n  a:\n    provider: hmac\n    api: {header: {a: b}}\n", nil,
			[]string{"line 5: sources.a.api.header: a text is expected here"}},
		"bare number": {db + "ingest: {deadline: 5}\n", nil,
			[]string{`line 2: ingest.deadline: "5" is not a duration with a unit: write e.g. 5s`}},
		"not a size": {db + "ingest:\n\n  max_body_bytes: 4XB\n", nil, []string{"4XB", "write e.g. 65536"}},
		"too small": {db + "ingest:\n  max_body_bytes: 5\n", nil,
			[]string{"line 3: ingest.max_body_bytes: 5 is too small: the minimum is 1KiB"}},
		"too large by env": {db, []string{"POSTERN_PROCESSOR_WORKERS=65"},
			[]string{"POSTERN_PROCESSOR_WORKERS: 65 is too large: the maximum is 64"}},
		"unreadable env": {db, []string{"POSTERN_INGEST_DEADLINE=5"},
			[]string{`POSTERN_INGEST_DEADLINE: "5" is not a duration`}},
		"two at once": {db + "log: {level: loud}\ningest: {listen: x}\n", nil,
			[]string{"line 2: log.level", "line 3: ingest.listen"}},
		"admin without port": {db + "admin: {listen: \"0.0.0.0\"}\n", nil,
			[]string{"line 2: admin.listen", "host:port"}},
		"admin client CA alone": {db + "admin: {tls: {client_ca: ca.pem}}\n", nil,
			[]string{"line 2: admin.tls.cert", "are required together"}},
		"no database": {"log: {}\n", nil, []string{"database.url: is not set", "POSTERN_DATABASE_URL"}},
		"bare template": {db + "sources:\n  a:\n    scheme:\n      message: {timestamp}.{body}\n", nil,
			[]string{"line 5: ", `is quoted: "{timestamp}.{body}"`}},
		"indented too far": {db + "sources:\n  shop:\n    provider: stripe\n     secrets: []\n", nil,
			[]string{"line 4: ", "settings of one level begin in the same column"}},
		"indented too little": {db + "ingest:\n    queue: 5\n   listen: 'x:1'\n", nil,
			[]string{"line 4: ", "settings of one level begin in the same column"}},
		"indented beside a map": {db + "ingest:\n    tls: {cert: a}\n   listen: 'x:1'\n", nil,
			[]string{"begin in the same column"}},
		"indented by a tab": {db + "sources:\n\tshop: {}\n", nil,
			[]string{"line 3: YAML allows no tab here"}},
		"a tab among spaces": {db + "ingest:\n  queue: 5\n  \tlisten: 'x:1'\n", nil,
			[]string{"line 4: YAML allows no tab here"}},
		"no comma": {db + "sources:\n  a: {provider: stripe secrets: []}\n", nil,
			[]string{"line 3: ", "with a comma between settings"}},
		"no closing bracket": {db + "sources:\n  a: {provider: stripe\n", nil,
			[]string{"line 3: ", "a closing bracket"}},
		"a mapping for a list": {db + "sources:\n  a:\n    provider: stripe\n    secrets: {name: b}\n", nil,
			[]string{"line 5: ", "begin each element with a dash"}},
		"one key twice": {db + "sources:\n  a: {}\n  a: {}\n", nil,
			[]string{`line 4: mapping key "a" already defined at line 3`}},
		"provider in capitals": {db + "sources:\n  a:\n    provider: Stripe\n", nil,
			[]string{`line 4: sources.a.provider: provider "Stripe" does not exist; did you mean stripe?`}},
		"provider misspelt": {db + "sources:\n  a:\n    provider: shoppify\n", nil,
			[]string{"did you mean shopify?"}},
		"provider of no kind": {db + "sources:\n  a:\n    provider: pipedrive\n", nil,
			[]string{`"pipedrive" does not exist: name one of adyen`, "use provider: hmac",
				"docs/reference/senders.md"}},
		"two documents": {db + "---\nlog: {}\n", nil, []string{"one"}},
		"a list": {"- a\n", nil, []string{"line 1: sequence was used where mapping is expected; " +
			"write settings as `name: value`"}},
		"a word": {"database\n", nil, []string{"line 1: string was used where mapping is expected; " +
			"write settings as `name: value`"}},
		"half a certificate": {db + "ingest: {tls: {cert: x}}\n", nil,
			[]string{"line 2: ingest.tls.key", "are required together"}},
		"unset reference": {"database:\n  url: ${NOWHERE}\n", nil,
			[]string{"line 2", "${NOWHERE}: the variable is not set"}},
		"bad source name": {db + "sources:\n  Upper: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}\n", nil, []string{"line 3", `source name "Upper"`}},
		"unknown provider": {db + "sources:\n  a:\n    provider: paypal\n    secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]\n", nil, []string{"line 4: sources.a.provider", "name one of", " hmac,",
			" stripe"}},
		"no secret":    {source(""), nil, []string{"sources.a.secrets: is not set: a source needs at least one"}},
		"empty source": {db + "sources:\n  a:\n", nil, []string{"line 3: sources.a.provider"}},
		"two ways": {source("    secrets:\n      - {name: n, value: v, env: V}\n"), nil,
			[]string{"line 6: sources.a.secrets.0", "exactly one"}},
		"no way": {source("    secrets:\n      - {name: n}\n"), nil, []string{"line 6", "exactly one"}},
		"one name twice": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}, {name: n, value: " +
			"whsec_other_secret_of_a_test}]\n"), nil, []string{"line 5: sources.a.secrets: two elements have the " +
			"same name"}},
		"secret not set": {source("    secrets: [{name: n, env: NOWHERE}]\n"), nil,
			[]string{"line 5", "the variable NOWHERE is not set"}},
		"secret not there": {source("    secrets: [{name: n, file: /nowhere}]\n"), nil,
			[]string{"line 5", "/nowhere"}},
		"demo secret": {source("    secrets: [{name: n, value: whsec_mine_for_postern_dev}]\n"), nil,
			[]string{"line 5", "demo secret"}},
		"file not there": {db + "nats:\n  credentials: /nowhere.creds\n", nil,
			[]string{"line 3: nats.credentials: open /nowhere.creds"}},
		"folder for a file": {db + "nats:\n  tls:\n    ca: /\n", nil,
			[]string{"line 4: nats.tls.ca: read /: is a directory"}},
		"body over the queue": {db + "ingest: {queue_bytes: 1MiB}\n", nil,
			[]string{"line 2: ingest.max_body_bytes: 4MiB is more than ingest.queue_bytes (1MiB)"}},
		"body of a source": {db + "ingest: {queue_bytes: 8MiB}\nsources:\n  a:\n    provider: stripe\n    secrets: " +
			"[{name: n, value: whsec_secret_of_a_test}]\n    max_body_bytes: 9MiB\n",
			nil, []string{"line 7: sources.a.max_body_bytes: 9MiB is more than ingest.queue_bytes (8MiB)"}},
		"asks for nothing": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    " +
			"redact_on_request: true\n"), nil, []string{"line 6: sources.a.redact_on_request: the provider stripe " +
			"sends no deletion requests"}},
		"batch over the locks": {db + "processor: {batch: 2001}\n", nil,
			[]string{"line 2: processor.batch: 2001 is too large: the maximum is 2000"}},
		"proxy of no kind": {db + "ingest:\n  trusted_proxies:\n    - 127.0.0.1\n    - proxy\n", nil,
			[]string{`line 5: ingest.trusted_proxies.1: "proxy" is not an address`}},
		"bits beyond": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    allow_from: " +
			"[192.0.2.0/24, 10.0.0.1/8]\n"), nil, []string{"line 6: sources.a.allow_from.1: 10.0.0.1/8 is an address " +
			"inside a network: write 10.0.0.0/8 for the network, or 10.0.0.1"}},
		"IPv4 as IPv6": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    allow_from: " +
			"['::ffff:10.0.0.0/104']\n"), nil, []string{"line 6: sources.a.allow_from.0: ::ffff:10.0.0.0/104 is an " +
			"IPv4 network: write 10.0.0.0/8"}},
		"address as IPv6": {db + "ingest: {trusted_proxies: ['::ffff:10.0.0.1']}\n", nil,
			[]string{"line 2: ingest.trusted_proxies.0", "write 10.0.0.1"}},
		"zone of an address": {db + "ingest: {trusted_proxies: ['fe80::1%eth0']}\n", nil,
			[]string{"names a network interface", "write fe80::1"}},
		"no network": {db, []string{"POSTERN_INGEST_TRUSTED_PROXIES=10.0.0.0/33"},
			[]string{`"10.0.0.0/33" is not a network`}},
		"burst alone": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    rate_limit: " +
			"{burst: 5}\n"), nil, []string{"line 6: sources.a.rate_limit.burst: is set, but per_second is not"}},
		"rate below one": {source("    secrets: [{name: n, value: whsec_secret_of_a_test}]\n    rate_limit: " +
			"{per_second: -1}\n"), nil, []string{"line 6: sources.a.rate_limit.per_second: -1 is too small: the " +
			"minimum is " +
			"1"}},
		"no connection": {db + "ingest:\n  max_connections: -1\n", nil,
			[]string{"line 3: ingest.max_connections: -1 is too small: the minimum is 1"}},
		"no cron": {db + "schedules:\n  a: {job: replay}\n", nil,
			[]string{"line 3: schedules.a.cron: is not set: write when it is due"}},
		"bare cron": {db + "schedules:\n  a:\n    cron: */5 * * * *\n", nil,
			[]string{"line 4", "begins with {, [ or * is quoted"}},
		"bare macro": {db + "schedules:\n  a:\n    cron: @daily\n", nil,
			[]string{"line 4", `is quoted: "@daily"`}},
		"no job": {db + "schedules:\n  a: {cron: '@daily'}\n", nil,
			[]string{"line 3: schedules.a.job: is not set: name the job"}},
		"empty schedule": {db + "schedules:\n  a:\n", nil, []string{"line 3: schedules.a.job: is not set"}},
		"bad cron": {db + "schedules:\n  a:\n    job: replay\n    cron: every day\n", nil,
			[]string{`line 5: schedules.a.cron: "every day" is not a cron expression: write five fields`}},
		"cron of no day": {db + "schedules:\n  a:\n    job: replay\n    cron: 0 0 31 2 *\n", nil,
			[]string{"line 5: schedules.a.cron", "is never due"}},
		"unknown zone": {db + "schedules:\n  a:\n    job: replay\n    cron: 0 0 1 2 *\n    time_zone: " +
			"Berlin\n", nil, []string{`line 6: schedules.a.time_zone: time zone "Berlin" is unknown`}},
		"zone by env": {db + "schedules:\n  a: {job: replay, cron: '@daily'}\n",
			[]string{"POSTERN_SCHEDULES_A_TIME_ZONE=Local"}, []string{"POSTERN_SCHEDULES_A_TIME_ZONE: time zone",
				"differs"}},
		"parameters by env": {db + "schedules:\n  a: {job: replay, cron: '@daily'}\n",
			[]string{"POSTERN_SCHEDULES_A_PARAMETERS=source"},
			[]string{`POSTERN_SCHEDULES_A_PARAMETERS: "source" is not name=value`}},
		"bad overlap": {db + "schedules:\n  a: {job: replay, cron: '@daily', overlap: kill}\n", nil,
			[]string{`schedules.a.overlap: "kill" is not a known value: write one of skip, queue`}},
		"bad schedule name": {db + "schedules:\n  Daily: {job: replay, cron: '@daily'}\n", nil,
			[]string{"line 3", `schedule name "Daily"`}},
		"shared by schedules": {db + "schedules:\n  a-b: {job: replay, cron: '@daily'}\n  a_b: {job: replay, cron: " +
			"'@daily'}\n", nil, []string{"POSTERN_SCHEDULES_A_B_", "line 4"}},
		"unknown in schedule": {db + "schedules:\n  a: {job: replay, corn: '@daily'}\n", nil,
			[]string{"line 3: schedules.a.corn", "did you mean cron?"}},
		"shared variables": {db + "sources:\n  a-b: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}\n  a_b: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}\n", nil, []string{"POSTERN_SOURCES_A_B_", "line 4"}},
	} {
		_, err := config.Parse([]byte(tc.yaml), environment(tc.env...))
		if err == nil || strings.Contains(err.Error(), "\t") || strings.Contains(err.Error(), "at [") {
			t.Errorf("%s: accepted, or a tab or a place in brackets is in:\n%v", name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is missing in:\n%v", name, want, err)
			}
		}
	}
}

// One load reports all errors, each once, in the order of the file.
func TestParse_severalProblems_areAllReported(t *testing.T) {
	t.Parallel()
	const file = `log: {level: loud, formt: json}
ingest:
  queue: many
  lissen: x
  deadline: ${NOWHERE}
  tls: {cert: /nowhere.crt, key: /nowhere.key}
sources:
  a:
    provider: stripe
    secrets: [{name: n, file: /nowhere}]
  b:
    provider: shopify
    secrets: [{name: n, value: whsec_secret_of_a_test}]
  c:
    provder: stripe
    secrets: {}
  d:
`
	_, err := config.Parse([]byte(file), environment("POSTERN_PROCESSOR_WORKERS=x"))
	if err == nil {
		t.Fatal("accepted")
	}
	want := []string{"database.url: is not set", "POSTERN_PROCESSOR_WORKERS",
		`line 1: log.formt: unknown field "formt"`,
		"line 3: ", `line 4: ingest.lissen: unknown field "lissen"`,
		"line 5: ${NOWHERE}", "line 6: ingest.tls.cert", "line 6: ingest.tls.key",
		`line 10: sources.a.secrets.0: secret "n"`, "line 11: sources.b", "line 14: sources.c.provider",
		`line 15: sources.c.provder: unknown field "provder"; did you mean provider?`, "line 16: ",
		"line 17: sources.d.provider", "line 17: sources.d.secrets"}
	got := strings.Split(err.Error(), "\n")
	if len(got) != len(want) {
		t.Errorf("%d problems, want %d:\n%v", len(got), len(want), err)
	}
	for _, text := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, text) }) {
			t.Errorf("%q is missing in:\n%v", text, err)
		}
	}
}

func TestParse_problem_showsNoSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"database: {url: 'postgres://u:s3cret@h/d'}\nsources:\n  a:\n    provider: stripe\n    secrets:\n      - " +
			"name: n\n        valeu: s3cret\n",
		"database: {url: 'postgres://u:s3cret@h/d'}\nsources:\n  a:\n    secrets:\n      - {name: n, value: s3cret, " +
			"env: X}\n",
		"database: {url: 'postgres://u:s3cret@h/d', max_connections: x}\n",
		"database: {url: 'postgres://u:s3cret@h/d'\n",
		"sources: s3cret\n",
		"sources: {a: {secrets: s3cret}}\n",
		"sources: {a: {secrets: [s3cret]}}\n",
	} {
		checkRejected(t, text, "")
	}
}
