//! What is asked of a store: how many records, which keys and values, which operations in which proportion.

mod distribution;
mod key;
mod properties;
mod requests;
mod value;
mod zipfian;

pub use distribution::{Distribution, RecordChooser};
pub use key::{KeyShape, MAX_ZERO_PADDING, fnv64};
pub use properties::{PropertyMap, parse, parse_assignment, parse_file};
pub use requests::{Operation, Request, Requests};
pub use value::{Stamp, WrongValue, fill, verify};
pub use zipfian::{THETA, Zipfian, zeta};

use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// Proportions of the operations; they need not add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Whole-record reads.
    pub read: f64,
    /// Whole-record writes of an existing record.
    pub update: f64,
    /// Writes of a new record.
    pub insert: f64,
    /// Read, then write of the same record.
    pub read_modify_write: f64,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// What to call it.
    pub name: String,
    /// Records that `load` inserts.
    pub records: u64,
    /// Operations after which a run ends, if it ends by count.
    pub operations: Option<u64>,
    /// Bytes of every value.
    pub value_bytes: usize,
    /// `insertorder=ordered`.
    pub ordered_keys: bool,
    /// `zeropadding`.
    pub zero_padding: usize,
    /// Proportions.
    pub mix: Mix,
    /// Which record.
    pub distribution: Distribution,
}

/// Names of the workloads that need no file.
pub const PRESETS: [&str; 9] = ["a", "b", "c", "d", "f", "kv64", "kv1k", "kv16k", "kv1m"];

impl Workload {
    /// A workload by name, as [`Workload::preset_properties`] has it.
    ///
    /// # Errors
    /// `e`, with the reason; a name that is not known.
    pub fn preset(name: &str) -> Result<Self, BenchError> {
        let (name, properties) = Self::preset_properties(name)?;
        Self::from_properties(&name, &properties)
    }

    /// Name and properties of YCSB's `a` to `f`, or of one of ours, which are read-only, uniform, with keys of 24 B and one
    /// value of the size in their name.
    ///
    /// # Errors
    /// `e`, with the reason; a name that is not known.
    pub fn preset_properties(name: &str) -> Result<(String, PropertyMap), BenchError> {
        let name = name.to_ascii_lowercase();
        let name = name.strip_prefix("workload").unwrap_or(&name);
        let mut properties = PropertyMap::new();
        let mut set = |pairs: &[(&str, &str)]| {
            properties.extend(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        };
        let one_field = |bytes, records| {
            [
                ("fieldcount", "1"),
                ("fieldlength", bytes),
                ("recordcount", records),
                ("readproportion", "1"),
                ("updateproportion", "0"),
                ("requestdistribution", "uniform"),
                ("zeropadding", "20"),
            ]
        };
        let core = |read, update, insert, read_modify_write, distribution| {
            [
                ("recordcount", "100000"),
                ("readproportion", read),
                ("updateproportion", update),
                ("insertproportion", insert),
                ("readmodifywriteproportion", read_modify_write),
                ("requestdistribution", distribution),
            ]
        };
        match name {
            "a" => set(&core("0.5", "0.5", "0", "0", "zipfian")),
            "b" => set(&core("0.95", "0.05", "0", "0", "zipfian")),
            "c" => set(&core("1", "0", "0", "0", "zipfian")),
            "d" => set(&core("0.95", "0", "0.05", "0", "latest")),
            "e" => return Err(properties::scans_refused()),
            "f" => set(&core("0.5", "0", "0", "0.5", "zipfian")),
            "kv64" => set(&one_field("64", "1000000")),
            "kv1k" => set(&one_field("1024", "200000")),
            "kv16k" => set(&one_field("16384", "20000")),
            "kv1m" => set(&one_field("1048576", "256")),
            _ => {
                let known = PRESETS.join(", ");
                return Err(BenchError::Usage(format!("workload {name:?} is not known; there are {known}")));
            }
        }
        Ok((name.to_owned(), properties))
    }

    /// How its record numbers become keys.
    #[must_use]
    pub fn key_shape(&self) -> KeyShape {
        KeyShape { ordered: self.ordered_keys, zero_padding: self.zero_padding }
    }

    /// The same as floors can serve it: reads alone, and keys that are record numbers, so that nothing is looked up.
    #[must_use]
    pub fn for_floors(&self) -> Self {
        let mix = Mix { read: 1.0, update: 0.0, insert: 0.0, read_modify_write: 0.0 };
        Self { ordered_keys: true, mix, ..self.clone() }
    }

    /// Whether it writes at all.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.mix.update + self.mix.insert + self.mix.read_modify_write > 0.0
    }

    /// One line that says what it is.
    #[must_use]
    pub fn describe(&self) -> String {
        let Mix { read, update, insert, read_modify_write } = self.mix;
        let operations = [
            (read, "read"),
            (update, "update (whole record)"),
            (insert, "insert"),
            (read_modify_write, "read-modify-write"),
        ]
        .iter()
        .filter(|(share, _)| *share > 0.0)
        .map(|(share, name)| format!("{share} {name}"))
        .collect::<Vec<_>>()
        .join(", ");
        let mut arena = Vec::new();
        let key_bytes = self.key_shape().render(0, &mut arena).len();
        format!(
            "{}: {} records, keys of {}{key_bytes} B, values of {} B; {operations}; {}",
            self.name,
            self.records,
            if self.zero_padding < 20 { "about " } else { "" },
            self.value_bytes,
            self.distribution.describe(),
        )
    }
}
