//! Charts as SVG text, in colours that the page's style sheet decides.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::TextStyle;

use crate::error::BenchError;

/// What text and axes are drawn in; replaced by `currentColor`.
const INK: RGBColor = RGBColor(1, 2, 3);
/// What the grid is drawn in; replaced by a variable of the page.
const GRID: RGBColor = RGBColor(4, 5, 6);
/// The same, for charts made elsewhere.
pub(super) const AXIS_INK: RGBColor = GRID;
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
const FONT: &str = "sans-serif";
const FONT_PX: u32 = 13;
/// Room of a bar, its name above it.
const ROW_HEIGHT: u32 = 44;
/// Height of the axis below the bars, and of a line of a legend.
const AXIS_HEIGHT: u32 = 32;
pub(super) const LEGEND_HEIGHT: u32 = 20;
/// Height of a chart with two axes without its legend.
pub(super) const PLOT_HEIGHT: u32 = 340;
/// Widths in pixels that every chart is drawn in, with the class of the page that shows it: text that fits a desk is
/// unreadable when a phone makes it smaller.
const WIDTHS: [(u32, &str); 2] = [(760, "desk"), (328, "phone")];

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A bar: its name, its parts from left to right, and the ends of its interval if it has one.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) parts: Vec<f64>,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) text: String,
}

pub(super) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::System { attempted: "draw a chart", reason: error.to_string() }
}

pub(super) fn colour(index: usize) -> RGBColor {
    SERIES[index % SERIES.len()]
}

pub(super) fn ink() -> TextStyle<'static> {
    (FONT, FONT_PX).into_font().color(&INK)
}

/// Draws a picture in every width, lets the page decide the colours, and names it for those who cannot see it.
pub(super) fn in_every_width(
    title: &str,
    height: u32,
    draw: impl Fn(&Area<'_>, u32) -> Result<(), BenchError>,
) -> Result<String, BenchError> {
    let hex = |RGBColor(red, green, blue)| format!("#{red:02X}{green:02X}{blue:02X}");
    let mut pictures = String::new();
    for (width, class) in WIDTHS {
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
            draw(&area, width)?;
            area.present().map_err(failed)?;
        }
        let svg = svg.replace(&hex(INK), "currentColor").replace(&hex(GRID), "var(--grid)");
        let opening = format!("<svg class=\"{class}\" role=\"img\" aria-label=\"{}\" ", super::html::escaped(title));
        pictures.push_str(&svg.replacen("<svg ", &opening, 1));
    }
    Ok(pictures)
}

/// The widest of a chart's pictures as a file of its own, with the colours that a page would have given it.
pub(super) fn standalone(pictures: &str) -> String {
    let end = pictures.find("</svg>").map_or(pictures.len(), |at| at + "</svg>".len());
    styled(format!("{}\n", &pictures[..end]))
}

/// A picture with the colours that a page would have given it.
pub(super) fn styled(mut picture: String) -> String {
    const STYLE: &str = "<style>svg { color: #1b1f24; background: #ffffff; --grid: #d5dae0; } \
                         @media (prefers-color-scheme: dark) { svg { color: #e4e8ec; background: #14171a; --grid: #3a4249; } }\
                         </style>\n";
    if let Some(at) = picture.find('>') {
        picture.insert_str(at + 1, STYLE);
    }
    picture
}

/// A square in the colour of series `index`, and its name.
pub(super) fn legend(area: &Area<'_>, index: usize, name: &str, (x, y): (i32, i32)) -> Result<(), BenchError> {
    area.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], colour(index).filled())).map_err(failed)?;
    area.draw_text(name, &ink(), (x + 18, y - 2)).map_err(failed)
}

/// Horizontal bars, one below the other; `parts` names the parts of a bar if there are several.
pub(crate) fn bars(title: &str, parts: &[&str], bars: &[Bar]) -> Result<String, BenchError> {
    let count = bars.len().max(1);
    let rows = ROW_HEIGHT * count as u32;
    let below = AXIS_HEIGHT + if parts.len() > 1 { LEGEND_HEIGHT } else { 0 };
    let longest = bars.iter().map(|bar| bar.interval.map_or(bar.parts.iter().sum(), |(_, high)| high));
    let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
    in_every_width(title, rows + below, |area, width| {
        // The text after the longest bar takes some 110 pixels of the width.
        let end = longest * f64::from(width) / f64::from(width - 110);
        let (upper, lower) = area.split_vertically(rows + AXIS_HEIGHT);
        let mut chart = ChartBuilder::on(&upper)
            .margin_left(8)
            .margin_right(16)
            .x_label_area_size(AXIS_HEIGHT)
            .build_cartesian_2d(0.0..end, 0.0..count as f64)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(0)
            .x_labels((width / 90) as usize)
            .x_label_formatter(&|value| short(*value))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(ink())
            .draw()
            .map_err(failed)?;
        for (index, bar) in bars.iter().enumerate() {
            let top = (count - index) as f64;
            let mut from = 0.0;
            for (part, &length) in bar.parts.iter().enumerate() {
                let corners = [(from, top - 0.45), (from + length, top - 0.9)];
                chart.draw_series([Rectangle::new(corners, colour(part).filled())]).map_err(failed)?;
                from += length;
            }
            let middle = top - 0.675;
            if let Some((low, high)) = bar.interval {
                chart.draw_series([PathElement::new([(low, middle), (high, middle)], INK)]).map_err(failed)?;
                from = from.max(high);
            }
            let text = |at, offset, text: &str| EmptyElement::at(at) + Text::new(text.to_owned(), offset, ink());
            chart.draw_series([text((from, middle), (6, -6), &bar.text)]).map_err(failed)?;
            chart.draw_series([text((0.0, top), (0, 4), &bar.name)]).map_err(failed)?;
        }
        if parts.len() > 1 {
            for (index, name) in parts.iter().enumerate() {
                legend(&lower, index, name, (8 + 130 * index as i32, 4))?;
            }
        }
        Ok(())
    })
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
    let height = PLOT_HEIGHT + LEGEND_HEIGHT * lines.len() as u32 + 10;
    in_every_width(title, height, |area, _| {
        let (upper, lower) = area.split_vertically(PLOT_HEIGHT);
        let mut chart = ChartBuilder::on(&upper)
            .margin(8)
            .margin_right(28)
            .x_label_area_size(40)
            .y_label_area_size(44)
            .build_cartesian_2d((1.0..1e4).log_scale(), (low..high).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("share of operations that took no longer")
            .x_labels(5)
            .y_labels(6)
            .x_label_formatter(&|rarity| share_name(*rarity))
            .y_label_formatter(&|value| short(*value))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(ink())
            .draw()
            .map_err(failed)?;
        for (index, line) in lines.iter().enumerate() {
            let series = LineSeries::new(line.points.iter().copied(), colour(index).stroke_width(2));
            chart.draw_series(series).map_err(failed)?;
            legend(&lower, index, &line.name, (52, 4 + (LEGEND_HEIGHT * index as u32).cast_signed()))?;
        }
        Ok(())
    })
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
pub(super) fn short(value: f64) -> String {
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
