package main

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/telemetry/rates"
)

// Limits of a screen. The rejections get few lines, because everything below them may be cut off.
const (
	screenWidth      = 80
	screenRejections = 3
	shortestName     = 13 // of a source's name, on a narrow screen
)

// frame is a view as text, with a maximum width.
type frame struct {
	*rates.View
	bytes.Buffer
	width int
}

// newFrame returns a view as lines of text, with a maximum number of rows of the table of
// rejections. What grows with the number of sources is at the end, so that the important parts stay
// visible.
func newFrame(v *rates.View, width, rejections int) []string {
	b := &frame{View: v, width: width}
	b.writeHead()
	b.writeSummary()
	b.writeOutcomes()
	b.writeRejections(rejections)
	b.writeSources()
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

func (b *frame) writeHead() {
	up := 0
	for _, p := range b.Processes {
		if p.Up {
			up++
		}
	}
	over := "no interval yet"
	if b.Seconds > 0 {
		over = fmt.Sprintf("rates over %.1f s", b.Seconds)
	}
	fmt.Fprintf(b, "postern top   %s   %s   %d of %s\n", b.At.Format(time.TimeOnly), over, up,
		plural(len(b.Processes), "process", "processes"))
	for _, p := range b.Processes {
		state := "up " + formatDuration(p.UpSeconds)
		if !p.Up {
			state = "DOWN: " + p.Error
		}
		fmt.Fprintf(b, "  %s   %s\n", escapeControl(p.From), escapeControl(state))
	}
	b.WriteByte('\n')
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// writeSummary writes the sums over all processes, a line for each stage of an event. No line is
// wider than screenWidth.
func (b *frame) writeSummary() {
	in, s, a, l := &b.Ingest, &b.Stream, &b.Apply, &b.Backlog
	line := func(name string, cells ...string) {
		// Cells have a minimum width, so that changing numbers do not move the columns.
		fmt.Fprintf(b, "%-9s%-20s  %-27s  %s\n", name, cells[0], cells[1], cells[2])
	}
	line("INGEST", perSecond(in.Deliveries, "deliveries"), "ack "+describeQuantiles(in.AckP50, in.AckP99),
		"queue "+formatCount(in.Queue)+", "+formatDuration(in.QueueOldest))
	line("APPEND", formatCount(in.BatchMean)+" per batch", "took "+describeQuantiles(in.AppendP50, in.AppendP99),
		"memory "+formatBytes(in.HeldBytes))
	line("STREAM", perSecond(s.Published, "published"), perSecond(s.Republished, "republished"),
		perSecond(s.Unpublished, "unsent"))
	line("APPLY", perSecond(a.Events, "events"), "took "+describeQuantiles(a.P50, a.P99), formatCount(a.BatchMean)+
		" per batch")
	line("LAG", formatCount(s.LagMessages)+" messages", describeQuantiles(a.LagP50, a.LagP99), "oldest "+
		formatDuration(s.LagSeconds))
	line("CHANGES", perSecond(a.Changes, "sent"), "unsent "+formatCount(l.Unsent)+" batches", "oldest "+
		formatDuration(l.UnsentSeconds))
	line("BACKLOG", formatCount(l.Failed)+" failed", formatCount(l.Dead)+" dead", "")
	b.writePools()
	if s.LostConnections > 0 {
		fmt.Fprintf(b, "LOST     %s to JetStream\n", plural(s.LostConnections, "connection", "connections"))
	}
	if s.Requeued > 0 {
		fmt.Fprintf(b, "REQUEUED %s\n", perSecond(s.Requeued, "messages"))
	}
	b.WriteByte('\n')
}

// writePools writes the connections in use by role, on several lines if the screen is too narrow.
func (b *frame) writePools() {
	if len(b.Database) == 0 {
		return
	}
	waits := rates.Value(0)
	for _, p := range b.Database {
		waits += p.Waits
	}
	line := fmt.Sprintf("%-9s%s   in use", "DATABASE", "waits "+perSecond(waits, ""))
	for i, p := range b.Database {
		pool := " " + escapeControl(p.Role) + " " + formatCount(p.InUse) + "/" + formatCount(p.Limit)
		if i < len(b.Database)-1 {
			pool += ","
		}
		if len(line)+len(pool) > screenWidth {
			fmt.Fprintln(b, line)
			line = strings.Repeat(" ", 8)
		}
		line += pool
	}
	fmt.Fprintln(b, line)
}

func describeQuantiles(p50, p99 rates.Value) string {
	return "p50 " + formatDuration(p50) + ", p99 " + formatDuration(p99)
}

// writeSources writes the table of sources with deliveries, the busiest first.
func (b *frame) writeSources() {
	active := slices.DeleteFunc(slices.Clone(b.Sources), func(s rates.Source) bool { return s.Total == 0 })
	b.writeTable(b.width, "SOURCE, PER s\tDELIVERIES\tEVENTS\tDUPLICATE\tCONFLICT\tREJECTED\tNOT STORED", len(active),
		func(i int) []string {
			s := active[i]
			name := s.Source
			if name == "" {
				name = "(unknown)"
			}
			return []string{name, formatCount(s.Deliveries), formatCount(s.Stored), formatCount(s.Duplicates),
				formatCount(s.Conflicts),
				formatCount(s.Rejected), formatCount(s.Refused)}
		})
	if silent := len(b.Sources) - len(active); silent > 0 {
		fmt.Fprintf(b, "no delivery since the start from %s\n\n", plural(silent, "source", "sources"))
	}
}

// writeRejections writes the table of the reasons of rejections. If the screen is too small, the
// last line says how many more there are.
func (b *frame) writeRejections(most int) {
	shown, more := b.Rejected, ""
	if len(shown) > most {
		more = fmt.Sprintf("... %d more: use --once", len(shown)-most+1)
		shown = shown[:most-1]
	}
	b.writeTable(b.width, "REJECTED BY\tREASON\tPER s\tSINCE START", len(shown), func(i int) []string {
		r := shown[i]
		return []string{r.Source, r.Reason, formatCount(r.Rate), formatCount(r.Total)}
	})
	if more != "" {
		b.Truncate(b.Len() - 1) // the line belongs to the table
		b.WriteString(more + "\n\n")
	}
}

// writeOutcomes writes a table with one column per outcome, because the outcomes are always the
// same.
func (b *frame) writeOutcomes() {
	head, rates, totals := "OUTCOMES", []string{"events/s"}, []string{"since start"}
	for _, o := range b.Outcomes {
		head += "\t" + strings.ToUpper(escapeControl(o.Status))
		rates, totals = append(rates, formatCount(o.Rate)), append(totals, formatCount(o.Total))
	}
	if len(b.Outcomes) > 0 {
		b.writeTable(math.MaxInt, head, 2, func(i int) []string { return [][]string{rates, totals}[i] })
	}
}

// writeTable aligns numbers to the right. It writes nothing without rows. If the table is wider
// than the screen, it shortens the names in the first column.
func (b *frame) writeTable(width int, head string, n int, row func(i int) []string) {
	if n == 0 {
		return
	}
	rows := [][]string{strings.Split(head, "\t")}
	for i := range n {
		rows = append(rows, row(i))
	}
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			r[i] = escapeControl(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	others := 0
	for _, w := range widths[1:] {
		others += w + 2
	}
	widths[0] = min(widths[0], max(width-others, shortestName))
	for _, r := range rows {
		r[0] = truncateText(r[0], widths[0])
		for i, cell := range r {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			numeric := i > 0 && (rows[1][i] == "-" || strings.ContainsAny(rows[1][i][:1], "0123456789"))
			if i > 0 {
				b.WriteString("  ")
			}
			if numeric {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
}

func perSecond(n rates.Value, what string) string {
	return strings.TrimSpace(formatCount(n)+" "+what) + "/s"
}

// formatCount formats a number with a suitable precision: 1234, 12.3, 0.05.
func formatCount(n rates.Value) string {
	f := float64(n)
	switch {
	case !n.Known():
		return "-"
	case f == math.Trunc(f) || math.Abs(f) >= 100:
		return groupThousands(strconv.FormatFloat(math.Round(f), 'f', 0, 64))
	case math.Abs(f) >= 1:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case math.Abs(f) < 0.005:
		return "0"
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

func groupThousands(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// formatDuration formats a duration in a suitable unit.
func formatDuration(seconds rates.Value) string {
	f := float64(seconds)
	switch {
	case !seconds.Known():
		return "-"
	case f == 0:
		return "0"
	case f < 0.01:
		return strconv.FormatFloat(f*1000, 'f', 1, 64) + " ms"
	case f < 1:
		return strconv.FormatFloat(f*1000, 'f', 0, 64) + " ms"
	case f < 120:
		return strconv.FormatFloat(f, 'f', 1, 64) + " s"
	}
	return strings.TrimSuffix(time.Duration(f*float64(time.Second)).Truncate(time.Minute).String(), "0s")
}

// formatBytes formats a size in a suitable unit.
func formatBytes(bytes rates.Value) string {
	f, unit := float64(bytes), "B"
	if !bytes.Known() {
		return "-"
	}
	for _, larger := range []string{"KiB", "MiB", "GiB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, larger
	}
	if unit == "B" {
		return strconv.FormatFloat(f, 'f', 0, 64) + " B"
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + unit
}

// fitLines fits lines to a screen. If there are too many, it drops empty lines first. If lines are
// cut, the last one says how many.
func fitLines(lines []string, width, height int) []string {
	if height > 0 && len(lines) > height {
		lines = slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == "" })
	}
	if height > 0 && len(lines) > height {
		rest := len(lines) - height + 1
		lines = append(lines[:height-1:height-1], fmt.Sprintf("... %s more: enlarge the window, or use --once",
			plural(rest, "line", "lines")))
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = truncateText(strings.TrimRight(l, " "), width)
	}
	return out
}

// truncateText shortens a text to a number of characters and marks the cut.
func truncateText(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:max(most-1, 0)]) + "…"
}
