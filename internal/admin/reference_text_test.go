package admin

const apiHead = `# HTTP API

For programs that send deliveries to Postern, and for programs that read and operate it. At the end,
you know each route with its parameters and results.

- [Ingest endpoints](#ingest-endpoints)
- [Admin API](#admin-api)
- [Pages](#pages)
- [Routes](#routes)
- [Results](#results)

Errors are ` + "`application/problem+json`" + ` with one of the [problem types](problem-types.md).

## Ingest endpoints

The gateway serves these routes at ` + "`ingest.listen`" + `. They need no token: a delivery is verified with
the secrets of its source. The response follows the commit.

| route | operation |
|---|---|
| ` + "`POST /webhooks/{source}`" + ` | Verify and store a delivery, and respond with the receipt. |
| ` + "`GET /webhooks/{source}`" + ` | Respond to the provider's challenge, for providers that send one. |
| ` + "`GET /healthz`" + ` | 200 while the process runs. |
| ` + "`GET /readyz`" + ` | 200 if the gateway can accept deliveries, else 503. |

A receipt describes one stored event. The response is a list of receipts if the delivery has several
events, or is a batch of ` + "[`provider: api`](providers.md)" + `. A provider that expects a response of
its own, for example a handshake, gets that instead.

| member | type | meaning |
|---|---|---|
| ` + "`event_id`" + ` | string | the event key |
| ` + "`id`" + ` | integer in a string | Postern's id of the event; left out if the delivery is in the spool |
| ` + "`duplicate`" + ` | boolean | the event was stored before; this delivery changes nothing |
| ` + "`received_at`" + ` | time | when the event was stored first |
| ` + "`conflict`" + `? | boolean | the key was stored before with other content; the delivery is stored as a conflict |
| ` + "`spooled`" + `? | boolean | the delivery is stored in the spool, because PostgreSQL is unavailable; ` +
	"`id`, `duplicate` and `received_at`" + ` are left out |

The response header ` + "`Postern-Event`" + ` contains the ids of the first ten events, separated by commas. It
is empty for a handshake. ` + "`Postern-Trace-Id`" + ` contains the trace of a sampled delivery.

## Admin API

Every process serves these routes at ` + "`admin.listen`" + `, by default on loopback.

**Tokens.** On an address other than loopback each request needs ` + "`Authorization: Bearer TOKEN`" + `. A
token of the role reader may GET. A token of the role operator may also POST. On loopback a request
without a token has the rights of an operator. If it sends a token, the audit records its name, and
its role counts. See [control access](../how-to/control-access.md).

**Browsers.** Where no token is required, a request whose ` + "`Host`" + ` is not a loopback name gets 421. So
a web page cannot point its own name at the address.

**Parameters.** A GET takes them from the query, each at most once. A POST takes them from a JSON
object in the body, with ` + "`Content-Type: application/json`" + `; ` + "`{}`" + ` has no parameters. Unknown
parameters are errors. A time is RFC 3339, a date, or how long ago: ` + "`15m`, `2h`, `7d`" + `. A request may
take 30 seconds.

**Changes.** Every POST that changes something is in the audit (` + "`GET /api/v1/audit`" + `), with its
` + "`reason`" + `.

**Repeating a request.** Every POST accepts the header ` + "`Idempotency-Key: \"a key of yours\"`" + `.

- The same request with the same key gets the first response again, with
  ` + "`Idempotency-Replayed: true`" + `, and changes nothing.
- Another body, query or path with the same key gets 422. A request whose first copy is in progress
  gets 409.
- A key belongs to the token (or to loopback) and the route. It expires after 24 hours.
- Error responses are stored too, except 400, 421, 429 and 5xx. After these, send the request with
  the same key again; after 400, a corrected one. Previews and dry runs are executed again each
  time.

The parameter ` + "`idempotency_key`" + ` of a run never expires. It starts one run for one occasion. The header
is for lost responses.

**Clients.** ` + "[`GET /api/v1/openapi.json`](#get-apiv1openapijson)" + ` returns this API as an
[OpenAPI 3.1 document](../../internal/admin/openapi.json), from which a generator makes a client. For
TypeScript: ` + "`npx openapi-typescript http://127.0.0.1:8081/api/v1/openapi.json -o postern.d.ts`" + `.

These routes are outside of ` + "`/api/v1`" + `:

| route | operation |
|---|---|
| ` + "`GET /healthz`" + ` | 200 while the process runs; needs no token |
| ` + "`GET /readyz`" + ` | 200 if the process can do its work, else 503; needs no token |
| ` + "`GET /metrics`" + ` | the [metrics](metrics.md); needs a token, unless ` + "`admin.open_metrics`" + ` is set |
| ` + "`GET /debug/pprof/`" + ` | profiles of the process; needs the role operator |

## Pages

A list is a page: ` + "`items`" + `, and ` + "`next_cursor`" + `, which is null on the last page. Send it as ` +
	"`cursor`" + ` to get
the next page. A page may be shorter than ` + "`limit`" + ` or empty, and still not the last.
A search of contents that is not complete has ` + "`searched_back_to`" + `, the time until which it searched.

## Routes

`

const problemsHead = `# Problem types

For programs that call Postern over HTTP: what each error means, and what to do.

The body of an error is ` + "`application/problem+json`" + ` (RFC 9457) with the members ` + "`type`, `title`," +
	`
` + "`status` and `detail`" + `. The ` + "`type`" + ` is ` + "`urn:postern:problem:`" + ` and a name of this page. ` +
	"`detail`" + ` is a
sentence for people: it may change, the types do not. A response with 409, 429 or 503 may have
` + "`Retry-After`" + `.

## Ingest endpoints

A sender of ` + "`provider: api`" + ` sends a delivery again after 408, 429, 500 and 503, unchanged: it is
stored once.

`

const resultsHead = `
## Results

Members marked with ? are left out where they have no value. These members mean the same in all
types, where their meaning is empty:

| member | type | meaning |
|---|---|---|
| ` + "`source`" + ` | string | name of the source |
| ` + "`account`" + ` | string | tenant inside the source; empty where there is none |
| ` + "`object_type`, `object_id`" + ` | string | type of the object, and its id at the provider |
| ` + "`event`" + ` | integer in a string | Postern's id of the event |
| ` + "`event_id`, `event_type`" + ` | string | the event key, and the event type of the provider |
| ` + "`run`" + ` | integer | number of the run; 0 is live |
| ` + "`actor`, `reason`" + ` | string | the operator or schedule that requested it, and the given reason |
| ` + "`attempts`, `due`" + ` | integer, time | failed attempts, and the time of the next one |
| ` + "`at`, `created_at`, `started_at`, `updated_at`, `ended_at`" + ` | time | when it happened; null if it has not |
| ` + "`rule_version`" + ` | integer | version of the rule that decided |
| ` + "`status`, `state`, `phase`, `stage`" + ` | string | its current status |
| ` + "`detail`, `failure`, `message`, `error`" + ` | string | explanation for an operator, as text |
`

const streamText = `each
has the event's id. The header ` + "`Last-Event-ID`, or `after`" + `, continues after an event without loss or
repetition. If more than 200 events match in a second, a message ` + "`more`" + ` has the number of the others
(` + "`count`" + `). A comment each 15 s shows that the stream is alive. ` + "`status`" + ` is the status when the event
is read, about a second after it is stored. A process serves 50 streams at most, else 503.`

const changesText = `[The feeds](feeds.md#changes-by-http) have the rules for readers.`
