//! A line a row, for spreadsheets and scripts.

use super::{Report, Row};

/// Columns of a row; times in nanoseconds, CPU in microseconds per operation.
pub(crate) const COLUMNS: &str = "path,threads,connections,depth,batch,ops_per_s,ops_per_s_low,ops_per_s_high,mean_ns,\
     min_ns,p50_ns,p90_ns,p99_ns,p999_ns,p9999_ns,max_ns,server_cpu_us_per_op,client_cpu_us_per_op,served_by,retries,\
     fallbacks,reconnects,wire_bytes_per_op,rate_to_local,repetitions,dropped,not_available";

/// The rows as CSV: a header, then a line each.
#[must_use]
pub fn csv(report: &Report) -> String {
    let mut text = format!("{COLUMNS},stamp\n");
    let stamp = report.environment.stamp.clone().unwrap_or_default();
    text.extend(report.rows.iter().map(|row| line(&[cells(row), vec![stamp.clone()]].concat())));
    text
}

/// Cells as a line.
pub(crate) fn line(cells: &[String]) -> String {
    cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n"
}

/// A row's cells, of which those of its times are from the intended start if there is one.
pub(crate) fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.path.clone()];
    match row.drive {
        Some(drive) => {
            cells.extend([drive.threads, drive.connections, drive.depth, drive.batch].map(|count| count.to_string()));
        }
        None => cells.extend([const { String::new() }; 4]),
    }
    match &row.measured {
        Some(row) => {
            let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
            let interval = row.ops_per_s;
            let times = row.response.unwrap_or(row.latency);
            cells.extend([interval.median, interval.low, interval.high, times.mean_ns].map(|v| format!("{v:.1}")));
            cells.extend(
                [times.min_ns, times.p50_ns, times.p90_ns, times.p99_ns, times.p999_ns, times.p9999_ns, times.max_ns]
                    .map(|time| time.to_string()),
            );
            cells.push(optional(row.server_cpu_us_per_op.map(|cpu| cpu.median)));
            cells.push(optional(Some(row.client_cpu_us_per_op.median)));
            cells.push(row.served_by());
            cells.extend([row.retries, row.fallbacks, row.reconnects].map(|count| count.to_string()));
            cells.push(format!("{:.1}", row.wire_bytes_per_op));
            cells.push(optional(row.rate_to_local));
            cells.extend([row.runs.len(), row.dropped].map(|count| count.to_string()));
        }
        None => cells.extend([const { String::new() }; 21]),
    }
    cells.push(row.not_available.clone().unwrap_or_default());
    cells
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::samples::report;
    use super::*;

    #[test]
    fn every_line_has_every_column() {
        let text = csv(&report());
        let columns = |line: &str| {
            let mut quoted = false;
            line.chars()
                .filter(|&c| {
                    quoted ^= c == '"';
                    c == ',' && !quoted
                })
                .count()
        };
        let mut lines = text.lines();
        let header = columns(lines.next().expect("a header"));
        assert!(lines.clone().count() >= 4);
        assert!(lines.all(|line| columns(line) == header), "{text}");
    }

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
