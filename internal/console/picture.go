package console

import (
	"math"
	"time"
)

// timeline draws when things happened to one thing, on one axis.
type timeline struct {
	Width, Height int
	Marks         []mark
	From, To      string
	Label         string
}

// mark is a moment on a timeline.
type mark struct {
	X       int
	Row     int
	Tone    string
	Label   string
	When    cell
	Href    string
	OnRight bool
}

const (
	timelineWidth  = 1000
	timelineMargin = 12
	// logScaleFrom is the length of a timeline from which its scale is logarithmic.
	logScaleFrom = time.Hour
)

// moment is something that happened.
type moment struct {
	at          time.Time
	label, tone string
	href        string
}

// newTimeline places moments, which are in order. The first one is at the left. Long timelines have
// a logarithmic scale, so that the first seconds stay visible.
func (r *request) newTimeline(label string, moments []moment) *timeline {
	if len(moments) < 2 {
		return nil
	}
	first, last := moments[0].at, moments[len(moments)-1].at
	span := last.Sub(first)
	position := func(t time.Time) float64 {
		if span <= 0 {
			return 0
		}
		if span > logScaleFrom {
			return math.Log1p(t.Sub(first).Seconds()*1000) / math.Log1p(span.Seconds()*1000)
		}
		return float64(t.Sub(first)) / float64(span)
	}
	l := &timeline{Width: timelineWidth, Label: label, From: r.time(first).Text, To: r.time(last).Text}
	for i, m := range moments {
		x := timelineMargin + int(position(m.at)*(timelineWidth-2*timelineMargin))
		l.Marks = append(l.Marks, mark{X: x, Row: i, Tone: m.tone, Label: m.label, When: r.time(m.at), Href: m.href,
			OnRight: x > timelineWidth/2})
	}
	l.Height = len(moments)*18 + 26
	return l
}

// orders draws things in two orders: each is a point above, a point below and a line between.
type orders struct {
	Width, Height int
	Label         string
	Points        []orderPoint
}

// orderPoint is a thing in both orders. Top and Bottom are its places from the left.
type orderPoint struct {
	Top, Bottom       int
	Tone, Title, Href string
}

const (
	orderMargin  = 14
	orderHeight  = 112
	orderSpacing = 64
)

func newOrders(label string) *orders {
	return &orders{Width: timelineWidth, Height: orderHeight, Label: label}
}

// add adds a thing with its positions in the two orders of n things.
func (l *orders) add(top, bottom, n int, p orderPoint) {
	spacing := min(orderSpacing, (timelineWidth-2*orderMargin)/max(1, n-1))
	p.Top, p.Bottom = orderMargin+top*spacing, orderMargin+bottom*spacing
	l.Points = append(l.Points, p)
}

// chart is a strip of stacked bars over time.
type chart struct {
	Width, Height int
	Bars          []bar
	Legend        []legendItem
	From, To      string
	Label         string
	// Table has the same numbers as text.
	Table *table
}

type bar struct {
	X, Y, Width, Height int
	Tone, Title, Href   string
}

type legendItem struct{ Tone, Label, Total string }

// series is a named row of numbers of a chart.
type series struct {
	label, tone string
	values      []int64
	// hrefs are the links of the bars; nil: they have none.
	hrefs []string
}

const (
	chartWidth  = 960
	chartHeight = 64
)

// newChart stacks series that have one value for each step.
func newChart(label string, titles []string, all []series) *chart {
	c := &chart{Width: chartWidth, Height: chartHeight, Label: label}
	steps := len(titles)
	if steps == 0 {
		return nil
	}
	var highest int64 = 1
	for i := range steps {
		var sum int64
		for _, s := range all {
			sum += s.values[i]
		}
		highest = max(highest, sum)
	}
	for i := range steps {
		left, right := i*chartWidth/steps, (i+1)*chartWidth/steps
		y := chartHeight
		for _, s := range all {
			if s.values[i] == 0 {
				continue
			}
			h := max(1, int(s.values[i]*chartHeight/highest))
			y -= h
			b := bar{X: left, Y: max(0, y), Width: max(1, right-left-1), Height: h, Tone: s.tone,
				Title: titles[i] + ": " + s.label + " " + groupDigits(s.values[i])}
			if s.hrefs != nil {
				b.Href = s.hrefs[i]
			}
			c.Bars = append(c.Bars, b)
		}
	}
	c.Table = chartTable(label, titles, all)
	for _, s := range all {
		var sum int64
		for _, n := range s.values {
			sum += n
		}
		c.Legend = append(c.Legend, legendItem{s.tone, s.label, groupDigits(sum)})
	}
	c.From, c.To = titles[0], titles[steps-1]
	return c
}

// chartTable has the numbers of a chart. It leaves out steps in which there was nothing.
func chartTable(label string, titles []string, all []series) *table {
	t := &table{Label: label, Columns: []string{"Time"}, Empty: "All numbers are 0."}
	for _, s := range all {
		t.Columns = append(t.Columns, s.label)
	}
	for i, title := range titles {
		row, any := []cell{text(title)}, false
		for _, s := range all {
			row, any = append(row, number(s.values[i])), any || s.values[i] != 0
		}
		if any {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
