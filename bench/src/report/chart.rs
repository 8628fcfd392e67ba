//! Charts as SVG text, in colours that the page's style sheet decides.

use plotters::prelude::*;

use crate::error::BenchError;

/// What text and axes are drawn in; replaced by `currentColor`.
const INK: RGBColor = RGBColor(1, 2, 3);
/// What the grid is drawn in; replaced by a variable of the page.
const GRID: RGBColor = RGBColor(4, 5, 6);
/// Colours that are told apart on white and on black.
const SERIES: [RGBColor; 12] = [
    RGBColor(0x2f, 0x7d, 0xd1),
    RGBColor(0xd9, 0x6b, 0x1f),
    RGBColor(0x2c, 0x9a, 0x5b),
    RGBColor(0xb0, 0x4a, 0xa8),
    RGBColor(0xc2, 0x94, 0x10),
    RGBColor(0xd0, 0x3d, 0x4e),
    RGBColor(0x18, 0x96, 0xa3),
    RGBColor(0x84, 0x6a, 0xd6),
    RGBColor(0x8a, 0x6d, 0x4b),
    RGBColor(0x7a, 0x85, 0x90),
    RGBColor(0x8f, 0xa8, 0x2a),
    RGBColor(0xe0, 0x7f, 0xa8),
];
const WIDTH: u32 = 760;
const ROW_HEIGHT: u32 = 34;
const FONT: &str = "sans-serif";

/// A bar: its name, its parts from left to right, and the ends of its interval if it has one.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) parts: Vec<f64>,
    pub(super) interval: Option<(f64, f64)>,
    pub(super) text: String,
}

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::System { attempted: "draw a chart", reason: error.to_string() }
}

fn colour(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

/// Lets the page decide the colours, and names the picture for those who cannot see it.
fn themed(svg: &str, title: &str) -> String {
    let hex = |RGBColor(red, green, blue)| format!("#{red:02X}{green:02X}{blue:02X}");
    let svg = svg.replace(&hex(INK), "currentColor").replace(&hex(GRID), "var(--grid)");
    svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", super::html::escaped(title)), 1)
}

/// Horizontal bars, one below the other; `parts` names the parts of a bar if there are several.
pub(super) fn bars(title: &str, parts: &[&str], bars: &[Bar]) -> Result<String, BenchError> {
    let count = bars.len().max(1);
    let height = ROW_HEIGHT * count as u32 + 70;
    let longest = bars.iter().map(|bar| bar.interval.map_or(bar.parts.iter().sum(), |(_, high)| high));
    let end = longest.fold(f64::MIN_POSITIVE, f64::max) * 1.22;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..end, 0.0..count as f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_labels(6)
            .x_label_formatter(&|value| short(*value))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style((FONT, 13).into_font().color(&INK))
            .draw()
            .map_err(failed)?;
        for (index, bar) in bars.iter().enumerate() {
            let top = (count - index) as f64;
            let mut from = 0.0;
            for (part, &length) in bar.parts.iter().enumerate() {
                let corners = [(from, top - 0.2), (from + length, top - 0.8)];
                let style = if parts.len() > 1 { colour(part) } else { colour(0) };
                chart.draw_series([Rectangle::new(corners, style.filled())]).map_err(failed)?;
                from += length;
            }
            if let Some((low, high)) = bar.interval {
                let middle = top - 0.5;
                chart.draw_series([PathElement::new([(low, middle), (high, middle)], INK)]).map_err(failed)?;
                from = from.max(high);
            }
            let style = (FONT, 13).into_font().color(&INK);
            let text = Text::new(format!("  {}", bar.text), (from, top - 0.38), style.clone());
            chart.draw_series([text]).map_err(failed)?;
            let y = 8 + (index as u32 * (height - 16 - 32)) / count as u32 + ROW_HEIGHT / 2;
            area.draw_text(&bar.name, &style, (6, y.cast_signed())).map_err(failed)?;
        }
        if parts.len() > 1 {
            legend(&area, parts, height)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

fn legend(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    names: &[&str],
    height: u32,
) -> Result<(), BenchError> {
    for (index, name) in names.iter().enumerate() {
        let (x, y) = (200 + 130 * index as i32, height.cast_signed() - 16);
        area.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], colour(index).filled())).map_err(failed)?;
        area.draw_text(name, &(FONT, 13).into_font().color(&INK), (x + 18, y - 2)).map_err(failed)?;
    }
    Ok(())
}

/// A line of a chart of times: its name, and (1 / (1 - share), µs) points.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Times against the share of operations that took no longer, both axes logarithmic.
pub(super) fn percentiles(title: &str, lines: &[Line]) -> Result<String, BenchError> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    let low = values().fold(f64::INFINITY, f64::min).clamp(1e-3, 1e6) / 1.5;
    let high = values().fold(0.0, f64::max).max(low * 10.0) * 1.5;
    let legend_height = 20 * lines.len() as u32 + 10;
    let height = 340;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height + legend_height)).into_drawing_area();
        let (upper, lower) = area.split_vertically(height);
        let mut chart = ChartBuilder::on(&upper)
            .margin(8)
            .margin_right(32)
            .x_label_area_size(40)
            .y_label_area_size(64)
            .build_cartesian_2d((1.0..1e4).log_scale(), (low..high).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("share of operations that took no longer")
            .y_desc("µs")
            .x_labels(5)
            .y_labels(6)
            .x_label_formatter(&|rarity| share_name(*rarity))
            .y_label_formatter(&|value| short(*value))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style((FONT, 13).into_font().color(&INK))
            .draw()
            .map_err(failed)?;
        for (index, line) in lines.iter().enumerate() {
            let series = LineSeries::new(line.points.iter().copied(), colour(index).stroke_width(2));
            chart.draw_series(series).map_err(failed)?;
            let y = 4 + 20 * index as i32;
            lower.draw(&Rectangle::new([(70, y), (82, y + 10)], colour(index).filled())).map_err(failed)?;
            let style = (FONT, 13).into_font().color(&INK);
            lower.draw_text(&line.name, &style, (90, y - 2)).map_err(failed)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(themed(&svg, title))
}

fn share_name(rarity: f64) -> String {
    match rarity.round() as u64 {
        0 | 1 => "0 %".into(),
        10 => "90 %".into(),
        100 => "99 %".into(),
        1000 => "99.9 %".into(),
        10_000 => "99.99 %".into(),
        _ => String::new(),
    }
}

/// 1.5M, 20k, 0.5.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_numbers_are_short() {
        assert_eq!(short(1_500_000.0), "1.5M");
        assert_eq!(short(20_000.0), "20k");
        assert_eq!(short(0.25), "0.25");
        assert_eq!(short(0.0), "0");
    }

    #[test]
    fn colours_are_the_pages() {
        let bar = Bar { name: "shm".into(), parts: vec![3.0], interval: Some((2.0, 4.0)), text: "3".into() };
        let svg = bars("rates & more", &["ops/s"], &[bar]).expect("drawn");
        assert!(svg.contains("currentColor") && svg.contains("var(--grid)"), "{svg}");
        assert!(svg.contains("aria-label=\"rates &amp; more\""));
        assert!(!svg.contains("#010203") && !svg.contains("#040506"));
    }
}
