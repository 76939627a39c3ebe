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
	const source = db + "sources:\n  a:\n    provider: stripe\n    "
	const secret = source + "secrets: [{name: n, value: whsec_secret_of_a_test}]\n    "
	checkRows(t, with("%\n"), map[string][]string{
		"not YAML":    {"a: [", "line 1"},
		"no database": {"log: {}", "database.url: is not set", "POSTERN_DATABASE_URL"},
		"a list": {"- a",
			"line 1: sequence was used where mapping is expected; write settings as `name: value`"},
		"a word": {"database",
			"line 1: string was used where mapping is expected; write settings as `name: value`"},
		"unset reference": {"database:\n  url: ${NOWHERE}", "line 2", "${NOWHERE}: the variable is not set"},
	})
	checkRows(t, with(db+"%\n"), map[string][]string{
		"unknown key": {"ingest:\n  lissen: x", "line 3: ingest.lissen: unknown field", `"lissen"`,
			"did you mean listen?"},
		"far from any key": {"ingest:\n  colour: x",
			`line 3: ingest.colour: unknown field "colour"; docs/reference/configuration.md`},
		"nested key": {"sources:\n  a:\n    provider: stripe\n    secrets:\n      - {name: n, valeu: v}",
			`line 6: sources.a.secrets.0.valeu: unknown field "valeu"; did you mean value?`},
		"doubled key": {"log: {}\nlog: {}", "line 3", "log"},
		"wrong kind":  {"ingest:\n  queue: many", "line 3", "a text was used where a whole number is expected"},
		"mapping for text": {"sources:\n  a:\n    provider: hmac\n    api: {header: {a: b}}",
			"line 5: sources.a.api.header: a text is expected here"},
		"bare number": {"ingest: {deadline: 5}",
			`line 2: ingest.deadline: "5" is not a duration with a unit: write e.g. 5s`},
		"not a size": {"ingest:\n\n  max_body_bytes: 4XB", "4XB", "write e.g. 65536"},
		"too small": {"ingest:\n  max_body_bytes: 5",
			"line 3: ingest.max_body_bytes: 5 is too small: the minimum is 1KiB"},
		"two at once":        {"log: {level: loud}\ningest: {listen: x}", "line 2: log.level", "line 3: ingest.listen"},
		"admin without port": {`admin: {listen: "0.0.0.0"}`, "line 2: admin.listen", "host:port"},
		"admin client CA alone": {"admin: {tls: {client_ca: ca.pem}}", "line 2: admin.tls.cert",
			"are required together"},
		"bare template": {"sources:\n  a:\n    scheme:\n      message: {timestamp}.{body}", "line 5: ",
			`is quoted: "{timestamp}.{body}"`},
		"indented too far": {"sources:\n  shop:\n    provider: stripe\n     secrets: []", "line 4: ",
			"settings of one level begin in the same column"},
		"indented too little": {"ingest:\n    queue: 5\n   listen: 'x:1'", "line 4: ",
			"settings of one level begin in the same column"},
		"indented beside a map": {"ingest:\n    tls: {cert: a}\n   listen: 'x:1'", "begin in the same column"},
		"indented by a tab":     {"sources:\n\tshop: {}", "line 3: YAML allows no tab here"},
		"a tab among spaces":    {"ingest:\n  queue: 5\n  \tlisten: 'x:1'", "line 4: YAML allows no tab here"},
		"no comma": {"sources:\n  a: {provider: stripe secrets: []}", "line 3: ",
			"with a comma between settings"},
		"no closing bracket": {"sources:\n  a: {provider: stripe", "line 3: ", "a closing bracket"},
		"a mapping for a list": {"sources:\n  a:\n    provider: stripe\n    secrets: {name: b}", "line 5: ",
			"begin each element with a dash"},
		"one key twice": {"sources:\n  a: {}\n  a: {}", `line 4: mapping key "a" already defined at line 3`},
		"provider in capitals": {"sources:\n  a:\n    provider: Stripe",
			`line 4: sources.a.provider: provider "Stripe" does not exist; did you mean stripe?`},
		"provider misspelt": {"sources:\n  a:\n    provider: shoppify", "did you mean shopify?"},
		"provider of no kind": {"sources:\n  a:\n    provider: pipedrive",
			`"pipedrive" does not exist: name one of adyen`, "use provider: hmac", "docs/reference/senders.md"},
		"two documents":      {"---\nlog: {}", "one"},
		"half a certificate": {"ingest: {tls: {cert: x}}", "line 2: ingest.tls.key", "are required together"},
		"bad source name": {"sources:\n  Upper: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}", "line 3", `source name "Upper"`},
		"unknown provider": {"sources:\n  a:\n    provider: paypal\n    secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]", "line 4: sources.a.provider", "name one of", " hmac,", " stripe"},
		"empty source":      {"sources:\n  a:", "line 3: sources.a.provider"},
		"file not there":    {"nats:\n  credentials: /nowhere.creds", "line 3: nats.credentials: open /nowhere.creds"},
		"folder for a file": {"nats:\n  tls:\n    ca: /", "line 4: nats.tls.ca: read /: is a directory"},
		"body over the queue": {"ingest: {queue_bytes: 1MiB}",
			"line 2: ingest.max_body_bytes: 4MiB is more than ingest.queue_bytes (1MiB)"},
		"body of a source": {"ingest: {queue_bytes: 8MiB}\nsources:\n  a:\n    provider: stripe\n    secrets: " +
			"[{name: n, value: whsec_secret_of_a_test}]\n    max_body_bytes: 9MiB",
			"line 7: sources.a.max_body_bytes: 9MiB is more than ingest.queue_bytes (8MiB)"},
		"batch over the locks": {"processor: {batch: 2001}",
			"line 2: processor.batch: 2001 is too large: the maximum is 2000"},
		"proxy of no kind": {"ingest:\n  trusted_proxies:\n    - 127.0.0.1\n    - proxy",
			`line 5: ingest.trusted_proxies.1: "proxy" is not an address`},
		"address as IPv6": {"ingest: {trusted_proxies: ['::ffff:10.0.0.1']}", "line 2: ingest.trusted_proxies.0",
			"write 10.0.0.1"},
		"zone of an address": {"ingest: {trusted_proxies: ['fe80::1%eth0']}", "names a network interface",
			"write fe80::1"},
		"no connection": {"ingest:\n  max_connections: -1",
			"line 3: ingest.max_connections: -1 is too small: the minimum is 1"},
		"no cron": {"schedules:\n  a: {job: replay}",
			"line 3: schedules.a.cron: is not set: write when it is due"},
		"bare cron":      {"schedules:\n  a:\n    cron: */5 * * * *", "line 4", "begins with {, [ or * is quoted"},
		"bare macro":     {"schedules:\n  a:\n    cron: @daily", "line 4", `is quoted: "@daily"`},
		"no job":         {"schedules:\n  a: {cron: '@daily'}", "line 3: schedules.a.job: is not set: name the job"},
		"empty schedule": {"schedules:\n  a:", "line 3: schedules.a.job: is not set"},
		"bad cron": {"schedules:\n  a:\n    job: replay\n    cron: every day",
			`line 5: schedules.a.cron: "every day" is not a cron expression: write five fields`},
		"cron of no day": {"schedules:\n  a:\n    job: replay\n    cron: 0 0 31 2 *", "line 5: schedules.a.cron",
			"is never due"},
		"unknown zone": {"schedules:\n  a:\n    job: replay\n    cron: 0 0 1 2 *\n    time_zone: Berlin",
			`line 6: schedules.a.time_zone: time zone "Berlin" is unknown`},
		"bad overlap": {"schedules:\n  a: {job: replay, cron: '@daily', overlap: kill}",
			`schedules.a.overlap: "kill" is not a known value: write one of skip, queue`},
		"bad schedule name": {"schedules:\n  Daily: {job: replay, cron: '@daily'}", "line 3",
			`schedule name "Daily"`},
		"shared by schedules": {"schedules:\n  a-b: {job: replay, cron: '@daily'}\n  a_b: {job: replay, cron: " +
			"'@daily'}", "POSTERN_SCHEDULES_A_B_", "line 4"},
		"unknown in schedule": {"schedules:\n  a: {job: replay, corn: '@daily'}", "line 3: schedules.a.corn",
			"did you mean cron?"},
		"shared variables": {"sources:\n  a-b: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}\n  a_b: {provider: stripe, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}", "POSTERN_SOURCES_A_B_", "line 4"},
	})
	checkRows(t, with(source+"%\n"), map[string][]string{
		"no secret": {"", "sources.a.secrets: is not set: a source needs at least one"},
		"two ways":  {"secrets:\n      - {name: n, value: v, env: V}", "line 6: sources.a.secrets.0", "exactly one"},
		"no way":    {"secrets:\n      - {name: n}", "line 6", "exactly one"},
		"one name twice": {"secrets: [{name: n, value: whsec_secret_of_a_test}, {name: n, value: " +
			"whsec_other_secret_of_a_test}]", "line 5: sources.a.secrets: two elements have the same name"},
		"secret not set":   {"secrets: [{name: n, env: NOWHERE}]", "line 5", "the variable NOWHERE is not set"},
		"secret not there": {"secrets: [{name: n, file: /nowhere}]", "line 5", "/nowhere"},
		"demo secret":      {"secrets: [{name: n, value: whsec_mine_for_postern_dev}]", "line 5", "demo secret"},
	})
	checkRows(t, with(secret+"%\n"), map[string][]string{
		"asks for nothing": {"redact_on_request: true",
			"line 6: sources.a.redact_on_request: the provider stripe sends no deletion requests"},
		"bits beyond": {"allow_from: [192.0.2.0/24, 10.0.0.1/8]",
			"line 6: sources.a.allow_from.1: 10.0.0.1/8 is an address inside a network: write 10.0.0.0/8 for the " +
				"network, or 10.0.0.1"},
		"IPv4 as IPv6": {"allow_from: ['::ffff:10.0.0.0/104']",
			"line 6: sources.a.allow_from.0: ::ffff:10.0.0.0/104 is an IPv4 network: write 10.0.0.0/8"},
		"burst alone": {"rate_limit: {burst: 5}",
			"line 6: sources.a.rate_limit.burst: is set, but per_second is not"},
		"rate below one": {"rate_limit: {per_second: -1}",
			"line 6: sources.a.rate_limit.per_second: -1 is too small: the minimum is 1"},
	})
	const schedule = db + "schedules: {a: {job: replay, cron: '@daily'}}\n"
	for variable, want := range map[string]string{
		"POSTERN_PROCESSOR_WORKERS=65":               "POSTERN_PROCESSOR_WORKERS: 65 is too large: the maximum is 64",
		"POSTERN_INGEST_DEADLINE=5":                  `POSTERN_INGEST_DEADLINE: "5" is not a duration`,
		"POSTERN_INGEST_TRUSTED_PROXIES=10.0.0.0/33": `"10.0.0.0/33" is not a network`,
		"POSTERN_SCHEDULES_A_TIME_ZONE=Local":        `POSTERN_SCHEDULES_A_TIME_ZONE: time zone "Local" differs`,
		"POSTERN_SCHEDULES_A_PARAMETERS=source":      `POSTERN_SCHEDULES_A_PARAMETERS: "source" is not name=value`,
	} {
		checkRejectedBy(t, schedule, []string{variable}, want)
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
