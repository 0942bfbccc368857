//! Plots as self-contained SVG.

use std::fmt::Write;

const WIDTH: f64 = 760.0;
const COLOURS: [&str; 4] = ["#2f6f4f", "#b5651d", "#3b5b92", "#8a3b5b"];
const GREY: &str = "#9aa0a6";

/// A bar of a plot, in milliseconds.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// In colour; the others are grey.
    pub(crate) ours: bool,
}

/// Draws a bar up to each median, and a line from there to the 99th percentile.
pub(crate) fn bars(title: &str, bars: &[Bar]) -> String {
    const LEFT: f64 = 190.0;
    const ROW: f64 = 34.0;
    let height = 70.0 + ROW * bars.len() as f64;
    let axis = Logarithmic::over(bars.iter().flat_map(|bar| [bar.p50, bar.p99]), LEFT, WIDTH - 90.0);
    let mut svg = Svg::new(title, height);
    for decade in axis.decades() {
        let x = axis.at(decade);
        svg.line((x, 36.0), (x, height - 28.0), "#e3e5e8", 1.0);
        svg.text((x, height - 12.0), "middle", &format!("{decade} ms"));
    }
    for (row, bar) in bars.iter().enumerate() {
        let y = 44.0 + ROW * row as f64;
        let colour = if bar.ours { COLOURS[0] } else { GREY };
        let (middle, p50, p99) = (y + 10.0, axis.at(bar.p50), axis.at(bar.p99));
        svg.text((LEFT - 8.0, middle + 4.0), "end", &bar.name);
        svg.rectangle((LEFT, y), (p50 - LEFT, 20.0), colour);
        svg.line((p50, middle), (p99, middle), colour, 2.0);
        svg.line((p99, y + 5.0), (p99, y + 15.0), colour, 2.0);
        svg.text((p99 + 6.0, middle + 4.0), "start", &label(bar.p50));
    }
    svg.end()
}

pub(crate) struct Curve {
    pub(crate) name: String,
    /// One value per position, in milliseconds.
    pub(crate) values: Vec<f64>,
}

/// Draws curves with one point per position, evenly spaced.
pub(crate) fn curves(title: &str, positions: &[String], along: &str, curves: &[Curve]) -> String {
    const LEFT: f64 = 70.0;
    const TOP: f64 = 44.0;
    const BOTTOM: f64 = 300.0;
    let right = WIDTH - 190.0;
    let axis = Logarithmic::over(curves.iter().flat_map(|curve| curve.values.iter().copied()), BOTTOM, TOP);
    let x =
        |position: usize| LEFT + 20.0 + (right - LEFT - 40.0) * position as f64 / (positions.len() - 1).max(1) as f64;
    let mut svg = Svg::new(title, BOTTOM + 52.0);
    for decade in axis.decades() {
        let y = axis.at(decade);
        svg.line((LEFT, y), (right, y), "#e3e5e8", 1.0);
        svg.text((LEFT - 8.0, y + 4.0), "end", &format!("{decade} ms"));
    }
    for (position, name) in positions.iter().enumerate() {
        svg.text((x(position), BOTTOM + 20.0), "middle", name);
    }
    svg.text(((LEFT + right) / 2.0, BOTTOM + 42.0), "middle", along);
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let points: Vec<_> = curve.values.iter().enumerate().map(|(at, value)| (x(at), axis.at(*value))).collect();
        for pair in points.windows(2) {
            svg.line(pair[0], pair[1], colour, 2.0);
        }
        for point in &points {
            svg.dot(*point, colour);
        }
        if let (Some((x, y)), Some(value)) = (points.last(), curve.values.last()) {
            svg.text((x + 10.0, y + 4.0), "start", &format!("{}, {}", curve.name, label(*value)));
        }
    }
    svg.end()
}

fn label(milliseconds: f64) -> String {
    if milliseconds < 10.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}

/// A logarithmic axis that maps values to pixels.
struct Logarithmic {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Logarithmic {
    /// Returns an axis of whole decades that contains all values.
    fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
        let high = values.fold(0.0, f64::max).log10().ceil();
        Self { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value.log10() - self.low) / (self.high - self.low)
    }

    fn decades(&self) -> impl Iterator<Item = f64> + use<> {
        (self.low as i32..=self.high as i32).map(|exponent| 10_f64.powi(exponent))
    }
}

struct Svg(String);

impl Svg {
    /// With a white background: the page around it may be dark.
    fn new(title: &str, height: f64) -> Self {
        let mut svg = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#24292f\">\n"
        ));
        svg.rectangle((0.0, 0.0), (WIDTH, height), "#ffffff");
        svg.text((WIDTH / 2.0, 22.0), "middle", title);
        svg
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.element(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" \
             stroke-width=\"{width}\"/>"
        ));
    }

    fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        self.element(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        self.element(&format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"));
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.element(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    fn element(&mut self, element: &str) {
        let _ = writeln!(self.0, "  {element}");
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}
