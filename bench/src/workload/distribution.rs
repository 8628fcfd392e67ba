//! Which record a request is for: YCSB's request distributions.

use rand::Rng;
use serde::{Deserialize, Serialize};

use super::key::fnv64;
use super::zipfian::{THETA, Zipfian};

/// A request distribution by its name in YCSB's properties.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distribution {
    /// Every record alike.
    Uniform,
    /// `zipfian` as YCSB has it: drawn over 10^10 items, then scattered over the records by a hash.
    /// Its hottest key gets 3.8 % of the requests.
    ScrambledZipfian,
    /// Ours: a zipfian over exactly the records (record 0 the hottest), so that the skew is that of the name.
    ZipfianExact,
    /// Newest record less a zipfian.
    Latest,
    /// A share of the requests goes to a share of the records.
    Hotspot {
        /// `hotspotdatafraction`: share of the records that is hot.
        data: f64,
        /// `hotspotopnfraction`: share of the requests that goes there.
        operations: f64,
    },
    /// One after the other, round and round.
    Sequential,
    /// Newest record less an exponentially distributed number.
    Exponential {
        /// `exponential.percentile`: this many per cent of the requests …
        percentile: f64,
        /// `exponential.frac`: … go to this share of the records, the newest.
        fraction: f64,
    },
}

impl Distribution {
    /// What to print: the name, and for YCSB's zipfian what it is.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Uniform => "uniform".into(),
            Self::ScrambledZipfian => "zipfian as YCSB (scrambled over 10^10, θ 0.99)".into(),
            Self::ZipfianExact => "zipfian-exact (θ 0.99)".into(),
            Self::Latest => "latest (zipfian, θ 0.99)".into(),
            Self::Hotspot { data, operations } => format!("hotspot ({operations} of requests to {data} of records)"),
            Self::Sequential => "sequential".into(),
            Self::Exponential { percentile, fraction } => {
                format!("exponential ({percentile} % of requests to the newest {fraction:.4})")
            }
        }
    }
}

/// Draws record numbers.
#[derive(Clone, Debug)]
pub struct RecordChooser {
    records: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Scrambled(Zipfian),
    Exact(Zipfian),
    Latest(Zipfian),
    Hotspot { hot_records: u64, operations: f64 },
    Sequential { next: u64 },
    Exponential { gamma: f64 },
}

impl RecordChooser {
    /// Over `records` (at least 1) to begin with.
    #[must_use]
    pub fn new(distribution: Distribution, records: u64) -> Self {
        let records = records.max(1);
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::ScrambledZipfian => Kind::Scrambled(Zipfian::scrambled_base()),
            Distribution::ZipfianExact => Kind::Exact(Zipfian::new(records, THETA)),
            Distribution::Latest => Kind::Latest(Zipfian::new(records, THETA)),
            Distribution::Hotspot { data, operations } => {
                let hot_records = ((records as f64 * data) as u64).clamp(1, records);
                Kind::Hotspot { hot_records, operations }
            }
            Distribution::Sequential => Kind::Sequential { next: 0 },
            Distribution::Exponential { percentile, fraction } => {
                Kind::Exponential { gamma: -(1.0 - percentile / 100.0).ln() / (records as f64 * fraction) }
            }
        };
        Self { records, kind }
    }

    /// Makes records that were inserted since known, up to `records` of them.
    /// Only `latest` and `exponential` draw them; the others stay with the records loaded, so that their skew stays.
    pub fn grow_to(&mut self, records: u64) {
        match &mut self.kind {
            Kind::Latest(zipfian) => zipfian.grow_to(records),
            Kind::Exponential { .. } => {}
            _ => return,
        }
        self.records = self.records.max(records);
    }

    /// Draws one record number.
    pub fn sample(&mut self, random: &mut impl Rng) -> u64 {
        let records = self.records;
        match &mut self.kind {
            Kind::Uniform => random.random_range(0..records),
            Kind::Scrambled(zipfian) => fnv64(zipfian.sample(random)) % records,
            Kind::Exact(zipfian) => zipfian.sample(random),
            Kind::Latest(zipfian) => records - 1 - zipfian.sample(random),
            Kind::Hotspot { hot_records, operations } => {
                let hot_records = *hot_records;
                if random.random::<f64>() < *operations || hot_records == records {
                    random.random_range(0..hot_records)
                } else {
                    random.random_range(hot_records..records)
                }
            }
            Kind::Sequential { next } => {
                let record = *next % records;
                *next += 1;
                record
            }
            Kind::Exponential { gamma } => loop {
                let back = (-(1.0 - random.random::<f64>()).ln() / *gamma) as u64;
                if back < records {
                    return records - 1 - back;
                }
            },
        }
    }
}

#[cfg(test)]
#[path = "distribution_tests.rs"]
mod tests;
