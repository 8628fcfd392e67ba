//! `fill`: insert until N, and what each tenth of the way costs in time and memory.

use serde::Serialize;

use crate::driver::load;
use crate::environment::Environment;
use crate::error::BenchError;
use crate::progress::Progress;
use crate::report::{grouped, significant};
use crate::target::Target;
use crate::workload::Workload;

/// Parts that the way is divided into.
const PARTS: u64 = 10;

/// One tenth of the way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Records in the store at its end.
    pub records: u64,
    /// Inserts per second during it.
    pub inserts_per_s: f64,
    /// Memory in use at its end, above what was in use before the first insert; none where the store cannot tell.
    pub memory_bytes: Option<u64>,
    /// That, as a multiple of the keys' and values' own bytes.
    pub memory_to_payload: Option<f64>,
}

/// What a fill took.
#[derive(Clone, Debug, Serialize)]
pub struct Filled {
    /// `sidestep-bench/fill/1`.
    pub schema: &'static str,
    /// Where it was measured.
    pub environment: Environment,
    /// Name of the store.
    pub store: String,
    /// What was inserted.
    pub workload: Workload,
    /// Bytes of key and value of a record.
    pub record_bytes: u64,
    /// The tenths.
    pub parts: Vec<Part>,
    /// Whether the store refused an insert before the end, and what it said.
    pub refused: Option<String>,
}

/// Inserts the workload's records over `connections`.
///
/// # Errors
/// The store cannot be asked for its memory. An insert that it refuses ends the fill without being an error.
pub fn fill(
    target: &dyn Target,
    workload: &Workload,
    connections: usize,
    mut environment: Environment,
) -> Result<Filled, BenchError> {
    environment.stores = vec![format!("{}: {}", target.name(), target.about())];
    let unavailable = |reason: String| BenchError::Unavailable { store: target.name().to_owned(), reason };
    let in_use = || target.memory_in_use().map_err(|error| unavailable(error.0));
    let record_bytes = (average_key_bytes(workload) + workload.value_bytes) as u64;
    let empty = in_use()?;
    let progress = Progress::records(&format!("fill {}", target.name()), workload.records);
    let (mut parts, mut refused) = (Vec::new(), None);
    for part in 0..PARTS {
        let range = workload.records * part / PARTS..workload.records * (part + 1) / PARTS;
        let records = range.end;
        match load(target, workload, range, connections, &|records| progress.advance(records)) {
            Ok(loaded) => {
                let memory_bytes = in_use()?.zip(empty).map(|(after, before)| after.saturating_sub(before));
                parts.push(Part {
                    records,
                    inserts_per_s: loaded.records as f64 / loaded.elapsed.as_secs_f64().max(1e-9),
                    memory_bytes,
                    memory_to_payload: memory_bytes.map(|bytes| bytes as f64 / (records * record_bytes).max(1) as f64),
                });
            }
            Err(error @ BenchError::Operation { .. }) => {
                refused = Some(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Filled {
        schema: "sidestep-bench/fill/1",
        environment,
        store: target.name().to_owned(),
        workload: workload.clone(),
        record_bytes,
        parts,
        refused,
    })
}

fn average_key_bytes(workload: &Workload) -> usize {
    const SAMPLE: u64 = 1000;
    let mut arena = Vec::new();
    for record in 0..SAMPLE {
        let _ = workload.key_shape().render(record, &mut arena);
    }
    arena.len() / SAMPLE as usize
}

impl Filled {
    /// The table for a terminal, with a reading.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("fill of {} with {}\n", self.store, self.workload.describe());
        text.push_str(&format!("{:>14} {:>12} {:>12} {:>10}\n", "records", "inserts/s", "bytes/entry", "× payload"));
        for part in &self.parts {
            let entry = part.memory_bytes.map_or("-".into(), |bytes| significant(bytes as f64 / part.records as f64));
            let ratio = part.memory_to_payload.map_or("-".into(), |ratio| format!("{ratio:.3}"));
            let (records, rate) = (grouped(part.records as f64), grouped(part.inserts_per_s));
            text.push_str(&format!("{records:>14} {rate:>12} {entry:>12} {ratio:>10}\n"));
        }
        text.push_str(&format!("{}\n\n", self.reading()));
        text.extend(self.environment.lines().into_iter().map(|(name, value)| format!("{name}: {value}\n")));
        text
    }

    /// The result in a sentence.
    #[must_use]
    pub fn reading(&self) -> String {
        let Some((first, last)) = self.parts.first().zip(self.parts.last()) else {
            return format!("Reading: nothing was inserted: {}", self.refused.as_deref().unwrap_or("no records"));
        };
        let mut text = format!(
            "Reading: the last tenth went at {:.2} of the rate of the first",
            last.inserts_per_s / first.inserts_per_s.max(f64::MIN_POSITIVE)
        );
        if let Some(ratio) = last.memory_to_payload {
            text.push_str(&format!("; memory in use came to {ratio:.3} times the payload"));
        }
        match &self.refused {
            Some(reason) => text.push_str(&format!("; then the store was full: {reason}")),
            None => text.push('.'),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Local;

    #[test]
    fn a_fill_has_ten_parts() {
        let workload = Workload { records: 1005, ..Workload::preset("kv1k").expect("a preset") };
        let filled = fill(&Local::new(0), &workload, 1, Environment::here("", "none")).expect("filled");
        assert_eq!(filled.parts.len(), 10);
        assert_eq!(filled.parts[9].records, 1005);
        assert_eq!(filled.record_bytes, 1048);
        assert!(filled.parts.iter().all(|part| part.inserts_per_s > 0.0 && part.memory_bytes.is_none()));
        assert!(filled.table().contains("1,005") && filled.reading().contains("of the rate of the first"));
    }
}
