//! A roofline drawing of bench rows as SVG text: useful operations a second over operations a byte, both in decades, under
//! the device's copy rate. Rows without operations or times are left out.

use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;
/// Left, right, top, bottom.
const MARGIN: [f64; 4] = [70.0, 230.0, 40.0, 50.0];
/// One a peer, in order of appearance; Kiln's comes first.
const COLORS: [&str; 8] = ["#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#0e7490", "#a16207", "#be185d", "#4b5563"];

struct Point {
    /// Operations a byte.
    intensity: f64,
    /// Tera-operations a second.
    rate: f64,
    peer: usize,
    recorded: bool,
    label: String,
}

/// A logarithmic axis over whole decades.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = values.map(f64::log10).fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil()) };
        Axis { low, high: if high > low { high } else { low + 1.0 }, from, to }
    }
    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.low) / (self.high - self.low) * (self.to - self.from)
    }
    fn decades(&self) -> impl Iterator<Item = f64> {
        (self.low as i32..=self.high as i32).map(|e| 10f64.powi(e))
    }
    fn ends(&self) -> [f64; 2] {
        [10f64.powf(self.low), 10f64.powf(self.high)]
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The drawing. `rows` are those of `kiln bench`, `copy_gbps` is the rate of the copy operator.
pub fn svg(rows: &[Value], copy_gbps: Option<f64>, title: &str) -> String {
    let mut peers: Vec<String> = vec!["kiln".into()];
    let mut points = vec![];
    for row in rows {
        let number = |name: &str| row[name].as_f64().filter(|x| *x > 0.0 && x.is_finite());
        let (Some(tflops), Some(gbps)) = (number("tflops"), number("gbps")) else { continue };
        let name = row["peer"].as_str().unwrap_or("kiln").to_string();
        let peer = peers.iter().position(|p| *p == name).unwrap_or_else(|| {
            peers.push(name.clone());
            peers.len() - 1
        });
        let sizes = row["shape"].as_object().into_iter().flatten().map(|(k, v)| format!("{k}={v}"));
        let shape = sizes.collect::<Vec<_>>().join(",");
        let op = row["op"].as_str().unwrap_or_default();
        let label = format!("{name}: {op} {shape}, {tflops:.3} TFLOP/s, {gbps:.0} GB/s");
        let recorded = row["status"] == "recorded";
        points.push(Point { intensity: tflops * 1e3 / gbps, rate: tflops, peer, recorded, label });
    }
    let [left, right, top, bottom] = MARGIN;
    let x = Axis::new(points.iter().map(|p| p.intensity), left, WIDTH - right);
    let y = Axis::new(points.iter().map(|p| p.rate), HEIGHT - bottom, top);
    let mut s = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    for v in x.decades() {
        let (px, low, high) = (x.at(v), HEIGHT - bottom, top);
        let _ = writeln!(s, "<path d=\"M{px:.1} {low}V{high}\" stroke=\"#e5e7eb\"/>");
        let _ = writeln!(s, "<text x=\"{px:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{v}</text>", low + 18.0);
    }
    for v in y.decades() {
        let (py, end) = (y.at(v), WIDTH - right);
        let _ = writeln!(s, "<path d=\"M{left} {py:.1}H{end}\" stroke=\"#e5e7eb\"/>");
        let _ = writeln!(s, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{v}</text>", left - 6.0, py + 4.0);
    }
    let middle = (left + WIDTH - right) / 2.0;
    let _ = writeln!(
        s,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">operations a byte</text>\n\
         <text x=\"16\" y=\"{1}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {1})\">TFLOP/s</text>",
        HEIGHT - 12.0,
        HEIGHT / 2.0
    );
    if let Some(gbps) = copy_gbps.filter(|g| *g > 0.0) {
        // rate = intensity * bandwidth, cut to the drawing.
        let [x0, x1] = x.ends();
        let [y0, y1] = y.ends();
        let (a, b) = (x0.max(y0 * 1e3 / gbps), x1.min(y1 * 1e3 / gbps));
        if a < b {
            let rate = |i: f64| i * gbps * 1e-3;
            let _ = writeln!(
                s,
                "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"#111827\" stroke-dasharray=\"6 3\" fill=\"none\">\
                 <title>copy rate {gbps:.0} GB/s</title></path>",
                x.at(a),
                y.at(rate(a)),
                x.at(b),
                y.at(rate(b))
            );
        }
    }
    for p in &points {
        let color = COLORS[p.peer % COLORS.len()];
        // Recorded elsewhere: hollow.
        let fill = if p.recorded { "none" } else { color };
        let _ = writeln!(
            s,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{color}\"><title>{}</title></circle>",
            x.at(p.intensity),
            y.at(p.rate),
            escape(&p.label)
        );
    }
    let column = WIDTH - right + 20.0;
    for (i, name) in peers.iter().enumerate() {
        let (py, color) = (top + 18.0 * i as f64, COLORS[i % COLORS.len()]);
        let _ = writeln!(s, "<circle cx=\"{column}\" cy=\"{:.1}\" r=\"4\" fill=\"{color}\"/>", py + 6.0);
        let _ = writeln!(s, "<text x=\"{}\" y=\"{:.1}\">{}</text>", column + 12.0, py + 10.0, escape(name));
    }
    let py = top + 18.0 * peers.len() as f64 + 16.0;
    let copy = copy_gbps.map_or(String::new(), |g| format!("; dashed: copy rate {g:.0} GB/s"));
    let _ = writeln!(s, "<text x=\"{column}\" y=\"{py:.1}\" font-size=\"10\">hollow: recorded{copy}</text>\n</svg>");
    s
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(peer: &str, status: &str, tflops: f64, gbps: f64) -> Value {
        json!({"op": "a<b", "shape": {"m": 8}, "peer": peer, "status": status, "tflops": tflops, "gbps": gbps})
    }

    #[test]
    fn points_lie_where_their_numbers_say() {
        // 100 operations a byte and 10 TFLOP/s; a second point spans both axes to 1..=1000 and 1..=100.
        let rows = [row("kiln", "ok", 10.0, 100.0), row("x", "recorded", 1.0, 1000.0), row("y", "ok", 100.0, 100.0)];
        let text = svg(&rows, Some(100.0), "t & t");
        let x = |share: f64| MARGIN[0] + share * (WIDTH - MARGIN[1] - MARGIN[0]);
        let y = |share: f64| HEIGHT - MARGIN[3] - share * (HEIGHT - MARGIN[3] - MARGIN[2]);
        let first = format!("<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\"", x(2.0 / 3.0), y(0.5), COLORS[0]);
        assert!(text.contains(&first), "{first}\n{text}");
        assert!(text.contains(&format!("cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"none\"", x(0.0), y(0.0))), "{text}");
        assert!(text.contains("t &amp; t") && text.contains("a&lt;b m=8"), "{text}");
        // The copy rate reaches 1 TFLOP/s at ten operations a byte.
        assert!(text.contains(&format!("M{:.1} {:.1}L", x(1.0 / 3.0), y(0.0))), "{text}");
    }

    #[test]
    fn rows_without_numbers_are_left_out() {
        let text = svg(&[json!({"op": "copy", "tflops": 0.0, "gbps": 5.0}), json!({"status": "skip"})], None, "none");
        assert_eq!(text.matches("<circle").count(), 1, "only the legend's:\n{text}");
        assert!(text.ends_with("</svg>\n"));
    }
}
