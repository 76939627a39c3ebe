package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

const reportReadableSQL = `
UPDATE sources s SET api_reads = string_to_array(r.reads, ',') FROM unnest($1::int[], $2::text[]) AS r(number, reads)
WHERE s.number = r.number AND s.api_reads IS DISTINCT FROM string_to_array(r.reads, ',')`

// ReportReadable records which scopes (Object, Objects, Events) the configuration of this process
// lets a run read, by source; none without a section api. CheckReadable reads them.
func ReportReadable(ctx context.Context, pool *pgxpool.Pool, reads map[int32][]string) error {
	var numbers []int32
	var lists []string
	for number, list := range reads {
		numbers, lists = append(numbers, number), append(lists, strings.Join(list, ","))
	}
	if _, err := pool.Exec(ctx, reportReadableSQL, numbers, lists); err != nil {
		return fmt.Errorf("record what can be read of the providers' APIs: %w", err)
	}
	return nil
}

const readableSQL = `SELECT name, provider, api_reads FROM sources WHERE number = $1`

// CheckReadable returns an error that wraps events.ErrInvalid if the processors' configuration does
// not let a run read the scope of its parameters. The error says how to change the configuration or
// the parameters. If no processor has reported yet, it returns nil, and the run waits for one.
func CheckReadable(ctx context.Context, pool *pgxpool.Pool, o *Params) error {
	var name, providerName string
	var reads []string
	if err := pool.QueryRow(ctx, readableSQL, o.Source).Scan(&name, &providerName, &reads); err != nil {
		return fmt.Errorf("read what can be read of the API of source %d: %w", o.Source, err)
	}
	if reads == nil || slices.Contains(reads, o.Scope) {
		return nil
	}
	p, _ := all.Named(providerName)
	_, ownAPI := p.(provider.Reader)
	_, hooks := p.(provider.DeliveryLister)
	message := ""
	switch {
	case len(reads) == 0:
		message = withoutAPI(name, ownAPI, cmp.Or(o.Type, "TYPE"))
	case o.Scope == Events:
		message = withoutEvents(name, ownAPI, hooks, slices.Contains(reads, Objects))
	case hooks:
		message = "the API of source " + name + " lists no objects as it is configured: name the repositories. " +
			add(name+".api", "repositories: [OWNER/NAME]")
	default:
		message = "the API of source " + name + " lists no objects as it is configured: give the type a list " +
			"(docs/how-to/describe-another-api.md), or name one object: --type TYPE --object ID"
	}
	return fmt.Errorf("%w: %s", events.ErrInvalid, message)
}

// withoutAPI is the error of a source without a section api. A provider without an API of its own
// needs a description.
func withoutAPI(name string, ownAPI bool, objectType string) string {
	message := "the processors' configuration has no section api for source " + name + ", so no API can be read. "
	key := "key: {env: " + variable(name) + "}"
	if ownAPI {
		return message + add(name, "api: {"+key+"}")
	}
	return message + "Describe the API (docs/how-to/describe-another-api.md). " +
		add(name, fmt.Sprintf("api: {base_url: 'https://api.example.com', %s, control: /me, objects: {%q: {get: %q}}}",
			key, objectType, "/"+objectType+"/{id}"))
}

// WithoutEvents is the error of an API that lists no events, or not as it is configured.
func withoutEvents(name string, ownAPI, hooks, objects bool) string {
	message := "the API of source " + name + " lists no events"
	if objects {
		message += fmt.Sprintf(": compare objects instead, postern reconcile %s --objects (over HTTP \"objects\": "+
			"true)", name)
	} else {
		message += ", and no objects, as it is configured"
	}
	switch {
	case hooks:
		message += ". To read the deliveries of its webhooks, name them. " +
			add(name+".api", "hooks: [repos/OWNER/NAME/hooks/ID]")
	case !ownAPI:
		message += ". Where it does list events, describe that list in sources." + name +
			".api.events (docs/how-to/describe-another-api.md)"
	}
	return message
}

// add returns the advice to add a line to a section of sources.
func add(section, line string) string {
	return "Add this line to sources." + section + ", and try again once a processor has read it: " + line
}

// variable returns the name of the environment variable for the key of a source's API.
func variable(source string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToUpper(source)) + "_API_KEY"
}
