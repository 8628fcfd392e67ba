//! The times of every row as an interval log of HdrHistogram, for its plotters and processors.

use std::time::{Duration, UNIX_EPOCH};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Report;
use crate::error::BenchError;

/// Nanoseconds of a millisecond, in which the log's readable maxima are.
const MAXIMA_IN: f64 = 1e6;

/// One line a row, all repetitions together, tagged with the row's name with `_` for blanks and `;` for commas; values in
/// nanoseconds. In an open loop a second line, tagged `…_response`, counts from the intended start.
///
/// # Errors
/// A histogram cannot be written.
pub fn hdr(report: &Report) -> Result<String, BenchError> {
    let failed = |reason: String| BenchError::System { attempted: "write an interval log", reason };
    let (mut log, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment("sidestep-bench; values in ns, maxima in ms")
        .with_start_time(UNIX_EPOCH + Duration::from_secs(report.environment.started_at_s))
        .with_max_value_divisor(MAXIMA_IN)
        .begin_log_with(&mut log, &mut serializer)
        .map_err(|error| failed(error.to_string()))?;
    for row in &report.rows {
        let Some(measured) = &row.measured else { continue };
        let name = row.name().replace(", ", ";").replace(' ', "_");
        let seconds: f64 = measured.runs.iter().map(|run| run.seconds).sum();
        let histograms = [(name.clone(), Some(&measured.histogram)), (name + "_response", measured.responses.as_ref())];
        for (tag, histogram) in histograms {
            let Some(histogram) = histogram else { continue };
            writer
                .write_histogram(histogram, Duration::ZERO, Duration::from_secs_f64(seconds), Tag::new(&tag))
                .map_err(|error| failed(error.to_string()))?;
        }
    }
    String::from_utf8(log).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::super::samples::report;
    use super::*;

    #[test]
    fn the_log_holds_the_histograms() {
        let report = report();
        let text = hdr(&report).expect("a log");
        let intervals: Vec<(String, Histogram<u64>)> = IntervalLogIterator::new(text.as_bytes())
            .filter_map(|entry| match entry.expect("an entry") {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .map(|interval| {
                let bytes = base64(interval.encoded_histogram());
                let histogram = Deserializer::new().deserialize(&mut bytes.as_slice()).expect("a histogram");
                (interval.tag().expect("a tag").as_str().to_owned(), histogram)
            })
            .collect();
        let names: Vec<&str> = intervals.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["local", "shm", "shm;batches_of_64", "tcp;64_connections_×_16"]);
        let measured = report.rows.iter().filter_map(|row| row.measured.as_ref());
        for ((_, read), written) in intervals.iter().zip(measured) {
            assert_eq!(read, &written.histogram);
        }
    }

    /// Standard alphabet, padding left out.
    fn base64(text: &str) -> Vec<u8> {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
        for digit in text.bytes().filter_map(|byte| ALPHABET.iter().position(|&other| other == byte)) {
            bits = bits << 6 | digit as u32;
            count += 6;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count) as u8);
                bits &= (1 << count) - 1;
            }
        }
        bytes
    }
}
