//! One HTML page that needs nothing but itself.

use super::chart::{self, Bar, Line};
use super::table::{grouped, significant};
use super::times::{self, Times, times};
use super::{Measurement, Report, Row};
use crate::error::BenchError;

/// Light and dark by what the browser prefers; on a phone a row of the table is a block of its own.
const STYLE: &str = include_str!("page.css");

/// Columns of the table after the path. A phone shows them beside their cells.
const COLUMNS: [&str; 12] = [
    "ops/s",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "server CPU µs/op",
    "client CPU µs/op",
    "served by",
    "retries",
    "fallbacks",
    "reconnects",
    "wire B/op",
    "× local",
];

/// Shares at which the curve of times is drawn.
const POINTS: usize = 120;

/// Text as HTML shows it.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The report as a page: reading, table, charts, environment. No script, no network.
///
/// # Errors
/// A chart cannot be drawn.
pub fn html(report: &Report) -> Result<String, BenchError> {
    let measured = report.measured();
    let mut body = String::new();
    let mut add = |text: String| body.push_str(&text);
    add(format!("<h1>Sidestep: {}</h1>\n", escaped(&report.workload.name)));
    if report.partial {
        add("<p class=\"warn\">PARTIAL: interrupted before all repetitions were done.</p>\n".into());
    }
    if let Some(stamp) = &report.environment.stamp {
        add(format!("<p class=\"warn\">{}</p>\n", escaped(stamp)));
    }
    add(format!("<p class=\"reading\">{}</p>\n", escaped(&super::reading(report))));
    add(format!("<p>{}<br>{}</p>\n", escaped(&report.workload.describe()), escaped(&report.describe_plan())));
    add(table(report));
    let rates: Vec<Bar> = measured.iter().map(|(row, of)| rate_bar(row, of)).collect();
    add(figure(
        "Operations per second",
        "median; the thin line is its 95 % interval",
        &chart::bars("operations per second of each path", &["ops/s"], &rates)?,
    ));
    add(figure(
        "CPU per operation",
        "µs of the server's process and of this one, driving and verifying included",
        &cpu_chart(&measured, "")?,
    ));
    let lines: Vec<Line> = measured.iter().map(|(row, of)| curve(row, of)).collect();
    add(figure(
        "Time of an operation",
        "µs from submission to reply; a batch counts as long as all of it took",
        &chart::percentiles("times of operations of each path by percentile", &lines)?,
    ));
    add(all_times(report));
    add(environment(report));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n\
         <title>Sidestep bench: {}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(&report.workload.name)
    ))
}

fn cpu_chart(measured: &[(&Row, &Measurement)], stamp: &str) -> Result<String, BenchError> {
    let cpu: Vec<Bar> = measured.iter().map(|(row, of)| cpu_bar(row, of)).collect();
    let client = format!("client µs{stamp}");
    chart::bars("CPU per operation of each path, server and client", &["server µs", &client], &cpu)
}

/// The chart of CPU per operation as a picture of its own, light or dark as the reader's browser prefers.
///
/// # Errors
/// The chart cannot be drawn.
pub fn svg(report: &Report) -> Result<String, BenchError> {
    let stamp = report.environment.stamp.as_ref().map_or(String::new(), |stamp| format!(", {stamp}"));
    Ok(chart::standalone(&cpu_chart(&report.measured(), &stamp)?))
}

fn figure(title: &str, caption: &str, svg: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n<p>{}</p>\n{svg}\n</section>\n", escaped(title), escaped(caption))
}

fn table(report: &Report) -> String {
    let mut text = "<table>\n<thead><tr><th scope=\"col\">path</th>".to_owned();
    text.extend(COLUMNS.iter().map(|column| format!("<th scope=\"col\">{column}</th>")));
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in &report.rows {
        text.push_str(&format!("<tr><th scope=\"row\">{}</th>", escaped(&row.name())));
        match (&row.measured, &row.not_available) {
            (Some(of), _) => {
                let latency = of.response.unwrap_or(of.latency);
                let microseconds = |ns: u64| significant(ns as f64 / 1e3);
                let interval = of.ops_per_s;
                let cells = [
                    format!(
                        "<span title=\"95 % interval {} to {}\">{}</span>",
                        grouped(interval.low),
                        grouped(interval.high),
                        grouped(interval.median)
                    ),
                    microseconds(latency.p50_ns),
                    microseconds(latency.p99_ns),
                    microseconds(latency.p999_ns),
                    of.server_cpu_us_per_op.map_or("-".into(), |cpu| significant(cpu.median)),
                    significant(of.client_cpu_us_per_op.median),
                    escaped(&of.served_by()),
                    grouped(of.retries as f64),
                    grouped(of.fallbacks as f64),
                    grouped(of.reconnects as f64),
                    significant(of.wire_bytes_per_op),
                    of.rate_to_local.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                ];
                let named = COLUMNS.iter().zip(&cells);
                text.extend(named.map(|(column, cell)| format!("<td data-column=\"{column}\">{cell}</td>")));
            }
            (None, Some(reason)) => {
                text.push_str(&reason_cell(&format!("not available: {}", escaped(reason))));
            }
            (None, None) => text.push_str(&reason_cell("not measured")),
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n");
    text
}

/// The second table: every time of every row.
fn all_times(report: &Report) -> String {
    let columns = || std::iter::once("time, µs").chain(times::COLUMNS);
    let mut text = "<section>\n<h2>All times</h2>\n<table>\n<thead><tr><th scope=\"col\">path</th>".to_owned();
    text.extend(columns().map(|column| format!("<th scope=\"col\">{column}</th>")));
    text.push_str("</tr></thead>\n<tbody>\n");
    for Times { path, kind, cells } in times(report) {
        text.push_str(&format!("<tr><th scope=\"row\">{}</th>", escaped(&path)));
        let cells = std::iter::once(kind.to_owned()).chain(cells);
        text.extend(columns().zip(cells).map(|(column, cell)| format!("<td data-column=\"{column}\">{cell}</td>")));
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</section>\n");
    text
}

fn reason_cell(reason: &str) -> String {
    format!("<td colspan=\"{}\" class=\"reason\">{reason}</td>", COLUMNS.len())
}

fn rate_bar(row: &Row, of: &Measurement) -> Bar {
    let rate = of.ops_per_s;
    Bar {
        name: row.name(),
        parts: vec![rate.median],
        interval: Some((rate.low, rate.high)),
        text: grouped(rate.median),
    }
}

fn cpu_bar(row: &Row, of: &Measurement) -> Bar {
    let server = of.server_cpu_us_per_op.map_or(0.0, |cpu| cpu.median);
    let client = of.client_cpu_us_per_op.median;
    let text = match of.server_cpu_us_per_op {
        Some(_) => format!("{} + {}", significant(server), significant(client)),
        None => significant(client),
    };
    Bar { name: row.name(), parts: vec![server, client], interval: None, text }
}

fn curve(row: &Row, of: &Measurement) -> Line {
    let points = (0..=POINTS)
        .map(|step| {
            let rarity = 10_f64.powf(4.0 * step as f64 / POINTS as f64);
            let time_ns = of.histogram.value_at_quantile(1.0 - 1.0 / rarity);
            (rarity, (time_ns as f64 / 1e3).max(1e-3))
        })
        .collect();
    Line { name: row.name(), points }
}

fn environment(report: &Report) -> String {
    let mut text = "<section>\n<h2>Environment</h2>\n<dl>\n".to_owned();
    for (name, value) in report.environment.lines() {
        text.push_str(&format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(&value)));
    }
    text.push_str("</dl>\n</section>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::samples::report;
    use super::*;

    #[test]
    fn the_page_stands_alone() {
        let page = html(&report()).expect("made");
        for outside in ["http:", "https:", "src=", "<script", "url(", "@import"] {
            let text = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg ").count(), 6, "three, for two widths");
        assert!(page.contains("not available: no verbs device"));
        assert!(page.contains("loopback &lt;&amp;&gt;"), "text is escaped");
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(page.contains("0.67"), "the ratio to local");
    }
}
