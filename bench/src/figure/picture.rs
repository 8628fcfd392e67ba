//! A figure as pictures: one for a desk, one for a phone.

use super::forms::tenths;
use super::{Data, Figure, Point, Timeline};
use crate::error::BenchError;
use crate::fill::Part;
use crate::report::chart::{Bar, bars};
use crate::report::plot::{Axis, FORMS, Series, SeriesPoint, lines, panels};
use crate::report::{Measurement, grouped, significant};
use crate::statistics::Interval;

/// A panel's title and its pictures.
type Panel = (String, String);
/// A measure of a point with the ends of its interval.
type Measure = fn(&Measurement) -> Option<(f64, Option<(f64, f64)>)>;

/// What to add to the name of the file, and the picture.
///
/// # Errors
/// A chart cannot be drawn.
pub fn pictures(figure: &Figure) -> Result<Vec<(&'static str, String)>, BenchError> {
    let mut drawn = match &figure.data {
        Data::Points(points) if points.iter().any(|point| point.offered_per_s.is_some() && point.x.is_some()) => {
            let (x, y) = (Axis { name: figure.axis, log: true }, Axis { name: "response time, µs", log: true });
            let by = |title: &str, measure| -> Result<Panel, BenchError> {
                Ok((title.to_owned(), lines(title, x, y, &series(points, measure))?))
            };
            vec![
                by("p50 against offered load (× OVERLOADED)", p50)?,
                by("p99 against offered load (× OVERLOADED)", p99)?,
            ]
        }
        Data::Points(points) if points.iter().all(|point| point.x.is_some()) => {
            let log = points.iter().all(|point| point.x.is_some_and(|x| x > 0.0));
            let (x, y) = (Axis { name: figure.axis, log }, Axis { name: "operations/s", log: true });
            vec![(figure.question.to_owned(), lines(figure.question, x, y, &series(points, rate))?)]
        }
        Data::Points(points) => {
            let latency = |title: &str, measure| grouped_bars(title, points, measure, significant);
            if figure.figure == "starve" {
                vec![latency("p99 of the response time, µs", p99)?, latency("p99.9 of the response time, µs", p999)?]
            } else {
                vec![
                    grouped_bars("operations per second", points, rate, grouped)?,
                    latency("p50, µs", p50)?,
                    latency("p99, µs", p99)?,
                    latency("server CPU per operation, µs", server_cpu)?,
                ]
            }
        }
        Data::Timelines(timelines) => over_time(timelines)?,
        Data::Tenths(repetitions) => of_tenths(repetitions)?,
    };
    if let Some((title, _)) = drawn.first_mut() {
        let stamp = figure.stamp.as_ref().map_or(String::new(), |stamp| format!(" ({stamp})"));
        let partial = if figure.partial { " (PARTIAL)" } else { "" };
        *title = format!("{title}{stamp}{partial}");
    }
    Ok(FORMS.map(|(form, suffix)| (suffix, panels(form, &drawn))).into())
}

fn interval(of: Interval) -> (f64, Option<(f64, f64)>) {
    (of.median, Some((of.low, of.high)))
}

fn rate(of: &Measurement) -> Option<(f64, Option<(f64, f64)>)> {
    Some(interval(of.ops_per_s))
}

fn of_runs(of: &Measurement, time_ns: fn(&crate::report::RunLine) -> u64) -> Option<(f64, Option<(f64, f64)>)> {
    let times: Vec<f64> = of.runs.iter().map(|run| time_ns(run) as f64 / 1e3).collect();
    Interval::of(&times).map(interval)
}

fn p50(of: &Measurement) -> Option<(f64, Option<(f64, f64)>)> {
    of_runs(of, |run| run.p50_ns)
}

fn p99(of: &Measurement) -> Option<(f64, Option<(f64, f64)>)> {
    of_runs(of, |run| run.p99_ns)
}

fn p999(of: &Measurement) -> Option<(f64, Option<(f64, f64)>)> {
    of_runs(of, |run| run.p999_ns)
}

fn server_cpu(of: &Measurement) -> Option<(f64, Option<(f64, f64)>)> {
    of.server_cpu_us_per_op.map(interval)
}

fn paths(points: &[Point]) -> Vec<&str> {
    let mut paths: Vec<&str> = Vec::new();
    for point in points {
        if !paths.contains(&point.row.path.as_str()) {
            paths.push(&point.row.path);
        }
    }
    paths
}

fn series(points: &[Point], measure: Measure) -> Vec<Series> {
    let of_path = |path: &str| {
        let own = points.iter().filter(|point| point.row.path == path);
        let places = own.filter_map(|point| {
            let (y, ends) = measure(point.row.measured.as_ref()?)?;
            Some(SeriesPoint { x: point.x?, y, ends, marked: point.overloaded })
        });
        Series { name: path.to_owned(), points: places.collect() }
    };
    paths(points).into_iter().map(of_path).collect()
}

/// A bar for each point, in the colour of its path.
fn grouped_bars(title: &str, points: &[Point], measure: Measure, text: fn(f64) -> String) -> Result<Panel, BenchError> {
    let paths = paths(points);
    let bar = |point: &Point| {
        let (value, interval) = measure(point.row.measured.as_ref()?)?;
        // Parts before its own are empty, so that it has the colour of its path.
        let own = paths.iter().position(|path| *path == point.row.path)?;
        let mut parts = vec![0.0; own];
        parts.push(value);
        let name = if point.at.starts_with(&point.row.path) {
            point.at.clone()
        } else {
            format!("{}: {}", point.at, point.row.path)
        };
        Some(Bar { name, parts, interval, text: text(value) })
    };
    let all: Vec<Bar> = points.iter().filter_map(bar).collect();
    Ok((title.to_owned(), bars(title, &paths, &all)?))
}

fn over_time(timelines: &[Timeline]) -> Result<Vec<Panel>, BenchError> {
    let one = |line: &Timeline| -> Result<Panel, BenchError> {
        let seconds = line.bin_ms as f64 / 1e3;
        let points = line.completed.iter().enumerate().map(|(bin, &y)| SeriesPoint {
            x: (bin as f64 + 0.5) * seconds,
            y,
            ends: None,
            marked: false,
        });
        let title = format!("{}: server stopped from {} s to {} s", line.path, line.stopped_s, line.continued_s);
        let series = [Series { name: line.path.clone(), points: points.collect() }];
        let y_name = format!("operations per {} ms", line.bin_ms);
        let (x, y) = (Axis { name: "seconds", log: false }, Axis { name: &y_name, log: false });
        let picture = lines(&title, x, y, &series)?;
        Ok((title, picture))
    };
    timelines.iter().map(one).collect()
}

fn of_tenths(repetitions: &[Vec<Part>]) -> Result<Vec<Panel>, BenchError> {
    let tenths = tenths(repetitions);
    let point = |x: f64, of: Interval| SeriesPoint { x, y: of.median, ends: Some((of.low, of.high)), marked: false };
    let rates = tenths.iter().map(|&(records, rate, _)| point(records, rate)).collect();
    let memory = tenths.iter().filter_map(|&(records, _, memory)| Some(point(records, memory?))).collect();
    let panel = |title: &str, y_name: &str, points: Vec<SeriesPoint>| -> Result<Panel, BenchError> {
        let series = [Series { name: title.to_owned(), points }];
        let (x, y) = (Axis { name: "records in the table", log: false }, Axis { name: y_name, log: false });
        Ok((title.to_owned(), lines(title, x, y, &series)?))
    };
    Ok(vec![
        panel("rate of each tenth of the inserts", "inserts/s", rates)?,
        panel("memory in use", "multiple of the payload", memory)?,
    ])
}
