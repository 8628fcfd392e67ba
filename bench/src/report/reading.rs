//! The result in a sentence or two, computed from the data, whichever way it came out.

use super::table::significant;
use super::{Measurement, Report};

/// What the rows say about bypassing the server's CPU.
#[must_use]
pub fn reading(report: &Report) -> String {
    let Some((bypass, mediated)) = fastest(report, &["shm", "rdma"]).zip(fastest(report, &["tcp", "rdma-rpc"])) else {
        return "Reading: nothing to compare: it takes a path around the server's CPU and one through it.".into();
    };
    let server = |row: &Measurement| row.server_cpu_us_per_op.map(|cpu| cpu.median);
    let mut text = format!("Reading: {} ", bypass.0);
    match server(bypass.1).zip(server(mediated.1)) {
        Some((around, through)) => text.push_str(&format!(
            "took {} µs of server CPU per operation, {} took {} µs",
            significant(around),
            mediated.0,
            significant(through)
        )),
        None => text.push_str(&format!("is compared with {} (server CPU not known)", mediated.0)),
    }
    let ratio = bypass.1.ops_per_s.median / mediated.1.ops_per_s.median.max(f64::MIN_POSITIVE);
    let apart =
        bypass.1.ops_per_s.low > mediated.1.ops_per_s.high || bypass.1.ops_per_s.high < mediated.1.ops_per_s.low;
    if !apart {
        text.push_str("; their rates do not differ beyond noise");
    } else if ratio > 1.0 {
        text.push_str(&format!("; the rate around the server's CPU was {} times that through it", significant(ratio)));
    } else {
        text.push_str(&format!(
            "; the rate around the server's CPU was only {} of that through it: bypassing did not pay here",
            significant(ratio)
        ));
    }
    let client = |row: &Measurement| row.client_cpu_us_per_op.median;
    text.push_str(&format!(
        "; per operation the client's own CPU spent {} µs against {}.",
        significant(client(bypass.1)),
        significant(client(mediated.1))
    ));
    text
}

/// The row with the highest rate of these paths.
fn fastest<'r>(report: &'r Report, paths: &[&str]) -> Option<(String, &'r Measurement)> {
    report
        .rows
        .iter()
        .filter(|row| paths.contains(&row.path.as_str()))
        .filter_map(|row| Some((row.name(), row.measured.as_ref()?)))
        .max_by(|one, other| one.1.ops_per_s.median.total_cmp(&other.1.ops_per_s.median))
}

#[cfg(test)]
mod tests {
    use super::super::samples::{measurement, report};
    use super::*;

    #[test]
    fn it_says_who_won() {
        let text = reading(&report());
        assert!(text.contains("shm, batches of 64 took 0 µs of server CPU"), "{text}");
        assert!(text.contains("times that through it"), "{text}");
    }

    #[test]
    fn it_says_when_bypassing_does_not_pay() {
        let mut report = report();
        for row in report.rows.iter_mut().filter(|row| row.path == "tcp") {
            row.measured = Some(measurement(9e9, Some(0.1)));
        }
        assert!(reading(&report).contains("did not pay"), "{}", reading(&report));
    }

    #[test]
    fn it_says_when_there_is_nothing_to_say() {
        let mut report = report();
        report.rows.retain(|row| row.path != "tcp");
        assert!(reading(&report).contains("nothing to compare"));
    }
}
