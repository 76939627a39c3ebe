package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/postern-gateway/postern/bench/suite"
)

// The pictures of a run.
const (
	latencyPicture    = "latency.svg"
	throughputPicture = "throughput.svg"
	costPicture       = "cpu.svg"
)

// style is how a target is drawn in every picture.
type style struct {
	target string
	color  color.Color
	shape  draw.GlyphDrawer
}

// styles have colours that colour-blind readers can distinguish (Okabe and Ito), and different
// marks.
var styles = []style{
	{suite.Postern, color.RGBA{0x00, 0x72, 0xb2, 0xff}, draw.CircleGlyph{}},
	{suite.Bare, color.RGBA{0x00, 0x9e, 0x73, 0xff}, draw.BoxGlyph{}},
	{suite.Afternoon, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, draw.PyramidGlyph{}},
	{suite.Verify, color.RGBA{0x77, 0x77, 0x77, 0xff}, draw.CrossGlyph{}},
}

// picture has a file name, a text alternative, and a function that draws it or returns nil if there
// is nothing to draw.
type picture struct {
	file, about string
	draw        func() (*plot.Plot, error)
}

func (r *results) pictures() []picture {
	return []picture{
		{throughputPicture, "Events per second against connections, for Postern and the references", r.throughput},
		{latencyPicture, "Time to a response against offered load, p50 and p99, for Postern and the references",
			r.latency},
		{costPicture, "Processor time per event by program, for Postern and the references", r.cost},
	}
}

// writePictures draws the pictures for which there are samples into a folder.
func (r *results) writePictures(dir string) error {
	for _, p := range r.pictures() {
		drawn, err := p.draw()
		if err == nil && drawn != nil {
			err = save(drawn, filepath.Join(dir, p.file))
		}
		if err != nil {
			return fmt.Errorf("draw %s: %w", p.file, err)
		}
	}
	return nil
}

// connections are the numbers of connections of the rows with a closed loop.
var connections = []int{1, 16, 64, 256}

// throughput draws events per second against connections.
func (r *results) throughput() (*plot.Plot, error) {
	p := canvas("Events per second against connections", "connections (closed loop)", "events/s")
	top := 0.0
	for _, l := range styles {
		var line points
		for _, n := range connections {
			f := r.Samples.Value(suite.Closed(n), l.target, suite.Rate)
			line.add(float64(n), f)
			top = max(top, f.Max)
		}
		if err := line.draw(p, l, l.target, nil); err != nil {
			return nil, err
		}
	}
	if top == 0 {
		return nil, nil
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, named(connections...)
	p.X.Min, p.X.Max = 0.85, 300
	p.Y.Min, p.Y.Max, p.Y.Tick.Marker = 0, top*1.05, plot.TickerFunc(evenly)
	p.Legend.Left = true
	return p, nil
}

// latency draws the time to a response against offered load, p50 and p99.
func (r *results) latency() (*plot.Plot, error) {
	p := canvas("Time to a response, from the intended send: p99 solid, p50 dashed",
		"offered events/s (open loop, 10 to 90 % of each target's own capacity)", "milliseconds")
	least, most, right := math.Inf(1), 0.0, 0.0
	for _, l := range styles {
		for _, q := range []struct {
			legend string
			metric suite.Metric
			dashes []vg.Length
		}{{l.target, suite.P99, nil}, {"", suite.P50, []vg.Length{vg.Points(4), vg.Points(3)}}} {
			var line points
			for _, percent := range suite.OfferedShares {
				row := suite.Offered(percent)
				f := r.Samples.Value(row, l.target, q.metric)
				at := r.offered(row, l.target)
				line.add(at, f)
				if f.Rounds > 0 {
					least, most, right = min(least, f.Min), max(most, f.Max), max(right, at)
				}
			}
			if err := line.draw(p, l, q.legend, q.dashes); err != nil {
				return nil, err
			}
		}
	}
	if most == 0 {
		return nil, nil
	}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(oneTwoFive)
	p.Y.Min, p.Y.Max = least*0.8, most*math.Pow(most/least, 0.25) // room for the legend
	p.X.Min, p.X.Max, p.X.Tick.Marker = 0, right*1.03, plot.TickerFunc(evenly)
	p.Legend.Left = true
	return p, nil
}

// cost draws processor time per event by program, one bar per target.
func (r *results) cost() (*plot.Plot, error) {
	p := canvas("Processor time per event, 64 connections", "", "microseconds")
	parts := []struct {
		name   string
		color  color.Color
		metric func(target string) suite.Metric
	}{
		{"the program itself", color.RGBA{0x00, 0x72, 0xb2, 0xff},
			func(target string) suite.Metric { return suite.CPUOf(program(target)) }},
		{"PostgreSQL", color.RGBA{0xe6, 0x9f, 0x00, 0xff},
			func(string) suite.Metric { return suite.CPUOf("postgresql") }},
		{"NATS", color.RGBA{0x00, 0x9e, 0x73, 0xff}, func(string) suite.Metric { return suite.CPUOf("nats") }},
	}
	targets := r.Samples.Targets("closed-64")
	if len(targets) == 0 {
		return nil, nil
	}
	var below *plotter.BarChart
	totals := make([]float64, len(targets))
	for _, part := range parts {
		values := make(plotter.Values, len(targets))
		for i, target := range targets {
			values[i] = r.Samples.Value("closed-64", target, part.metric(target)).Median
			totals[i] += values[i]
		}
		bars, err := plotter.NewBarChart(values, vg.Points(56))
		if err != nil {
			return nil, err
		}
		bars.Color, bars.LineStyle.Width = part.color, 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(part.name, bars)
	}
	if err := label(p, totals); err != nil {
		return nil, err
	}
	p.NominalX(targets...)
	p.X.Min, p.X.Max = -0.6, float64(len(targets))-0.4
	p.Y.Min, p.Y.Tick.Marker = 0, plot.TickerFunc(evenly)
	p.Y.Max *= 1.12
	p.Legend.Left = true
	return p, nil
}

// program returns the program of a target.
func program(target string) string {
	if target == suite.Postern {
		return "gateway"
	}
	return target
}

func label(p *plot.Plot, totals []float64) error {
	var at plotter.XYLabels
	for i, v := range totals {
		at.XYs = append(at.XYs, plotter.XY{X: float64(i), Y: v})
		at.Labels = append(at.Labels, strconv.Itoa(int(math.Round(v))))
	}
	labels, err := plotter.NewLabels(at)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font, labels.TextStyle[i].XAlign = sans(12), draw.XCenter
	}
	labels.Offset = vg.Point{Y: vg.Points(4)}
	p.Add(labels)
	return nil
}
