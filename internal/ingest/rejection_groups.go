package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// RejectionGroup is the rejected deliveries of one source with one reason.
type RejectionGroup struct {
	Source string `json:"source"`
	// Why they were rejected, as a word.
	Reason string `json:"reason"`
	// The reason and its usual cause, in a sentence.
	Explanation string `json:"explanation"`
	// The probable cause, by what is stored of the source; "" if there are too few
	// rejections.
	Diagnosis string `json:"diagnosis"`
	// The number of stored rejections.
	Count int64 `json:"count"`
	// How many of them have only a part of their body, and cannot be verified again.
	Truncated int64 `json:"truncated"`
	// FirstAt and LastAt are when the first and the last of them were received.
	FirstAt events.Instant `json:"first_at"`
	LastAt  events.Instant `json:"last_at"`
	// AcceptedAt is when the source's last stored webhook was received; null if none is among the
	// newest events of the log.
	AcceptedAt events.Instant `json:"accepted_at"`
	// Remotes are at most five senders, those with the most deliveries first. MoreRemotes is the
	// number of the other senders.
	Remotes     []RejectionRemote `json:"remotes"`
	MoreRemotes int               `json:"more_remotes"`

	// rejectedSince is the number of deliveries that were received after AcceptedAt, the first of
	// them at rejectedFrom.
	rejectedSince int64
	rejectedFrom  time.Time
}

// RejectionRemote is a sender of rejected deliveries.
type RejectionRemote struct {
	// Address is an IP address, or a network if there are many addresses.
	Address string `json:"address"`
	Count   int64  `json:"count"`
}

const (
	// maxRemotes is the maximum number of listed senders of a group.
	maxRemotes = 5
	// groupedRejections is how many rejections are grouped at most, the newest.
	groupedRejections = 20_000
	// newestEvents is how many events are searched for the last accepted delivery of each source.
	newestEvents = 10_000
)

const groupsStartSQL = `SELECT id, received_at FROM rejections ORDER BY id DESC OFFSET $1 LIMIT 1`

const rejectionGroupsSQL = `
WITH accepted AS (
  SELECT e.source, max(e.received_at) AS at
  FROM (SELECT source, origin, received_at FROM events ORDER BY id DESC LIMIT $7) e WHERE e.origin = 'webhook'
  GROUP BY e.source)
SELECT s.name, r.reason, r.remote, count(*), count(*) FILTER (WHERE octet_length(r.body) < r.bytes),
  min(r.received_at), max(r.received_at), a.at, count(*) FILTER (WHERE r.received_at > a.at OR a.at IS NULL),
  min(r.received_at) FILTER (WHERE r.received_at > a.at OR a.at IS NULL)
FROM rejections r JOIN sources s ON s.number = r.source LEFT JOIN accepted a ON a.source = r.source
WHERE r.id < $1 AND r.id >= $2` + rejectionConditions + `
GROUP BY s.name, r.reason, r.remote, a.at ORDER BY 1, 2, 4 DESC, 3`

// GroupRejections groups the selected deliveries by source and reason, the groups with the newest
// delivery first. It reads the newest rejections only, and says how far back.
func GroupRejections(ctx context.Context, db postgres.DB, f RejectionFilter) (page events.Page[RejectionGroup],
	err error) {
	page.Items = []RejectionGroup{}
	var first int64
	err = db.QueryRow(ctx, groupsStartSQL, groupedRejections).Scan(&first, &page.SearchedTo.Time)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return page, fmt.Errorf("group rejections: %w", err)
	}
	var g RejectionGroup
	var sender RejectionRemote
	var truncated int64
	var firstAt, lastAt, acceptedAt, rejectedFrom *time.Time
	err = postgres.ForEach(ctx, db, rejectionGroupsSQL, f.args(math.MaxInt64, first, newestEvents),
		[]any{&g.Source, &g.Reason, &sender.Address, &sender.Count, &truncated, &firstAt, &lastAt, &acceptedAt,
			&g.rejectedSince, &rejectedFrom}, func() error {
			last := len(page.Items) - 1
			if last < 0 || page.Items[last].Source != g.Source || page.Items[last].Reason != g.Reason {
				page.Items = append(page.Items, RejectionGroup{Source: g.Source, Reason: g.Reason,
					Explanation: provider.Reason(g.Reason).Explain(), FirstAt: events.Instant{Time: *firstAt}})
				last++
			}
			page.Items[last].add(sender, truncated, *firstAt, *lastAt, acceptedAt, g.rejectedSince, rejectedFrom)
			return nil
		})
	if err != nil {
		return page, fmt.Errorf("group rejections: %w", err)
	}
	for i := range page.Items {
		page.Items[i].summarizeRemotes()
		page.Items[i].Diagnosis = page.Items[i].diagnose()
	}
	slices.SortStableFunc(page.Items, func(a, b RejectionGroup) int { return b.LastAt.Compare(a.LastAt.Time) })
	return page, nil
}

// add adds the deliveries of one sender.
func (g *RejectionGroup) add(sender RejectionRemote, truncated int64, firstAt, lastAt time.Time, acceptedAt *time.Time,
	rejectedSince int64, rejectedFrom *time.Time) {
	g.Count += sender.Count
	g.Truncated += truncated
	g.Remotes = append(g.Remotes, sender)
	if firstAt.Before(g.FirstAt.Time) {
		g.FirstAt.Time = firstAt
	}
	if lastAt.After(g.LastAt.Time) {
		g.LastAt.Time = lastAt
	}
	if acceptedAt != nil {
		g.AcceptedAt.Time = *acceptedAt
	}
	g.rejectedSince += rejectedSince
	if rejectedFrom != nil && (g.rejectedFrom.IsZero() || rejectedFrom.Before(g.rejectedFrom)) {
		g.rejectedFrom = *rejectedFrom
	}
}

// summarizeRemotes limits the senders. Many addresses become their networks.
func (g *RejectionGroup) summarizeRemotes() {
	if len(g.Remotes) > maxRemotes {
		counts := map[string]int64{}
		for _, r := range g.Remotes {
			counts[networkOf(r.Address)] += r.Count
		}
		g.Remotes = g.Remotes[:0]
		for address, n := range counts {
			g.Remotes = append(g.Remotes, RejectionRemote{address, n})
		}
	}
	slices.SortFunc(g.Remotes, func(a, b RejectionRemote) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Address, b.Address))
	})
	g.MoreRemotes = max(0, len(g.Remotes)-maxRemotes)
	g.Remotes = g.Remotes[:len(g.Remotes)-g.MoreRemotes]
}

// networkOf returns the network of an address: /24 for IPv4, and /48 for IPv6.
func networkOf(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	bits := 48
	if ip = ip.Unmap(); ip.Is4() {
		bits = 24
	}
	network, err := ip.WithZone("").Prefix(bits)
	if err != nil {
		return address
	}
	return network.String()
}

// fewRejections is the number of deliveries below which there is no diagnosis.
const fewRejections = 3

// causes are the probable causes of a reason.
type causes struct {
	// stopped: no delivery is accepted any more. single and several: accepted deliveries continue,
	// and the rejected ones come from one sender or from several.
	stopped, single, several string
}

const (
	causeProxy   = "probably a proxy removes or changes the header, or the source names the wrong provider"
	causeScanner = "probably a scanner or another client that is not the provider"
)

var causesOf = map[provider.Reason]causes{
	provider.WrongSignature: {"the secret was probably changed on one side only",
		"probably a forger, or a sender with another secret",
		"probably a second endpoint at the provider with another secret, or forgers"},
	provider.MissingSignature:   {causeProxy, causeScanner, causeScanner},
	provider.MalformedSignature: {causeProxy, causeScanner, causeScanner},
	provider.MissingHeader:      {causeProxy, causeScanner, causeScanner},
	provider.StaleTimestamp: {"probably this machine's clock is ahead, or a queue before the gateway is long",
		"probably somebody sends captured deliveries again", "probably some deliveries wait in a queue before the " +
			"gateway"},
	provider.FutureTimestamp: {"probably this machine's clock is behind", "probably the clock of this sender is ahead",
		"probably the clocks of some senders are ahead"},
	provider.ForbiddenAccount: {"the endpoint probably belongs to another account: add it to the source's accounts " +
		"if it is yours", "probably another account uses this endpoint: add it to the source's accounts if it is yours",
		"probably other accounts use this endpoint: add them to the source's accounts if they are yours"},
}

// diagnose describes the probable cause.
func (g *RejectionGroup) diagnose() string {
	cause, known := causesOf[provider.Reason(g.Reason)]
	single, accepted := len(g.Remotes)+g.MoreRemotes == 1, g.AcceptedAt.After(g.FirstAt.Time)
	switch {
	case !known || g.Count < fewRejections:
		return ""
	case accepted && single:
		return "accepted deliveries continue, and all rejected ones come from " + g.Remotes[0].Address + ": " +
			cause.single
	case accepted && g.rejectedSince < fewRejections:
		return "accepted deliveries continue, and the rejected ones come from several senders: " + cause.several
	case g.rejectedSince < fewRejections:
		return ""
	}
	text := fmt.Sprintf("since %s every delivery of %s is rejected (%s) and none is accepted: %s",
		g.rejectedFrom.UTC().Format("2006-01-02 15:04:05 UTC"), g.Source, g.Reason, cause.stopped)
	if single && g.Reason == string(provider.WrongSignature) {
		text += "; if " + g.Remotes[0].Address + " is not the provider, probably a forger"
	}
	return text
}
