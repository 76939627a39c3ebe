// Package config reads the settings of every Postern process: one strict YAML file, overridden by POSTERN_... variables.
package config

import "time"

// Config is everything that can be set. Its zero value is usable: defaults fill what nobody set.
type Config struct {
	// Database is where events and the mirror are kept.
	Database Database `yaml:"database"`
	// NATS is how JetStream is reached.
	NATS NATS `yaml:"nats"`
	// Stream bounds what JetStream keeps; the log in PostgreSQL is the truth and is not bounded by it.
	Stream Stream `yaml:"stream"`
	// Ingest is the door that providers POST to.
	Ingest Ingest `yaml:"ingest"`
	// Rejections bounds what is kept of refused deliveries.
	Rejections Rejections `yaml:"rejections"`
	// Retention is what is forgotten, and when; unset, everything is kept.
	Retention Retention `yaml:"retention"`
	// Processor is how events are applied to the mirror.
	Processor Processor `yaml:"processor"`
	// Admin is the JSON interface for operators.
	Admin Admin `yaml:"admin"`
	// Log is what the process says about itself on standard error.
	Log Log `yaml:"log"`
	// Sources are the endpoints providers send to, by name: the last part of the ingest path /webhooks/NAME. A name is
	// lower case, digits, - and _, at most 63 characters, and names the source for good: a renamed source is a new one.
	Sources map[string]*Source `yaml:"sources" validate:"dive,keys,source_name,endkeys,required"`

	// Schedules are jobs that processors ask for by a clock, by name: lower case, digits, - and _, at most 63 characters. Each planned time
	// is one run, however many processes plan it.
	Schedules map[string]*Schedule `yaml:"schedules" validate:"dive,keys,schedule_name,endkeys,required"`

	// Destinations are the other sides that effects call, by name.
	Destinations map[string]*Destination `yaml:"destinations" validate:"dive,keys,schedule_name,endkeys,required"`
	// Effects are rules: what follows, once, when an object changes, by name. Each is entered into a ledger in the transaction that makes the change, and carried out step by step. Texts with
	// {{ are quoted.
	Effects map[string]*Effect `yaml:"effects" validate:"dive,keys,schedule_name,endkeys,required"`
	// Notify are alerts: who is told what needs a person, by name. Processors look every half minute; what is told is told at least once.
	Notify map[string]*Notification `yaml:"notify" validate:"dive,keys,schedule_name,endkeys,required"`

	files *files
	// idle are warnings about variables that set nothing.
	idle []string
	// places is where settings were made.
	places *places
}

// Database is where events and the mirror are kept: PostgreSQL 15 or newer.
type Database struct {
	// URL of PostgreSQL, e.g. postgres://user:password@host/postern. Several hosts, separated by commas, are tried for
	// the primary. Required but for `postern dev`, which starts a cluster of its own where none is named.
	URL URL `yaml:"url"`
	// MaintenanceURL is the URL for migrations, of a login that may own tables. Leave empty to use url.
	MaintenanceURL URL `yaml:"maintenance_url"`
	// MaxConnections is the most connections one process opens for deliveries and live events. Raise it only if the pool is seen
	// waiting; every process has its own pool and the server's max_connections is shared by all. The admin interface, maintenance
	// and runs have a few of their own.
	MaxConnections int `yaml:"max_connections" default:"16" validate:"gte=2,lte=1000" beyond:"an append that finds none within a second counts as a failure of PostgreSQL: the spool, or 503"`
}

// NATS is how JetStream is reached. docs/operations.md lists the releases of NATS that are accepted.
type NATS struct {
	// URL of the servers, separated by commas, e.g. nats://a:4222,nats://b:4222. Where it is empty, `postern dev` and
	// `postern serve` run JetStream inside the process; gateway and processor need it.
	URL URL `yaml:"url"`
	// Credentials is a credentials file (.creds) of the account.
	Credentials string `yaml:"credentials"`
	// TLS is set where the servers' certificate is not signed by a public authority, or they ask for ours.
	TLS ClientTLS `yaml:"tls"`
	// Replicas is how many servers keep each message: 3 in a cluster, 1 on a single server.
	Replicas int `yaml:"replicas" default:"1" validate:"gte=1,lte=5"`
}

// ClientTLS are the PEM files for talking to a server over TLS.
type ClientTLS struct {
	// CA is the file of the authorities that are trusted. Leave empty for the system's.
	CA string `yaml:"ca"`
	// Cert is our certificate's file, where the server asks for one.
	Cert string `yaml:"cert" validate:"required_with=Key"`
	// Key is the file of our certificate's private key.
	Key string `yaml:"key" validate:"required_with=Cert"`
}

// ServerTLS are the PEM files for serving TLS.
type ServerTLS struct {
	// Cert is the certificate's file. Leave empty to serve plain HTTP behind a proxy that ends TLS.
	Cert string `yaml:"cert" validate:"required_with=Key"`
	// Key is the file of the certificate's private key.
	Key string `yaml:"key" validate:"required_with=Cert"`
}

// Stream bounds what JetStream keeps of each of the two feeds. What falls out is published again by the auditor.
type Stream struct {
	// MaxMessages is the most messages a stream keeps.
	MaxMessages int64 `yaml:"max_messages" default:"1000000" validate:"gte=1000"`
	// MaxBytes is the most bytes a stream keeps; the server must have that much disk set aside for streams.
	MaxBytes Bytes `yaml:"max_bytes" default:"2GiB" validate:"gte=1048576"`
	// MaxAge is how long a stream keeps a message.
	MaxAge time.Duration `yaml:"max_age" default:"24h" validate:"gte=60000000000"`
}

// Ingest is the door that providers POST to.
type Ingest struct {
	// Listen is the address to accept deliveries on.
	Listen string `yaml:"listen" default:"127.0.0.1:8080" validate:"hostport"`
	// TLS serves HTTPS from the gateway itself.
	TLS ServerTLS `yaml:"tls"`
	// MaxBodyBytes is the largest body taken; a larger one is answered 413 unread. Stripe and Shopify stay far below the default.
	MaxBodyBytes Bytes `yaml:"max_body_bytes" default:"4MiB" validate:"gte=1024,lte=268435456" beyond:"413, unread where its length is told"`
	// Deadline is how long a delivery may wait for its commit before it is answered 503 and the provider tries again.
	// Keep it below the sender's own timeout (Shopify: 5 s).
	Deadline time.Duration `yaml:"deadline" default:"4s" validate:"gte=50000000" beyond:"503 with Retry-After; what would wait longer than half of it is refused at once"`
	// DrainDelay is how long a gateway that was asked to stop still takes deliveries, while /readyz says that it is not ready and each answer closes its connection. In that time balancers
	// learn to send to others, so that none meets a closed door: make it longer than theirs takes (Kubernetes: some seconds; its probes: period × threshold). 1ms is as good as none.
	DrainDelay time.Duration `yaml:"drain_delay" default:"5s" validate:"gte=1000000,lte=300000000000" beyond:"no new connection; what is under way is answered"`
	// Queue is the most verified deliveries that wait for a commit; more are answered 503 at once. Where there are several sources,
	// one may fill half of it, so that the others always find room.
	Queue int `yaml:"queue" default:"4096" validate:"gte=1" beyond:"503 with Retry-After at once, and so beyond half of it for one source of several"`
	// QueueBytes is the most bytes of verified bodies held in memory at once. Where there are several sources, one may
	// fill half of it. Bodies that still arrive, whose sender is not verified yet, may take a quarter as much and one
	// largest body besides; beyond that the one that has taken longest, and more than a second, is answered 503.
	QueueBytes Bytes `yaml:"queue_bytes" default:"256MiB" validate:"gte=1048576" beyond:"503 with Retry-After at once, and so beyond half of it for one source of several"`
	// BatchMax is the most deliveries in one commit. Batches form by themselves; nobody waits for one to fill.
	BatchMax int `yaml:"batch_max" default:"256" validate:"gte=1,lte=10000" beyond:"the rest goes with the next commit"`
	// BatchBytes is the most bytes of bodies in one commit; a single larger delivery still goes, alone.
	BatchBytes Bytes `yaml:"batch_bytes" default:"8MiB" validate:"gte=1024" beyond:"the rest goes with the next commit"`
	// Writers is how many commits are under way at once. More helps only where a commit is slow (a synchronous standby).
	Writers int `yaml:"writers" default:"2" validate:"gte=1,lte=64" beyond:"the next batch waits for one of them"`
	// MaxConnections is how many connections are open at once; more wait in the kernel's queue. Raise it together with the
	// process's limit of open files.
	MaxConnections int `yaml:"max_connections" default:"20000" validate:"gte=1" beyond:"nothing: a connection waits until another ends"`
	// TrustedProxies are the addresses or networks of the proxies before the gateway, e.g. 127.0.0.1 or 10.0.0.0/8: of a request that comes from one, the sender is
	// read from X-Forwarded-For, from its end up to the first address that is no such proxy. Leave empty for none: then the sender is who connects, whatever a
	// header says. Each proxy named here must add to that header or write it anew; one that passes on what a sender wrote there lets everybody claim any address.
	TrustedProxies []string `yaml:"trusted_proxies" validate:"dive,network"`
	// Spool keeps deliveries on a disk of the gateway's own while PostgreSQL is away.
	Spool Spool `yaml:"spool"`
	// MaxHeaderBytes is the most bytes of a request's line and headers, of which up to 4 KiB more may pass; more are answered 431.
	MaxHeaderBytes Bytes `yaml:"max_header_bytes" default:"32KiB" validate:"gte=4096,lte=1048576" beyond:"431, and the end of the connection"`
	// HeaderTimeout is how long a sender may take for the request's headers.
	HeaderTimeout time.Duration `yaml:"header_timeout" default:"5s" validate:"gte=10000000" beyond:"nothing, or 400: the connection ends"`
	// ReadTimeout is how long a sender may take for the whole request.
	ReadTimeout time.Duration `yaml:"read_timeout" default:"15s" validate:"gte=10000000" beyond:"408, and the end of the connection"`
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout time.Duration `yaml:"idle_timeout" default:"2m" validate:"gte=10000000" beyond:"nothing: the connection ends"`
}

// Spool keeps verified deliveries on a disk of the gateway's own while PostgreSQL is away, and appends them when it is back. They are acknowledged once they are
// synced to that disk: what is in the spool is as safe as that one disk.
type Spool struct {
	// Dir is a folder on a disk that outlives the process, one for each gateway. Leave empty for no spool: while PostgreSQL is away deliveries are then
	// answered 503 and senders try again. `postern dev` and `postern serve` keep one in their state folder where none is named, unless that folder is emptied
	// when the machine starts. Name the whole path, neither in memory (tmpfs) nor in /tmp.
	Dir string `yaml:"dir"`
	// MaxBytes is the most that is kept; beyond it deliveries are answered 503. As much must be free on the disk.
	MaxBytes Bytes `yaml:"max_bytes" default:"1GiB" validate:"gte=67108864" beyond:"503 with Retry-After, while PostgreSQL is away"`
	// UnsafeDir takes a Dir in memory or in /tmp, where deliveries that were acknowledged are lost when the machine starts again. Leave it off but for trials. Each start
	// says that it is on, and postern_unsafe_settings counts it.
	UnsafeDir bool `yaml:"unsafe_dir"`
}

// Rejections bounds what is kept of refused deliveries, so that they can be verified again once a secret is mended and
// a flood of forgeries cannot fill the disk. The oldest make room.
type Rejections struct {
	// MaxCount is the most refused deliveries kept per source.
	MaxCount int `yaml:"max_count" default:"1000" validate:"gte=1" beyond:"401 as ever: the oldest are forgotten"`
	// MaxBytes is the most bytes of refused bodies kept per source.
	MaxBytes Bytes `yaml:"max_bytes" default:"16MiB" validate:"gte=1024" beyond:"401 as ever: the oldest are forgotten"`
	// MaxBody is the most bytes kept of one refused body; a longer one is cut, marked, and cannot be verified again.
	// Leave unset to keep whatever ingest.max_body_bytes lets in.
	MaxBody Bytes `yaml:"max_body" shown:"ingest.max_body_bytes" validate:"omitempty,gte=1024" beyond:"401 as ever: what is kept is cut"`
}

// Retention is how many days things are kept before a processor, once a day, forgets them; 0 keeps them for ever. What is forgotten cannot
// be had back: see `postern retention run --dry-run` first.
type Retention struct {
	// Bodies is the age of events, of all sources alike: the log's partitions of a day, which hold bodies and headers, are dropped when
	// the youngest event in them is as old. Nothing that is unfinished is dropped, and the mirror does not change.
	Bodies int `yaml:"bodies" default:"0" validate:"gte=0,lte=36500"`
	// Keys is the age of the keys that tell duplicates; not younger than bodies. A duplicate that comes later than that is a new event, so
	// leave it 0 unless the table's size matters. The keys of redacted events stay.
	Keys int `yaml:"keys" default:"0" validate:"gte=0,lte=36500"`
	// Outcomes is the age of what became of events; not younger than bodies.
	Outcomes int `yaml:"outcomes" default:"0" validate:"gte=0,lte=36500"`
	// Rejections is the age of refused deliveries, which the section rejections bounds in any case.
	Rejections int `yaml:"rejections" default:"0" validate:"gte=0,lte=36500"`
	// Runs is the age of the history of runs that have ended.
	Runs int `yaml:"runs" default:"0" validate:"gte=0,lte=36500"`
	// Effects is the age, since they ended, of what effects were planned with, sent and were answered: states of objects, which are personal data. Their keys and states stay, so that nothing follows twice; what is cleared
	// cannot be undone by compensate any more, nor happen again by a replay with --mode force. Where events are kept for longer, or for ever, such a replay leaves out what is cleared; postern config check and each start say so.
	Effects int `yaml:"effects" default:"0" validate:"gte=0,lte=36500"`
	// EffectKeys is the age, since they ended, of effects as such; not younger than bodies. What has one key may follow again after that, so leave it 0 unless the table's size matters. Effects whose event is still in the log stay.
	EffectKeys int `yaml:"effect_keys" default:"0" validate:"gte=0,lte=36500"`
	// Export is a folder, the same for every processor, into which each day of the log is written and read back before it is dropped, as `postern import`
	// reads it. Leave empty to drop without.
	Export string `yaml:"export"`
}

// Processor is how events are applied to the mirror.
type Processor struct {
	// Batch is the most events applied in one transaction. Each may take an advisory lock, and those of all lanes share
	// the server's lock table (max_locks_per_transaction), so a larger one needs a larger table.
	Batch int `yaml:"batch" default:"500" validate:"gte=1,lte=2000"`
	// Lanes is how many transactions run at once, divided by the hash of the object.
	Lanes int `yaml:"lanes" default:"2" validate:"gte=1,lte=64"`
	// MaxAttempts is how often an event that fails is tried, over about 33 hours, before it is dead and needs a person. Fewer
	// attempts give up earlier; more than 9 there are not.
	MaxAttempts int `yaml:"max_attempts" default:"9" validate:"gte=1,lte=9"`
	// Auditor brings back what the stream lost.
	Auditor Auditor `yaml:"auditor"`
	// Changes is the feed of what became of objects.
	Changes Changes `yaml:"changes"`
}

// Auditor makes sure that no committed event is forgotten. Its times matter to tests; leave them alone elsewhere.
type Auditor struct {
	// Every is the time between two passes.
	Every time.Duration `yaml:"every" default:"10s" validate:"gte=1000000"`
	// MinAge is how old an event without outcome must be before it is published again.
	MinAge time.Duration `yaml:"min_age" default:"1m" validate:"gte=1000000"`
	// Lease is how long one processor keeps the auditor's work before another may take it.
	Lease time.Duration `yaml:"lease" default:"30s" validate:"gte=1000000"`
	// Rate is the most events a second that it publishes again. Lower it where a stream that was lost must come back more slowly; the time for that is the number of events
	// without an outcome divided by it.
	Rate int `yaml:"rate" default:"10000" validate:"gte=100,lte=1000000"`
}

// Changes is the feed of what became of objects.
type Changes struct {
	// SweepAfter is how old an unsent change must be before any processor sends it.
	SweepAfter time.Duration `yaml:"sweep_after" default:"30s" validate:"gte=1000000"`
	// Keep is how long a sent change is kept, to be sent again should the stream have lost it.
	Keep time.Duration `yaml:"keep" default:"10m" validate:"gte=1000000"`
}

// Addresses of the admin interface where none is set.
const (
	DefaultAdminListen     = "127.0.0.1:8081"
	DefaultProcessorListen = "127.0.0.1:8082"
)

// Admin is the JSON interface for operators.
type Admin struct {
	// Listen is the address to serve on. Beyond loopback every caller must send a token: the process starts there only if one is in force (postern token create).
	// Without a certificate of its own put it behind something that ends TLS, since a token that is overheard can be used.
	Listen string `yaml:"listen" shown:"127.0.0.1:8081, processor: 127.0.0.1:8082" validate:"omitempty,hostport"`
	// RequireTokens asks callers on loopback for a token too. Turn it on where others have accounts on the machine.
	RequireTokens bool `yaml:"require_tokens"`
	// OpenMetrics serves /metrics without a token where callers are asked for one. /healthz and /readyz never need one.
	OpenMetrics bool `yaml:"open_metrics"`
	// TLS serves HTTPS on the admin address. Its files are read again when they have changed.
	TLS AdminTLS `yaml:"tls"`
	// MetricsListen is a second address that serves /metrics, /healthz and /readyz and nothing else, for a scraper or a
	// balancer on another machine, so it need not be loopback. Leave empty for none; the admin address has /metrics too.
	MetricsListen string `yaml:"metrics_listen" validate:"omitempty,hostport"`
}

// AdminTLS are the PEM files of the admin address. TLS 1.2 is the oldest that is spoken.
type AdminTLS struct {
	// Cert is the certificate's file. Leave empty to serve plain HTTP.
	Cert string `yaml:"cert" validate:"required_with=Key ClientCA"`
	// Key is the file of the certificate's private key.
	Key string `yaml:"key" validate:"required_with=Cert"`
	// ClientCA is the file of the authorities of which callers need a certificate, beside their token. Probes need one too: give them metrics_listen. Leave empty to ask for none.
	ClientCA string `yaml:"client_ca"`
}

// ListenOr is the configured address or, where none is set, the given one (DefaultAdminListen, DefaultProcessorListen).
func (a Admin) ListenOr(address string) string {
	if a.Listen != "" {
		return a.Listen
	}
	return address
}

// Log is what the process says about itself on standard error.
type Log struct {
	// Level is the least important level written: debug, info, warn or error.
	Level string `yaml:"level" default:"info" validate:"oneof=debug info warn error"`
	// Format is text for people or json for collectors.
	Format string `yaml:"format" default:"text" validate:"oneof=text json"`
}

// Source is one endpoint of one provider.
type Source struct {
	// Provider is who sends: a name in providers.md, or `hmac` for a sender that is not there.
	Provider string `yaml:"provider" validate:"required,provider"`
	// Secrets verify deliveries; any of them may match, so that a secret can be changed without losing one.
	Secrets []Secret `yaml:"secrets" validate:"required,min=1,unique=Name,dive"`
	// Account is the one tenant (Shopify shop, Stripe account) this source belongs to. Leave empty where there is none.
	Account string `yaml:"account"`
	// Accounts are the tenants allowed, '*' for any. A Shopify source needs account or accounts, since the shop is named
	// in a header that nobody signed.
	Accounts []string `yaml:"accounts" validate:"dive,required"`
	// Key chooses what names an event where the provider leaves a choice (Shopify: webhook-id or event-id). Leave empty
	// for the provider's default; changing it later makes old events look new.
	Key string `yaml:"key"`
	// URL is the address that the provider was given, for providers that sign it (Twilio, Square, HubSpot, ...), e.g.
	// https://hooks.example/webhooks/twilio. What a proxy shows is never used.
	URL string `yaml:"url" validate:"omitempty,public_url"`
	// Tolerance is how far a signed time may lie from the time of receipt, both ways. Leave unset for the provider's own, mostly 300s;
	// at most 24h.
	Tolerance time.Duration `yaml:"tolerance" shown:"the provider's, mostly 300s" validate:"omitempty,gte=1000000000,lte=86400000000000" beyond:"401: the signature is too old, or of a time to come"`
	// Scheme is how the sender signs, for provider: hmac.
	Scheme Scheme `yaml:"scheme,omitempty"`
	// Schemes are several in place of scheme, each with its settings, for a sender that signs in several ways: any of them that a
	// delivery has a signature of may prove it. Together they are as strong as the weakest.
	Schemes []Scheme `yaml:"schemes,omitempty" like:"scheme"`
	// StoreToken: true allows a scheme to read a token from the body (json:PATH or form:FIELD). Bodies are
	// stored byte for byte, so that the database, views, exports and feeds show the token, and each of their
	// readers can send any delivery.
	StoreToken bool `yaml:"store_token,omitempty" shown:"false"`
	// Events is where the events of a delivery are and how they are named, for provider: hmac and standardwebhooks; for provider: api only type, account, occurred, omit and headers.
	Events Events `yaml:"events,omitempty"`
	// Objects is what events say of objects, for provider: hmac, standardwebhooks and api. Without any, events are kept and published, and
	// mirror nothing.
	Objects []Object `yaml:"objects,omitempty"`
	// Handshake is how the sender finds out that the address is ours, for provider: hmac.
	Handshake Handshake `yaml:"handshake,omitempty"`
	// Reply is the answer to a stored delivery in place of the receipt, for provider: hmac.
	Reply Reply `yaml:"reply,omitempty"`
	// FinalReceipt answers deliveries 503 while PostgreSQL is away, in place of keeping them in the spool (ingest.spool): for a sender that needs Postern's id of the event in the answer.
	// With false for provider: api, a key that comes again with other content while PostgreSQL is away is acknowledged too, and kept as a conflict.
	FinalReceipt *bool `yaml:"final_receipt,omitempty" shown:"false; provider api: true"`
	// RedactOnRequest has processors carry out what the sender asks to be forgotten (Shopify's customers/redact and shop/redact), a minute or two
	// after it came and without a person. What is redacted cannot be had back. Leave it false and see `postern redact pending`.
	RedactOnRequest bool `yaml:"redact_on_request" default:"false"`
	// API is how the provider's API is read, to find what its webhooks do not tell. Leave it out to read nothing.
	API API `yaml:"api,omitempty"`
	// AllowFrom are the addresses or networks that deliveries may come from, e.g. 192.0.2.7 or 2001:db8::/32; from elsewhere they are answered 403 unread. Leave empty
	// for everywhere: what proves a sender is its signature. Behind a proxy ingest.trusted_proxies must name it.
	AllowFrom []string `yaml:"allow_from" validate:"dive,network" beyond:"403, from elsewhere"`
	// RateLimit is how many deliveries a gateway takes from this source; more are answered 429 unread. Leave it out for no limit: one source never takes the others' room.
	RateLimit RateLimit `yaml:"rate_limit,omitempty"`
	// Reconcile says when the source is held against its provider's API, by the clock. Leave it out to do so only when somebody asks.
	Reconcile Reconcile `yaml:"reconcile,omitempty"`
	// MaxBodyBytes is the largest body taken from this source. Leave unset for ingest.max_body_bytes.
	MaxBodyBytes Bytes `yaml:"max_body_bytes" shown:"ingest.max_body_bytes" validate:"omitempty,gte=1024,lte=268435456" beyond:"413, unread where its length is told"`
}

// RateLimit bounds the deliveries of a source, in each gateway by itself: two gateways take twice as many. Deliveries that are not proven do not count, so a
// flood of forgeries does not keep the real ones out.
type RateLimit struct {
	// PerSecond is how many deliveries are taken a second, over time. Leave unset for no limit.
	PerSecond int `yaml:"per_second" validate:"omitempty,gte=1,lte=1000000" beyond:"429 with Retry-After"`
	// Burst is how many may come at once. Leave unset for what comes in a second.
	Burst int `yaml:"burst" shown:"per_second" validate:"omitempty,gte=1,lte=10000000" beyond:"429 with Retry-After"`
}

// Secret is one signing secret: a name, and exactly one of value, env and file.
type Secret struct {
	// Name is stored with each event the secret verified. Give a new secret a new name.
	Name string `yaml:"name" validate:"required,max=63"`
	// Value is the secret itself. Prefer env or file: this file is read by more people than it should be.
	Value Hidden `yaml:"value"`
	// Env names the variable that holds the secret.
	Env string `yaml:"env"`
	// File names the file that holds the secret; one line end after it is left out. It is read at the start and again when it has changed.
	File string `yaml:"file"`

	secret []byte
}
