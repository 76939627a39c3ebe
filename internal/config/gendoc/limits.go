package main

// aboveLimit is the response to a delivery above each limit, by setting.
var aboveLimit = map[string]string{
	"database.max_connections": "an append that gets no connection within a second means an outage: spool, or 503",
	"ingest.max_body_bytes":    "413; the body is not read if its length is known",
	"ingest.deadline":          "503 with Retry-After; immediately if the expected wait exceeds half of the deadline",
	"ingest.drain_delay":       "no new connections; open requests are completed",
	"ingest.queue": "503 with Retry-After immediately; with several sources, a source gets it above half " +
		"of the limit",
	"ingest.queue_bytes": "503 with Retry-After immediately; with several sources, a source gets it above half " +
		"of the limit",
	"ingest.batch_max":                   "further deliveries are part of the next commit",
	"ingest.batch_bytes":                 "further deliveries are part of the next commit",
	"ingest.writers":                     "the next batch waits",
	"ingest.max_connections":             "no response: the connection waits until another one ends",
	"ingest.max_header_bytes":            "431, and the connection is closed",
	"ingest.header_timeout":              "no response, or 400; the connection is closed",
	"ingest.read_timeout":                "408, and the connection is closed",
	"ingest.idle_timeout":                "no response: the connection is closed",
	"ingest.spool.max_bytes":             "503 with Retry-After, while PostgreSQL is unavailable",
	"rejections.max_count":               "401 as for each rejection; the oldest rejections are deleted",
	"rejections.max_bytes":               "401 as for each rejection; the oldest rejections are deleted",
	"rejections.max_body":                "401 as for each rejection; the stored body is truncated",
	"sources.NAME.tolerance":             "401: the signed time is too old, or in the future",
	"sources.NAME.allow_from":            "403 for other addresses",
	"sources.NAME.max_body_bytes":        "413; the body is not read if its length is known",
	"sources.NAME.rate_limit.per_second": "429 with Retry-After",
	"sources.NAME.rate_limit.burst":      "429 with Retry-After",
}
