//! Counters in Prometheus' text format, version 0.0.4.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
pub(super) use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::names::{FAMILIES, Family, Kind, Measure};
use crate::BUILD;
use crate::metrics::request_labels;

/// The page of these counters.
pub(super) fn render(counters: Vec<(String, u64)>, is_ready: bool) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("sidestep");
    registry.register_collector(Box::new(Snapshot { counters, is_ready }));
    let mut page = String::new();
    prometheus_text::encode(&mut page, &registry)?;
    Ok(page)
}

/// Counters at one moment.
#[derive(Debug)]
struct Snapshot {
    counters: Vec<(String, u64)>,
    is_ready: bool,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let build = encoder.encode_descriptor("build_info", "Always 1; says which build", None, MetricType::Gauge)?;
        gauge(build, &BUILD.facts()[..], 1)?;
        let ready = encoder.encode_descriptor("ready", "1 while clients are served", None, MetricType::Gauge)?;
        ConstGauge::new(u64::from(self.is_ready)).encode(ready)?;
        let mut values: HashMap<&str, u64> = self.counters.iter().map(|(name, value)| (&name[..], *value)).collect();
        for family in FAMILIES {
            let samples: Vec<(&str, u64)> =
                family.from.iter().filter_map(|(name, label)| Some((*label, values.remove(name)?))).collect();
            if !samples.is_empty() {
                encode_family(&mut encoder, family, &samples)?;
            }
        }
        self.encode_requests(&mut encoder, &mut values)?;
        self.encode_others(&mut encoder, &values)
    }
}

impl Snapshot {
    fn encode_requests(&self, encoder: &mut DescriptorEncoder<'_>, values: &mut HashMap<&str, u64>) -> fmt::Result {
        let requests: Vec<_> = self
            .counters
            .iter()
            .filter(|(name, _)| values.contains_key(&name[..]))
            .filter_map(|(name, value)| Some((name, request_labels(name)?, *value)))
            .collect();
        if requests.is_empty() {
            return Ok(());
        }
        let help = "Requests by path, operation and outcome";
        let mut metric = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for (name, [path, op, outcome], value) in requests {
            values.remove(&name[..]);
            let labels = [("path", path), ("op", op), ("outcome", outcome)];
            ConstCounter::new(value).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// What the table of names does not know is told all the same.
    fn encode_others(&self, encoder: &mut DescriptorEncoder<'_>, values: &HashMap<&str, u64>) -> fmt::Result {
        let others: Vec<_> = self.counters.iter().filter(|(name, _)| values.contains_key(&name[..])).collect();
        if others.is_empty() {
            return Ok(());
        }
        let help = "Counters without a name of their own here";
        let mut metric = encoder.encode_descriptor("other", help, None, MetricType::Unknown)?;
        for (name, value) in others {
            ConstGauge::new(*value).encode(metric.encode_family(&[("name", &name[..])])?)?;
        }
        Ok(())
    }
}

fn gauge(mut metric: MetricEncoder<'_>, labels: &[(&str, &str)], value: u64) -> fmt::Result {
    ConstGauge::new(value).encode(metric.encode_family(&labels)?)
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &Family, samples: &[(&str, u64)]) -> fmt::Result {
    let unit = match family.measure {
        Measure::Number => None,
        Measure::Bytes => Some(Unit::Bytes),
        Measure::Seconds(_) => Some(Unit::Seconds),
    };
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
    };
    let mut metric = encoder.encode_descriptor(family.name, family.help, unit.as_ref(), kind)?;
    for (label, value) in samples {
        let labels = [(family.label, *label)];
        let labels = if family.label.is_empty() { &labels[..0] } else { &labels[..] };
        let sample = metric.encode_family(&labels)?;
        match (family.kind, family.measure) {
            (Kind::Counter, Measure::Seconds(a_second)) => {
                ConstCounter::new(seconds(*value, a_second)).encode(sample)?
            }
            (Kind::Gauge, Measure::Seconds(a_second)) => ConstGauge::new(seconds(*value, a_second)).encode(sample)?,
            (Kind::Counter, _) => ConstCounter::new(*value).encode(sample)?,
            (Kind::Gauge, _) => ConstGauge::new(*value).encode(sample)?,
        }
    }
    Ok(())
}

fn seconds(count: u64, a_second: u32) -> f64 {
    count as f64 / f64::from(a_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page() {
        let counters = [
            ("process_cpu_user_us", 1_500_000),
            ("tcp_get_ok", 7),
            ("rdma_rpc_put_version_mismatch", 2),
            ("memory_bytes", u64::MAX),
            ("brand_new", 3),
        ];
        let page = render(counters.map(|(name, value)| (name.to_owned(), value)).into(), true).unwrap();
        let (build, rest) = page.split_once("# HELP sidestep_ready").unwrap();
        assert!(
            build.contains(&format!("sidestep_build_info{{version=\"{}\",", sidestep_build_info::VERSION)),
            "{build}"
        );
        let expected = [
            " 1 while clients are served",
            "# TYPE sidestep_ready gauge",
            "sidestep_ready 1",
            "# HELP sidestep_cpu_seconds_total CPU time of all threads",
            "# TYPE sidestep_cpu_seconds_total counter",
            "sidestep_cpu_seconds_total{mode=\"user\"} 1.5",
            "# HELP sidestep_memory_bytes Size of the address space",
            "# TYPE sidestep_memory_bytes gauge",
            "sidestep_memory_bytes 18446744073709551615",
            "# HELP sidestep_requests_total Requests by path, operation and outcome",
            "# TYPE sidestep_requests_total counter",
            "sidestep_requests_total{path=\"tcp\",op=\"get\",outcome=\"ok\"} 7",
            "sidestep_requests_total{path=\"rdma_rpc\",op=\"put\",outcome=\"version_mismatch\"} 2",
            "# HELP sidestep_other Counters without a name of their own here",
            "# TYPE sidestep_other untyped",
            "sidestep_other{name=\"brand_new\"} 3",
        ];
        assert_eq!(rest.lines().collect::<Vec<_>>(), expected);
    }
}
