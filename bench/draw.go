package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/postern-gateway/postern/bench/suite"
)

// The size of a picture.
const (
	width  = 640
	height = 380
)

var (
	ink   = color.RGBA{0x33, 0x33, 0x33, 0xff}
	faint = color.RGBA{0xe0, 0xe0, 0xe0, 0xff}
)

func sans(size vg.Length) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
}

// canvas returns an empty picture.
func canvas(title, x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font, p.Title.TextStyle.Color, p.Title.Padding = sans(15), ink, vg.Points(10)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Label.TextStyle.Font, axis.Label.TextStyle.Color, axis.Label.Padding = sans(12), ink, vg.Points(6)
		axis.Tick.Label.Font, axis.Tick.Label.Color = sans(11), ink
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = ink, ink
		axis.Padding = 0
	}
	p.Legend.TextStyle.Font, p.Legend.TextStyle.Color = sans(11), ink
	p.Legend.Top, p.Legend.ThumbnailWidth, p.Legend.Padding = true, vg.Points(30), vg.Points(3)
	p.Legend.XOffs, p.Legend.YOffs = vg.Points(8), vg.Points(-4)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, color.Transparent
	p.Add(grid)
	return p
}

// points is a line with an error bar at each point.
type points struct {
	plotter.XYs
	plotter.YErrors
}

// add adds a figure at x, if it was measured.
func (l *points) add(x float64, f suite.Figure) {
	if f.Rounds == 0 {
		return
	}
	l.XYs = append(l.XYs, plotter.XY{X: x, Y: f.Median})
	l.YErrors = append(l.YErrors, struct{ Low, High float64 }{f.Median - f.Min, f.Max - f.Median})
}

// draw adds a line to a picture and, if it has a name, to the legend. Without points it draws
// nothing.
func (l *points) draw(p *plot.Plot, as style, name string, dashes []vg.Length) error {
	if len(l.XYs) == 0 {
		return nil
	}
	line, marks, err := plotter.NewLinePoints(l.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(l)
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = as.color, vg.Points(1.8), dashes
	marks.Color, marks.Shape, marks.Radius = as.color, as.shape, vg.Points(3.4)
	bars.Color, bars.Width, bars.CapWidth = as.color, vg.Points(0.7), vg.Points(4)
	p.Add(bars, line, marks)
	if name != "" {
		p.Legend.Add(name, line, marks)
	}
	return nil
}

// named returns ticks at the given values only.
func named(at ...int) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, v := range at {
		ticks = append(ticks, plot.Tick{Value: float64(v), Label: thousands(int64(v))})
	}
	return ticks
}

// tickLabel formats a number on an axis, without needless digits.
func tickLabel(v float64) string {
	if v == math.Trunc(v) {
		return thousands(int64(v))
	}
	return strings.TrimRight(number(v), "0")
}

// evenly returns about five ticks at round numbers.
func evenly(low, high float64) []plot.Tick {
	step := roundUp((high - low) / 5)
	var ticks []plot.Tick
	for v := math.Ceil(low/step) * step; v <= high; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
	}
	return ticks
}

// roundUp returns the smallest of 1, 2, 5, 10, ... that is not below v.
func roundUp(v float64) float64 {
	ten := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if n*ten >= v {
			return n * ten
		}
	}
	return 10 * ten
}

// oneTwoFive returns the ticks of a logarithmic axis.
func oneTwoFive(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for ten := math.Pow(10, math.Floor(math.Log10(low))); ten <= high; ten *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * ten; v >= low && v <= high {
				ticks = append(ticks, plot.Tick{Value: v, Label: tickLabel(v)})
			}
		}
	}
	return ticks
}

// darkColors replace the colours of a picture for readers who prefer dark pages. The background is
// one of them, so a picture is readable on any page.
var darkColors = [][2]string{{"FFFFFF", "16191d"}, {"000000", "e6e6e6"}, {"333333", "e6e6e6"},
	{"E0E0E0", "3a3f45"}, {"0072B2", "56b4e9"}, {"009E73", "2fc79b"}, {"D55E00", "ff8b3d"}, {"777777", "a8a8a8"}}

// darkStyle returns the style sheet with the dark colours.
func darkStyle() string {
	var b strings.Builder
	b.WriteString("<style>@media (prefers-color-scheme: dark) {\ntext { fill: #e6e6e6 }\n")
	for _, c := range darkColors {
		for _, property := range []string{"fill", "stroke"} {
			fmt.Fprintf(&b, "[style*=\"%s:#%s\"] { %s: #%s !important }\n", property, c[0], property, c[1])
		}
	}
	return b.String() + "}</style>\n"
}

// save writes a picture as SVG. Liberation Sans has the metrics of Arial and Helvetica, which
// replace it on systems that lack it.
func save(p *plot.Plot, file string) error {
	c := vgsvg.New(width, height)
	whole, margin := draw.New(c), vg.Points(16)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	p.Draw(draw.Crop(whole, margin, -margin-vg.Points(6), margin, -margin))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	text := strings.ReplaceAll(b.String(), "font-family:Liberation Sans",
		"font-family:'Liberation Sans',Arial,Helvetica,sans-serif")
	text = strings.Replace(text, "<g transform", darkStyle()+"<g transform", 1)
	return os.WriteFile(file, []byte(text), 0o644)
}
