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
)

// What a screen has room for. What stands below the rejections is what may be cut off, so they take few lines of it.
const (
	screenWidth      = 80
	screenRejections = 3
	shortestName     = 13 // of a source, however narrow the screen is
)

// room is what a frame may take: columns, and rows of the table of rejections.
type room struct{ width, rejections int }

// frame is a view as lines for a person: above what grows with the number of sources stands what everybody needs to see.
func (v *view) frame(r room) []string {
	var b bytes.Buffer
	v.head(&b)
	v.summary(&b)
	v.outcomes(&b)
	v.rejections(&b, r)
	v.sources(&b, r)
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

func (v *view) head(b *bytes.Buffer) {
	up := 0
	for _, p := range v.Processes {
		if p.Up {
			up++
		}
	}
	over := "no interval yet"
	if v.Seconds > 0 {
		over = fmt.Sprintf("rates over %.1f s", v.Seconds)
	}
	fmt.Fprintf(b, "postern top   %s   %s   %d of %s\n", v.At.Format(time.TimeOnly), over, up, plural(len(v.Processes), "process", "processes"))
	for _, p := range v.Processes {
		state := "up " + span(p.UpSeconds)
		if !p.Up {
			state = "DOWN: " + p.Error
		}
		fmt.Fprintf(b, "  %s   %s\n", plain(p.From), plain(state))
	}
	b.WriteByte('\n')
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// summary is what every process adds to, a line for each stage that an event passes; none is wider than the usual screen.
func (v *view) summary(b *bytes.Buffer) {
	in, s, a, l := &v.Ingest, &v.Stream, &v.Apply, &v.Left
	line := func(name string, cells ...string) {
		// Cells have a least width, so that what moves is the numbers and not the columns.
		fmt.Fprintf(b, "%-9s%-20s  %-27s  %s\n", name, cells[0], cells[1], cells[2])
	}
	line("INGEST", perSecond(in.Deliveries, "deliveries"), "ack "+halfAndMost(in.AckP50, in.AckP99), "queue "+count(in.Queue)+", "+span(in.QueueOldest))
	line("APPEND", count(in.BatchMean)+" per batch", "took "+halfAndMost(in.AppendP50, in.AppendP99), "held "+size(in.HeldBytes))
	line("STREAM", perSecond(s.Published, "published"), perSecond(s.Audited, "brought back"), perSecond(s.Left, "left out"))
	line("APPLY", perSecond(a.Events, "events"), "took "+halfAndMost(a.P50, a.P99), count(a.BatchMean)+" per batch")
	line("LAG", count(s.LagMessages)+" messages", halfAndMost(a.LagP50, a.LagP99), "oldest "+span(s.LagSeconds))
	line("CHANGES", perSecond(a.Changes, "sent"), "unsent "+count(l.Unsent)+" batches", "oldest "+span(l.UnsentSeconds))
	line("LEFT", count(l.Failed)+" failed", count(l.Dead)+" dead", "")
	v.pools(b)
	if s.NotUp > 0 {
		fmt.Fprintf(b, "LOST     %s to JetStream\n", plural(s.NotUp, "connection", "connections"))
	}
	if s.HandedBack > 0 {
		fmt.Fprintf(b, "TROUBLE  messages are handed back, %s\n", perSecond(s.HandedBack, ""))
	}
	b.WriteByte('\n')
}

// pools are the connections in use by role, on further lines where the screen is too narrow for all.
func (v *view) pools(b *bytes.Buffer) {
	if len(v.Database) == 0 {
		return
	}
	waits := quantity(0)
	for _, p := range v.Database {
		waits += p.Waits
	}
	line := fmt.Sprintf("%-9s%s   in use", "DATABASE", "waits "+perSecond(waits, ""))
	for i, p := range v.Database {
		pool := " " + plain(p.Role) + " " + count(p.InUse) + "/" + count(p.Limit)
		if i < len(v.Database)-1 {
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

func halfAndMost(p50, p99 quantity) string { return "p50 " + span(p50) + ", p99 " + span(p99) }

// sources are the table of those that were heard from, the busiest first.
func (v *view) sources(b *bytes.Buffer, r room) {
	heard := slices.DeleteFunc(slices.Clone(v.Sources), func(s sourceView) bool { return s.Total == 0 })
	table(b, r.width, "SOURCE, PER s\tDELIVERIES\tEVENTS\tDUPLICATE\tCONFLICT\tREJECTED\tREFUSED", len(heard), func(i int) []string {
		s := heard[i]
		name := s.Source
		if name == "" {
			name = "(unknown)"
		}
		return []string{name, count(s.Deliveries), count(s.Stored), count(s.Duplicates), count(s.Conflicts), count(s.Rejected), count(s.Refused)}
	})
	if silent := len(v.Sources) - len(heard); silent > 0 {
		fmt.Fprintf(b, "no delivery since the start to %s\n\n", plural(silent, "source", "sources"))
	}
}

// rejections are the table of why deliveries were rejected; where the screen has no room for all, the last line says how many more there are.
func (v *view) rejections(b *bytes.Buffer, r room) {
	shown, more := v.Rejected, ""
	if len(shown) > r.rejections {
		more = fmt.Sprintf("... %d more: use --once", len(shown)-r.rejections+1)
		shown = shown[:r.rejections-1]
	}
	table(b, r.width, "REJECTED BY\tREASON\tPER s\tSINCE START", len(shown), func(i int) []string {
		r := shown[i]
		return []string{r.Source, r.Reason, count(r.Rate), count(r.Total)}
	})
	if more != "" {
		b.Truncate(b.Len() - 1) // the line belongs to the table
		b.WriteString(more + "\n\n")
	}
}

// outcomes is a table that lies on its side: there are always the same few.
func (v *view) outcomes(b *bytes.Buffer) {
	head, rates, totals := "OUTCOMES", []string{"events/s"}, []string{"since start"}
	for _, o := range v.Outcomes {
		head += "\t" + strings.ToUpper(plain(o.Status))
		rates, totals = append(rates, count(o.Rate)), append(totals, count(o.Total))
	}
	if len(v.Outcomes) > 0 {
		table(b, math.MaxInt, head, 2, func(i int) []string { return [][]string{rates, totals}[i] })
	}
}

// table has its numbers to the right of their columns; without rows there is nothing. Where it is wider than the screen, the names
// in the first column are cut and not the numbers.
func table(b *bytes.Buffer, width int, head string, n int, row func(i int) []string) {
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
			r[i] = plain(cell)
			widths[i] = max(widths[i], utf8.RuneCountInString(r[i]))
		}
	}
	others := 0
	for _, w := range widths[1:] {
		others += w + 2
	}
	widths[0] = min(widths[0], max(width-others, shortestName))
	for _, r := range rows {
		r[0] = cut(r[0], widths[0])
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

func perSecond(n quantity, what string) string {
	return strings.TrimSpace(count(n)+" "+what) + "/s"
}

// count is a number with as many places as tell something: 1234, 12.3, 0.05.
func count(n quantity) string {
	f := float64(n)
	switch {
	case !n.known():
		return "-"
	case f == math.Trunc(f) || math.Abs(f) >= 100:
		return thousands(strconv.FormatFloat(math.Round(f), 'f', 0, 64))
	case math.Abs(f) >= 1:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case math.Abs(f) < 0.005:
		return "0"
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

func thousands(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// span is a time in the unit that suits it.
func span(seconds quantity) string {
	f := float64(seconds)
	switch {
	case !seconds.known():
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

// size is a number of bytes in the unit that suits it.
func size(bytes quantity) string {
	f, unit := float64(bytes), "B"
	if !bytes.known() {
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

// clip cuts lines to a screen. Where it is too low the empty lines go first; where lines are left out the last one says how many.
func clip(lines []string, width, height int) []string {
	if height > 0 && len(lines) > height {
		lines = slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return l == "" })
	}
	if height > 0 && len(lines) > height {
		rest := len(lines) - height + 1
		lines = append(lines[:height-1:height-1], fmt.Sprintf("... %s more: enlarge the window, or use --once", plural(rest, "line", "lines")))
	}
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = cut(strings.TrimRight(l, " "), width)
	}
	return out
}

// cut shortens a text to so many characters, the last of which then tells that there was more.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:max(most-1, 0)]) + "…"
}
