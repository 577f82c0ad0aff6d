package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

var colours = []string{"#1f6feb", "#bf8700"}

// svg is a drawing in the making.
type svg struct{ strings.Builder }

func newSVG(width, height int, title string) *svg {
	s := new(svg)
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	s.text(width/2, 20, "middle", "black", title)
	return s
}

func (s *svg) text(x, y int, anchor, colour, text string) {
	fmt.Fprintf(s, `<text x="%d" y="%d" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, anchor, colour, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, colour string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, colour)
}

func (s *svg) end() string { return s.String() + "</svg>\n" }

// logScale puts values from low to high on pixels from a to b.
type logScale struct{ low, high, a, b float64 }

func (l logScale) at(v float64) float64 {
	v = min(max(v, l.low), l.high)
	return l.a + (l.b-l.a)*math.Log(v/l.low)/math.Log(l.high/l.low)
}

// ticks are 1, 2 and 5 of each power of ten.
func (l logScale) ticks() []float64 {
	var ticks []float64
	for power := math.Pow(10, math.Floor(math.Log10(l.low))); power <= l.high; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * power; v >= l.low && v <= l.high {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// curve is the distribution of some values.
type curve struct {
	name   string
	values []float64
}

// curvePlot draws cumulative distributions over milliseconds, on a logarithmic scale.
func curvePlot(title string, curves []curve) string {
	const width, height, left, right, top, bottom = 720, 400, 60, 700, 40, 350
	low, high := math.Inf(1), 0.0
	for _, c := range curves {
		low, high = min(low, slices.Min(c.values)), max(high, slices.Max(c.values))
	}
	x := logScale{low * 0.9, high * 1.1, left, right}
	y := func(share float64) float64 { return bottom - (bottom-top)*share }
	s := newSVG(width, height, title)
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 0.99} {
		s.line(left, y(share), right, y(share), "#dddddd")
		s.text(left-6, int(y(share))+4, "end", "black", fmt.Sprintf("%.0f %%", 100*share))
	}
	for _, v := range x.ticks() {
		s.line(x.at(v), top, x.at(v), bottom, "#eeeeee")
		s.text(int(x.at(v)), bottom+18, "middle", "black", fmt.Sprint(roundTo(v, 6)))
	}
	s.text((left+right)/2, height-10, "middle", "black", "milliseconds")
	for i, c := range curves {
		sorted := slices.Sorted(slices.Values(c.values))
		var points strings.Builder
		for k, v := range sorted {
			fmt.Fprintf(&points, "%.1f,%.1f ", x.at(v), y(float64(k+1)/float64(len(sorted))))
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(points.String()), colours[i])
		s.text(right-4, bottom-14-18*(len(curves)-1-i), "end", colours[i], c.name)
	}
	return s.end()
}

// roundTo takes off what a float64 adds to a decimal number.
func roundTo(v float64, digits int) float64 {
	unit := math.Pow(10, float64(digits))
	return math.Round(v*unit) / unit
}

type bar struct {
	name  string
	value float64
}

// barPlot draws horizontal bars from 1, on a logarithmic scale.
func barPlot(title string, bars []bar) string {
	const width, left, right, top, step = 1000, 520, 940, 50, 22
	bottom := top + step*len(bars)
	x := logScale{0.5, 2, left, right}
	for _, b := range bars {
		x.low, x.high = min(x.low, b.value*0.9), max(x.high, min(b.value, 1000)*1.1)
	}
	s := newSVG(width, bottom+40, title)
	for _, v := range x.ticks() {
		s.line(x.at(v), top-4, x.at(v), float64(bottom), "#eeeeee")
		s.text(int(x.at(v)), bottom+18, "middle", "black", fmt.Sprint(roundTo(v, 6)))
	}
	for i, b := range bars {
		at := top + step*i
		from, to, colour := x.at(1), x.at(b.value), colours[0]
		if b.value < 1 {
			from, to, colour = to, from, "#cf222e"
		}
		fmt.Fprintf(s, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", from, at+3, max(to-from, 1), step-6, colour)
		s.text(left-10, at+15, "end", "black", b.name)
		s.text(int(to)+6, at+15, "start", "black", fmt.Sprintf("%.2f", b.value))
	}
	s.line(x.at(1), top-4, x.at(1), float64(bottom), "black")
	return s.end()
}
