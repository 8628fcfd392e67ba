//! Lines over a swept thing, and panels one below the other in one picture.

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::chart::{AXIS_INK, Area, LEGEND_HEIGHT, PLOT_HEIGHT, colour, failed, in_every_width, ink, legend, short};
use crate::error::BenchError;

/// Widths of the pictures: class, what to add to the name of the file that holds it.
pub(crate) const FORMS: [(&str, &str); 2] = [("desk", ""), ("phone", "-phone")];
/// Height of a line of a panel's title, and the most that a letter of it takes of the width on average.
const TITLE_LINE_HEIGHT: u32 = 20;
const TITLE_LETTER_WIDTH: u32 = 9;

/// A line: its name, and for each point (x, y, ends of the interval of y, whether it is to be marked).
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<SeriesPoint>,
}

/// A point of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeriesPoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) ends: Option<(f64, f64)>,
    pub(crate) marked: bool,
}

/// An axis: its name with the unit, whether it is logarithmic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis<'n> {
    pub(crate) name: &'n str,
    pub(crate) log: bool,
}

/// Lines with points; intervals as thin lines; marked points as crosses.
pub(crate) fn lines(title: &str, x: Axis<'_>, y: Axis<'_>, series: &[Series]) -> Result<String, BenchError> {
    let all = || series.iter().flat_map(|line| &line.points);
    let (x_range, y_range) = (
        range(x.log, all().map(|point| point.x)),
        range(y.log, all().flat_map(|point| [point.y, point.ends.map_or(point.y, |(_, high)| high)])),
    );
    let names = (x.name, y.name);
    let ((x0, x1), (y0, y1)) = (x_range, y_range);
    match (x.log, y.log) {
        (false, false) => draw(title, names, x0..x1, y0..y1, series),
        (true, false) => draw(title, names, (x0..x1).log_scale(), y0..y1, series),
        (false, true) => draw(title, names, x0..x1, (y0..y1).log_scale(), series),
        (true, true) => draw(title, names, (x0..x1).log_scale(), (y0..y1).log_scale(), series),
    }
}

/// From nothing or, on a logarithmic axis, from below the least value, to above the largest.
fn range(log: bool, values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let high = values.clone().fold(f64::MIN_POSITIVE, f64::max);
    if !log {
        return (0.0, if high > f64::MIN_POSITIVE { high * 1.05 } else { 1.0 });
    }
    let low = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    if low.is_finite() { (low / 1.2, (high * 1.2).max(low * 2.0)) } else { (0.1, 1.0) }
}

fn draw<X, Y>(title: &str, (x_name, y_name): (&str, &str), x: X, y: Y, series: &[Series]) -> Result<String, BenchError>
where
    X: AsRangedCoord<Value = f64> + Clone,
    Y: AsRangedCoord<Value = f64> + Clone,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let height = PLOT_HEIGHT + LEGEND_HEIGHT * series.len() as u32 + 10;
    in_every_width(title, height, |area: &Area<'_>, width| {
        let (upper, lower) = area.split_vertically(PLOT_HEIGHT);
        let mut chart = ChartBuilder::on(&upper)
            .margin(8)
            .margin_right(28)
            .x_label_area_size(40)
            .y_label_area_size(62)
            .build_cartesian_2d(x.clone(), y.clone())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc(x_name)
            .y_desc(y_name)
            .x_labels((width / 80) as usize)
            .y_labels(7)
            .x_label_formatter(&|value| short(*value))
            .y_label_formatter(&|value| short(*value))
            .axis_style(AXIS_INK)
            .bold_line_style(AXIS_INK)
            .light_line_style(TRANSPARENT)
            .label_style(ink())
            .draw()
            .map_err(failed)?;
        for (index, line) in series.iter().enumerate() {
            let colour = colour(index);
            let places = line.points.iter().map(|point| (point.x, point.y));
            chart.draw_series(LineSeries::new(places, colour.stroke_width(2))).map_err(failed)?;
            // A line of many points is a curve.
            let shown = if line.points.len() > 40 { &[][..] } else { &line.points };
            for point in shown {
                let place = [(point.x, point.y)];
                if point.marked {
                    chart.draw_series(place.map(|at| Cross::new(at, 6, colour.stroke_width(2)))).map_err(failed)?;
                } else {
                    chart.draw_series(place.map(|at| Circle::new(at, 3, colour.filled()))).map_err(failed)?;
                }
                if let Some((low, high)) = point.ends {
                    let ends = vec![(point.x, low), (point.x, high)];
                    chart.draw_series([PathElement::new(ends, colour.stroke_width(1))]).map_err(failed)?;
                }
            }
            legend(&lower, index, &line.name, (70, 4 + (LEGEND_HEIGHT * index as u32).cast_signed()))?;
        }
        Ok(())
    })
}

/// Panels, each with its title, one below the other as one picture of class `form`.
pub(crate) fn panels(form: &str, panels: &[(String, String)]) -> String {
    let (mut body, mut width, mut below) = (String::new(), 0, 8);
    for (title, pictures) in panels {
        let opening = format!("<svg class=\"{form}\"");
        let Some(start) = pictures.find(&opening) else { continue };
        let end = pictures[start..].find("</svg>").map_or(pictures.len(), |at| start + at + "</svg>".len());
        let picture = &pictures[start..end];
        width = width.max(attribute(picture, "width"));
        let columns = attribute(picture, "width").saturating_sub(16) / TITLE_LETTER_WIDTH;
        for line in textwrap::wrap(title, columns as usize) {
            body.push_str(&format!(
                "<text x=\"8\" y=\"{}\" font-family=\"sans-serif\" font-size=\"15\" font-weight=\"bold\" \
                 fill=\"currentColor\">{}</text>\n",
                below + 16,
                super::html::escaped(&line)
            ));
            below += TITLE_LINE_HEIGHT;
        }
        below += 6;
        body.push_str(&picture.replacen("<svg ", &format!("<svg y=\"{below}\" "), 1));
        body.push('\n');
        below += attribute(picture, "height") + 8;
    }
    let outer = format!(
        "<svg role=\"img\" width=\"{width}\" height=\"{below}\" viewBox=\"0 0 {width} {below}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    super::chart::styled(format!("{outer}{body}</svg>\n"))
}

fn attribute(svg: &str, name: &str) -> u32 {
    let marker = format!(" {name}=\"");
    let value = svg.split_once(&marker).and_then(|(_, rest)| rest.split('"').next());
    value.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_wrapped_to_the_width_of_its_picture() {
        let picture = |class, width| format!("<svg class=\"{class}\" width=\"{width}\" height=\"100\"></svg>");
        let pictures = picture("desk", 760) + &picture("phone", 328);
        let title = "operations per second against the share of reads (software RDMA: functional only)".to_owned();
        let titles = |form| panels(form, &[(title.clone(), pictures.clone())]).matches("<text ").count();
        assert_eq!((titles("desk"), titles("phone")), (1, 3));
    }

    #[test]
    fn every_kind_of_axis_and_two_panels() {
        let point = |x, y| SeriesPoint { x, y, ends: Some((y * 0.9, y * 1.1)), marked: y > 1.5 };
        let series = [Series { name: "shm".into(), points: vec![point(0.0, 0.0), point(1.0, 1.0), point(64.0, 2.0)] }];
        for (x_log, y_log) in [(false, false), (true, false), (false, true), (true, true)] {
            let (x, y) = (Axis { name: "clients", log: x_log }, Axis { name: "ops/s", log: y_log });
            let one = lines("a & b", x, y, &series).expect("drawn");
            for (form, _) in FORMS {
                let svg = panels(form, &[("first".into(), one.clone()), ("second <>".into(), one.clone())]);
                assert_eq!(svg.matches("<svg ").count(), 3, "{svg}");
                assert_eq!(svg.matches("</svg>").count(), 3);
                assert!(svg.contains("second &lt;&gt;") && svg.contains("prefers-color-scheme: dark"));
                assert!(svg.contains("clients") && svg.contains("ops/s"));
            }
        }
    }
}
