// Package config reads, checks and watches the settings of every Postern process: one strict YAML
// file, overridden by POSTERN_... variables. Commands and daemons load it at their start. It never
// writes the file and never prints a secret.
package config

import (
	"time"

	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// Config holds all settings. The zero value is valid after Complete, which fills in the defaults.
type Config struct {
	// Database is the PostgreSQL database that stores events and the mirror.
	Database Database `yaml:"database"`
	// NATS is the connection to JetStream.
	NATS NATS `yaml:"nats"`
	// Stream limits what JetStream stores. These limits do not apply to the log in PostgreSQL,
	// which is the authoritative store.
	Stream Stream `yaml:"stream"`
	// Ingest is the HTTP endpoint to which providers send deliveries.
	Ingest Ingest `yaml:"ingest"`
	// Rejections limits how many rejected deliveries Postern stores, and how much of each.
	Rejections Rejections `yaml:"rejections"`
	// Retention sets after how many days Postern deletes data. By default, Postern keeps all data.
	Retention Retention `yaml:"retention"`
	// Processor configures how events are applied to the mirror.
	Processor Processor `yaml:"processor"`
	// Admin is the JSON API for operators.
	Admin Admin `yaml:"admin"`
	// Console is the web console for operators. It is served on the admin address, below /console/.
	Console Console `yaml:"console"`
	// Approvals says who may approve runs and effects.
	Approvals Approvals `yaml:"approvals"`
	// Log configures the log that the process writes to standard error.
	Log Log `yaml:"log"`
	// Sources are the endpoints to which providers send deliveries, by name. The name is the last
	// part of the endpoint's path: /webhooks/NAME. It consists of lower-case letters, digits, - and
	// _, and has at most 63 characters. The name identifies the source permanently: a renamed
	// source is a new one.
	Sources map[string]*Source `yaml:"sources" validate:"dive,keys,source_name,endkeys,required"`

	// Schedules are jobs that processors start at planned times, by name. A name consists of
	// lower-case letters, digits, - and _, and has at most 63 characters. Each planned time starts
	// one run, whatever the number of processors.
	Schedules map[string]*Schedule `yaml:"schedules" validate:"dive,keys,schedule_name,endkeys,required"`

	// Destinations are the external services that effects call, by name.
	Destinations map[string]*Destination `yaml:"destinations" validate:"dive,keys,schedule_name,endkeys,required"`
	// Effects are rules, by name. A rule says what Postern does, once, when an object changes.
	// Postern inserts an effect into a ledger in the transaction that changes the object. It then
	// executes the effect's steps in order. Put texts that contain {{ into quotes.
	Effects map[string]*Effect `yaml:"effects" validate:"dive,keys,schedule_name,endkeys,required"`
	// Forward sends the changes of objects to HTTP addresses, by name. Each message is one of the
	// feed postern.changes, signed. docs/how-to/receive-changes-by-webhook.md has receivers.
	Forward map[string]*Forward `yaml:"forward" validate:"dive,keys,schedule_name,endkeys,required"`
	// Notify are alerts, by name. An alert tells a recipient about work that needs an operator.
	// Processors check every 30 seconds. Postern sends each alert at least once.
	Notify map[string]*Notification `yaml:"notify" validate:"dive,keys,schedule_name,endkeys,required"`

	fileTracker *fileTracker
	// unusedVariables are warnings about variables that set nothing.
	unusedVariables []string
	// locator finds the line or variable of a setting.
	locator *locator
}

// Database is the PostgreSQL database that stores events and the mirror. It requires PostgreSQL 15
// or newer.
type Database struct {
	// URL of PostgreSQL, e.g. postgres://user:password@host/postern. Separate several hosts by
	// commas: Postern then connects to the primary. The URL is required, except for `postern dev`,
	// which starts its own PostgreSQL cluster if no URL is set.
	URL settings.URL `yaml:"url"`
	// MaintenanceURL is the URL for migrations. Its role must be allowed to own tables. Leave it
	// empty to use url.
	MaintenanceURL settings.URL `yaml:"maintenance_url"`
	// MaxConnections is the maximum number of connections that one process opens for deliveries and
	// live events. All processes share the server's max_connections, so raise this value only if
	// metrics show that requests wait for a connection. The admin API, maintenance and runs use a
	// few additional connections.
	MaxConnections int `yaml:"max_connections" default:"16" validate:"gte=2,lte=1000"`
}

// NATS is the connection to JetStream. docs/how-to/install.md lists the supported NATS releases.
type NATS struct {
	// URL of the servers, separated by commas, e.g. nats://a:4222,nats://b:4222. If it is empty,
	// `postern dev` and `postern serve` run JetStream inside the process. The gateway and processor
	// commands require it.
	URL settings.URL `yaml:"url"`
	// Credentials is the credentials file (.creds) of the account.
	Credentials string `yaml:"credentials"`
	// TLS is required in two cases: a public authority did not sign the servers' certificate, or
	// the servers require a client certificate.
	TLS ClientTLS `yaml:"tls"`
	// Replicas is the number of servers that store each message: 3 in a cluster, 1 on a single
	// server.
	Replicas int `yaml:"replicas" default:"1" validate:"gte=1,lte=5"`
}

// ClientTLS are the PEM files for TLS connections to a server.
type ClientTLS struct {
	// CA is the file with the certificates of the trusted authorities. Leave it empty to trust
	// those of the system.
	CA string `yaml:"ca"`
	// Cert is the file with Postern's client certificate. Leave it empty if the server requires
	// none.
	Cert string `yaml:"cert" validate:"required_with=Key"`
	// Key is the file with the private key of the client certificate.
	Key string `yaml:"key" validate:"required_with=Cert"`
}

// ServerTLS are the PEM files for serving TLS.
type ServerTLS struct {
	// Cert is the file with the certificate. Leave it empty to serve plain HTTP behind a proxy that
	// terminates TLS.
	Cert string `yaml:"cert" validate:"required_with=Key"`
	// Key is the file with the private key of the certificate.
	Key string `yaml:"key" validate:"required_with=Cert"`
}

// Stream limits what JetStream keeps of each of the two feeds. If a stream drops an event before it
// is applied, the republisher publishes it again.
type Stream struct {
	// MaxMessages is the maximum number of messages in a stream.
	MaxMessages int64 `yaml:"max_messages" default:"1000000" validate:"gte=1000"`
	// MaxBytes is the maximum size of a stream. The server must reserve that much disk space for
	// streams.
	MaxBytes settings.Bytes `yaml:"max_bytes" default:"2GiB" validate:"gte=1048576"`
	// MaxAge is how long a stream keeps a message.
	MaxAge time.Duration `yaml:"max_age" default:"24h" validate:"gte=60000000000"`
}

// Ingest is the HTTP endpoint to which providers send deliveries.
type Ingest struct {
	// Listen is the address on which the gateway accepts deliveries.
	Listen string `yaml:"listen" default:"127.0.0.1:8080" validate:"hostport"`
	// TLS makes the gateway serve HTTPS itself.
	TLS ServerTLS `yaml:"tls"`
	// MaxBodyBytes is the size of the largest accepted body. A larger body gets status 413. Bodies
	// from Stripe and Shopify are far smaller than the default.
	MaxBodyBytes settings.Bytes `yaml:"max_body_bytes" default:"4MiB" validate:"gte=1024,lte=268435456"`
	// Deadline is how long a delivery may wait for its commit. After that, the gateway responds
	// with 503, and the provider sends the delivery again. Keep it below the provider's own timeout
	// (Shopify: 5 s).
	Deadline time.Duration `yaml:"deadline" default:"4s" validate:"gte=50000000"`
	// DrainDelay is how long a gateway still accepts deliveries after a stop signal. During that
	// time, /readyz reports not ready and each response closes its connection, so that load
	// balancers switch to other gateways. Make it longer than a load balancer needs to switch.
	// Kubernetes needs some seconds; health probes need their period times their threshold. 1ms is
	// practically no delay.
	DrainDelay time.Duration `yaml:"drain_delay" default:"5s" validate:"gte=1000000,lte=300000000000"`
	// Queue is the maximum number of verified deliveries that wait for a commit. Additional
	// deliveries get status 503 immediately. If there are several sources, each may use at most
	// half of the queue, so that the others always have capacity.
	Queue int `yaml:"queue" default:"4096" validate:"gte=1"`
	// QueueBytes is the maximum size of verified bodies in memory. If there are several sources,
	// each may use at most half of it. Bodies that are still arriving or not yet verified may use
	// additional memory: a quarter of this size, plus one body of the largest size. Above that, the
	// gateway ends the request that has taken longest with status 503, if it has taken more than a
	// second.
	QueueBytes settings.Bytes `yaml:"queue_bytes" default:"256MiB" validate:"gte=1048576"`
	// BatchMax is the maximum number of deliveries in one commit. The gateway does not wait until a
	// batch is full.
	BatchMax int `yaml:"batch_max" default:"256" validate:"gte=1,lte=10000"`
	// BatchBytes is the maximum size of the bodies in one commit. A single delivery that is larger
	// gets its own commit.
	BatchBytes settings.Bytes `yaml:"batch_bytes" default:"8MiB" validate:"gte=1024"`
	// Writers is the number of commits that run at the same time. A higher number helps only if
	// commits are slow, for example with a synchronous standby.
	Writers int `yaml:"writers" default:"2" validate:"gte=1,lte=64"`
	// MaxConnections is the maximum number of open connections. Additional connections wait in the
	// kernel's queue. If you raise it, also raise the process's limit for open files.
	MaxConnections int `yaml:"max_connections" default:"20000" validate:"gte=1"`
	// TrustedProxies are the addresses or networks of the proxies in front of the gateway, e.g.
	// 127.0.0.1 or 10.0.0.0/8. For a request from one of them, the gateway takes the sender's
	// address from X-Forwarded-For: the last address in it that is not a trusted proxy. Leave it
	// empty if there is no proxy: the sender is then the connecting address, and headers are
	// ignored. Each proxy named here must append to that header or replace it. If a proxy passes on
	// the header unchanged, senders can claim any address.
	TrustedProxies []string `yaml:"trusted_proxies" validate:"dive,network"`
	// Spool stores deliveries on the gateway's own disk while PostgreSQL is unavailable.
	Spool Spool `yaml:"spool"`
	// MaxHeaderBytes is the maximum size of a request's first line and headers. Larger ones get
	// status 431. The gateway may accept up to 4 KiB more.
	MaxHeaderBytes settings.Bytes `yaml:"max_header_bytes" default:"32KiB" validate:"gte=4096,lte=1048576"`
	// HeaderTimeout is how long a sender may take for the request's headers.
	HeaderTimeout time.Duration `yaml:"header_timeout" default:"5s" validate:"gte=10000000"`
	// ReadTimeout is how long a sender may take for the whole request.
	ReadTimeout time.Duration `yaml:"read_timeout" default:"15s" validate:"gte=10000000"`
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout time.Duration `yaml:"idle_timeout" default:"2m" validate:"gte=10000000"`
}

// Spool stores verified deliveries on the gateway's own disk while PostgreSQL is unavailable, and
// appends them to the log afterwards. The gateway acknowledges a delivery once it is synced to that
// disk. Data in the spool is as safe as that one disk.
type Spool struct {
	// Dir is a folder on a persistent disk. Each gateway needs its own folder. Leave it empty to
	// use no spool: while PostgreSQL is unavailable, deliveries then get status 503 and senders
	// retry. If no folder is set, `postern dev` and `postern serve` use one in their state folder,
	// unless the machine empties that folder when it starts. Write an absolute path. The folder
	// must be neither in memory (tmpfs) nor in /tmp.
	Dir string `yaml:"dir"`
	// MaxBytes is the maximum size of the spool. When the spool is full, deliveries get status 503.
	// The disk must have that much free space.
	MaxBytes settings.Bytes `yaml:"max_bytes" default:"1GiB" validate:"gte=67108864"`
	// UnsafeDir: true accepts a folder in memory or in /tmp. Acknowledged deliveries in such a
	// folder are lost when the machine restarts, so use it only to try Postern. Each start logs a
	// warning, and postern_unsafe_settings counts the setting.
	UnsafeDir bool `yaml:"unsafe_dir"`
}

// Rejections limits how much Postern stores of rejected deliveries, so that forged requests cannot
// fill the disk. A stored delivery can be verified again after a secret was corrected. The oldest
// are deleted first.
type Rejections struct {
	// MaxCount is the maximum number of rejected deliveries that Postern stores per source.
	MaxCount int `yaml:"max_count" default:"1000" validate:"gte=1"`
	// MaxBytes is the maximum size of the rejected bodies that Postern stores per source.
	MaxBytes settings.Bytes `yaml:"max_bytes" default:"16MiB" validate:"gte=1024"`
	// MaxBody is the maximum number of bytes that Postern stores of one rejected body. A longer
	// body is truncated and marked as truncated. It cannot be verified again. Leave it unset for
	// the value of ingest.max_body_bytes.
	MaxBody settings.Bytes `yaml:"max_body" unset:"ingest.max_body_bytes" validate:"omitempty,gte=1024"`
}

// Retention says after how many days a processor deletes data, once a day. 0 keeps it without
// limit. Deleted data cannot be restored: run `postern retention run --dry-run` first.
type Retention struct {
	// Bodies is the maximum age of events in days, for all sources. The log has one partition per
	// day, with bodies and headers. Postern drops a partition when its newest event has reached
	// this age. It keeps partitions with unfinished events. The mirror does not change.
	Bodies int `yaml:"bodies" default:"0" validate:"gte=0,lte=36500"`
	// Keys is the maximum age, in days, of the keys that detect duplicates. It must not be less
	// than bodies. A duplicate that arrives after its key was deleted is a new event, so leave it 0
	// unless the table's size matters. Postern keeps the keys of redacted events.
	Keys int `yaml:"keys" default:"0" validate:"gte=0,lte=36500"`
	// Outcomes is the maximum age of the outcomes of events, in days. It must not be less than
	// bodies.
	Outcomes int `yaml:"outcomes" default:"0" validate:"gte=0,lte=36500"`
	// Rejections is the maximum age of rejected deliveries, in days. The limits in the section
	// rejections apply in addition.
	Rejections int `yaml:"rejections" default:"0" validate:"gte=0,lte=36500"`
	// Runs is the maximum age of the history of finished runs, in days.
	Runs int `yaml:"runs" default:"0" validate:"gte=0,lte=36500"`
	// Effects is how many days after its end an effect keeps its input, its requests and their
	// responses. These contain states of objects, which are personal data. The effect's key and
	// status are kept, so that nothing is executed twice. After that time, the effect cannot be
	// compensated, and a replay with --mode force skips it. If events are kept longer, `postern
	// config check` and each start warn about this.
	Effects int `yaml:"effects" default:"0" validate:"gte=0,lte=36500"`
	// EffectKeys is how many days after its end the effect itself is kept. It must not be less than
	// bodies. After that time, an effect with the same key can be executed again, so leave it 0
	// unless the table's size matters. Effects whose event is still in the log are kept.
	EffectKeys int `yaml:"effect_keys" default:"0" validate:"gte=0,lte=36500"`
	// Export is a folder that is the same for every processor. Postern writes each day of the log
	// there, and reads it back, before it drops the day. `postern import` reads these files. Leave
	// it empty to drop days without an export.
	Export string `yaml:"export"`
}

// Processor configures how events are applied to the mirror.
type Processor struct {
	// Batch is the maximum number of events that one transaction applies. Each event may take an
	// advisory lock. All workers share the server's lock table (max_locks_per_transaction), so a
	// larger batch needs a larger table.
	Batch int `yaml:"batch" default:"500" validate:"gte=1,lte=2000"`
	// Workers is the number of transactions that apply events at the same time. The hash of the
	// object decides which worker applies an event.
	Workers int `yaml:"workers" default:"2" validate:"gte=1,lte=64"`
	// MaxAttempts is how often Postern tries an event that fails. After that, the event is dead and
	// needs an operator. 9 attempts, the maximum, take about 33 hours.
	MaxAttempts int `yaml:"max_attempts" default:"9" validate:"gte=1,lte=9"`
	// Republisher publishes events again that the stream lost.
	Republisher Republisher `yaml:"republisher"`
	// Changes configures the feed of object changes.
	Changes Changes `yaml:"changes"`
}

// Republisher publishes again each committed event that has no outcome. Its times matter to tests
// only: leave the defaults elsewhere.
type Republisher struct {
	// Every is the time between two passes.
	Every time.Duration `yaml:"every" default:"10s" validate:"gte=1000000"`
	// MinAge is the age at which an event without an outcome is published again.
	MinAge time.Duration `yaml:"min_age" default:"1m" validate:"gte=1000000"`
	// Lease is how long one processor owns the republisher's work before another may take over.
	Lease time.Duration `yaml:"lease" default:"30s" validate:"gte=1000000"`
	// Rate is the maximum number of events per second that are published again. To restore a lost
	// stream takes the number of events without an outcome, divided by this rate. Lower the rate to
	// restore the stream more slowly.
	Rate int `yaml:"rate" default:"10000" validate:"gte=100,lte=1000000"`
}

// Changes configures the feed of object changes.
type Changes struct {
	// PublishAfter is the age at which any processor may publish a change that is not published
	// yet.
	PublishAfter time.Duration `yaml:"publish_after" default:"30s" validate:"gte=1000000"`
	// Retention is how long a published change is kept, so that Postern can publish it again if the
	// stream loses it.
	Retention time.Duration `yaml:"retention" default:"10m" validate:"gte=1000000"`
}

// Default addresses of the admin API.
const (
	DefaultAdminListen     = "127.0.0.1:8081"
	DefaultProcessorListen = "127.0.0.1:8082"
)

// Admin is the JSON API for operators.
type Admin struct {
	// Listen is the address of the admin API. If it is not a loopback address, every caller must
	// send a token. The process then starts only if a valid token exists (postern token create).
	// Anyone who reads a token can use it: without a certificate, put the address behind a proxy
	// that terminates TLS.
	Listen string `yaml:"listen" unset:"127.0.0.1:8081, processor: 127.0.0.1:8082" validate:"omitempty,hostport"`
	// RequireTokens: true requires a token from callers on loopback too. Set it if other people
	// have accounts on the machine.
	RequireTokens bool `yaml:"require_tokens"`
	// OpenMetrics: true serves /metrics without a token. /healthz and /readyz never require one.
	OpenMetrics bool `yaml:"open_metrics"`
	// TLS serves HTTPS on the admin address. Postern reads its files again when they change.
	TLS AdminTLS `yaml:"tls"`
	// MetricsListen is a second address that serves only /metrics, /healthz and /readyz. It is for
	// a scraper or load balancer on another machine, so it may be any address. Leave it empty for
	// no second address. The admin address serves /metrics too.
	MetricsListen string `yaml:"metrics_listen" validate:"omitempty,hostport"`
}

// Console is the web console for operators. It is served on the admin address, below /console/.
type Console struct {
	// Enabled: true serves the console, false does not. If it is not set, the console is served
	// where the admin address is a loopback address.
	Enabled *bool `yaml:"enabled" unset:"true where the admin address is a loopback address"`
	// Name is displayed on every page, for example production, so that operators can tell
	// instances apart.
	Name string `yaml:"name" validate:"max=40"`
	// Hosts are the host names by which browsers may reach the console, in addition to localhost
	// and IP addresses. Name the host of your proxy. If a host is named, every caller of the admin
	// address must send a token, also on loopback.
	Hosts []string `yaml:"hosts" validate:"dive,hostname_rfc1123"`
	// ReadOnly: true offers no changes in the console. The API and the commands are not affected.
	ReadOnly bool `yaml:"read_only"`
}

// Approvals says who may approve runs and effects.
type Approvals struct {
	// Separate: true requires a second person. The token that requested a run may not approve this
	// run, swap its rebuild, or approve, resolve or compensate effects that the run planned. The
	// same holds for the effects of an event that its reconciliation, manual refetch or
	// reprocessing of a rejection stored. It compares names of tokens, so it has no effect on
	// callers without a token and on commands.
	Separate bool `yaml:"separate"`
}

// AdminTLS are the PEM files of the admin address. The oldest supported version is TLS 1.2.
type AdminTLS struct {
	// Cert is the file with the certificate. Leave it empty to serve plain HTTP.
	Cert string `yaml:"cert" validate:"required_with=Key ClientCA"`
	// Key is the file with the private key of the certificate.
	Key string `yaml:"key" validate:"required_with=Cert"`
	// ClientCA is the file with the certificates of the authorities whose client certificates are
	// accepted. Callers then need a client certificate in addition to their token. Probes need one
	// too: use metrics_listen for them. Leave it empty to require no client certificate.
	ClientCA string `yaml:"client_ca"`
}

// ListenOr returns the configured address or, where none is set, the given one (DefaultAdminListen,
// DefaultProcessorListen).
func (a Admin) ListenOr(address string) string {
	if a.Listen != "" {
		return a.Listen
	}
	return address
}

// Log configures the log that the process writes to standard error.
type Log struct {
	// Level is the lowest level that is logged: debug, info, warn or error.
	Level string `yaml:"level" default:"info" validate:"oneof=debug info warn error"`
	// Format is text for people or json for log collectors.
	Format string `yaml:"format" default:"text" validate:"oneof=text json"`
}

// Source is one endpoint of one provider.
type Source struct {
	// Provider is the name of the sender: one from providers.md, or `hmac` for any other sender.
	Provider string `yaml:"provider" validate:"required,provider"`
	// Secrets verify deliveries. A delivery is valid if any of them matches, so you can rotate a
	// secret without losing deliveries.
	Secrets []Secret `yaml:"secrets" validate:"required,min=1,unique=Name,dive"`
	// Account is the tenant of this source, if it has exactly one (a Shopify shop, a Stripe
	// account). Leave it empty if the sender has no tenants.
	Account string `yaml:"account"`
	// Accounts are the tenants whose deliveries are accepted; '*' accepts any. A Shopify source
	// requires account or accounts, because the header that names the shop is not signed.
	Accounts []string `yaml:"accounts" validate:"dive,required"`
	// Key selects the value that identifies an event, if the provider offers a choice (Shopify:
	// webhook-id or event-id). Leave it empty for the provider's default. If you change it later,
	// Postern does not recognize duplicates of earlier events.
	Key string `yaml:"key"`
	// URL is the address that you entered at the provider, e.g.
	// https://hooks.example/webhooks/twilio. Set it for providers that sign it (Twilio, Square,
	// HubSpot, ...). Postern never takes it from the request.
	URL string `yaml:"url" validate:"omitempty,public_url"`
	// Tolerance is how far a signed time may differ from the time of receipt, in both directions.
	// Leave it unset for the provider's default, which is 300s for most. The maximum is 24h.
	Tolerance time.Duration `yaml:"tolerance" unset:"the provider's" validate:"omitempty,gte=1000000000,lte=86400000000000"`
	// Scheme says how the sender signs, for provider: hmac.
	Scheme *signature.Scheme `yaml:"scheme,omitempty"`
	// Schemes replaces scheme for a sender that signs in several ways. Each element has the
	// settings of scheme. A delivery is valid if any scheme verifies it, so the weakest scheme
	// determines the security of the source.
	Schemes []signature.Scheme `yaml:"schemes,omitempty" like:"scheme"`
	// StoreToken: true allows a scheme to read a token from the body (json:PATH or form:FIELD).
	// Postern stores bodies byte for byte, so the database, views, exports and feeds contain the
	// token. Anyone who can read one of these can send any delivery.
	StoreToken bool `yaml:"store_token,omitempty" unset:"false"`
	// Events says where a delivery contains its events, and which values are their key, type,
	// account and time. It is for provider: hmac and standardwebhooks. For provider: api, only
	// type, account, occurred, omit and headers apply.
	Events declared.Events `yaml:"events,omitempty"`
	// Objects says which objects the events describe, for provider: hmac, standardwebhooks and api.
	// Without it, Postern stores and publishes events and mirrors no objects.
	Objects []declared.Object `yaml:"objects,omitempty"`
	// Handshake says how Postern responds when the sender checks that the address is yours, for
	// provider: hmac.
	Handshake declared.Handshake `yaml:"handshake,omitempty"`
	// Reply replaces the response to a stored delivery, for provider: hmac.
	Reply declared.Reply `yaml:"reply,omitempty"`
	// RequireCommit: true makes the gateway respond only after the commit. While PostgreSQL is
	// unavailable, deliveries get status 503 and do not go to the spool (ingest.spool). Use it for
	// a sender that needs the event's id in the response. If it is false for provider: api, a
	// repeated key with different content is acknowledged during an outage, and later stored as a
	// conflict.
	RequireCommit *bool `yaml:"require_commit,omitempty" unset:"false; provider api: true"`
	// RedactOnRequest: true makes processors execute the sender's deletion requests (Shopify's
	// customers/redact and shop/redact) within two minutes, without an operator. Redacted data
	// cannot be restored. Leave it false if an operator must decide: see `postern redact pending`.
	RedactOnRequest bool `yaml:"redact_on_request" default:"false"`
	// API says how Postern reads the provider's API, to find data that webhooks did not deliver.
	// Without it, Postern does not read the API.
	API API `yaml:"api,omitempty"`
	// AllowFrom are the addresses or networks that may send deliveries, e.g. 192.0.2.7 or
	// 2001:db8::/32. Other addresses get status 403, and their bodies are not read. Leave it empty
	// to allow all: the signature identifies the sender. Behind a proxy, ingest.trusted_proxies
	// must name that proxy.
	AllowFrom []string `yaml:"allow_from" validate:"dive,network"`
	// RateLimit limits how many deliveries a gateway accepts from this source. Additional ones get
	// status 429, and their bodies are not read. Leave it out for no limit. Even without a limit,
	// one source cannot use all capacity.
	RateLimit RateLimit `yaml:"rate_limit,omitempty"`
	// Reconcile sets when Postern compares the source with the provider's API. Leave it out to
	// reconcile only on request.
	Reconcile Reconcile `yaml:"reconcile,omitempty"`
	// MaxBodyBytes is the size of the largest body that this source accepts. Leave it unset for the
	// value of ingest.max_body_bytes.
	MaxBodyBytes settings.Bytes `yaml:"max_body_bytes" unset:"ingest.max_body_bytes" validate:"omitempty,gte=1024,lte=268435456"`
}

// RateLimit limits the deliveries of a source in each gateway separately: two gateways accept twice
// as many. Only verified deliveries count, so forged ones cannot use up the limit.
type RateLimit struct {
	// PerSecond is the average number of accepted deliveries per second. Leave it unset for no
	// limit.
	PerSecond int `yaml:"per_second" validate:"omitempty,gte=1,lte=1000000"`
	// Burst is how many deliveries may arrive at once. Leave it unset for the value of per_second.
	Burst int `yaml:"burst" unset:"per_second" validate:"omitempty,gte=1,lte=10000000"`
}

// Secret is one signing secret: a name and exactly one of value, env and file.
type Secret struct {
	// Name is stored with each event that the secret verified. Give a new secret a new name.
	Name string `yaml:"name" validate:"required,max=63"`
	// Value is the secret itself. Prefer env or file, because more people than necessary can often
	// read the configuration file.
	Value settings.MaskedString `yaml:"value"`
	// Env names the variable that holds the secret.
	Env string `yaml:"env"`
	// File names the file that holds the secret. Postern removes one line break at its end. It
	// reads the file at the start, and again when the file changes.
	File string `yaml:"file"`

	secret []byte
}
