//! The result in a sentence, computed from the numbers, whichever way they came out.

use super::floor::{PIPELINED, SINGLE};
use super::starve::{ALONE, BESIDE};
use super::{Data, Figure, Name, Point, Timeline};
use crate::fill::Part;
use crate::report::{Measurement, RunLine, grouped, significant};
use crate::statistics::{Change, Interval, median};

/// Paths around the server's CPU, and through it.
const AROUND: [&str; 2] = ["shm", "rdma"];
const THROUGH: [&str; 2] = ["tcp", "rdma-rpc"];

/// What is compared.
type Value = fn(&RunLine) -> f64;

/// How one set of repetitions relates to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    More,
    Less,
    Noise,
}

/// A ratio that is told apart from noise, or is not.
struct Finding {
    ratio: Interval,
    few: bool,
}

impl Finding {
    fn between(before: &Measurement, after: &Measurement, of: Value) -> Option<Self> {
        let values = |measured: &Measurement| measured.runs.iter().map(of).collect::<Vec<f64>>();
        let change = Change::between(&values(before), &values(after))?;
        Some(Self { ratio: change.ratio?, few: change.too_few })
    }

    fn verdict(&self) -> Verdict {
        match self.ratio {
            Interval { low, .. } if low > 1.0 => Verdict::More,
            Interval { high, .. } if high < 1.0 => Verdict::Less,
            _ => Verdict::Noise,
        }
    }

    /// `3.2 times (2.9 to 3.5)`
    fn times(&self) -> String {
        let Interval { median, low, high } = self.ratio;
        format!("{} times ({} to {})", significant(median), significant(low), significant(high))
    }
}

/// What is said where an interval of so few repetitions is no more than their spread.
fn caution(few: bool) -> &'static str {
    if few { " (fewer than 4 repetitions: a first look, the range in place of an interval)" } else { "" }
}

/// The best of some paths at one place.
fn best<'p>(points: &[&'p Point], paths: &[&str]) -> Option<(String, &'p Measurement)> {
    let measured = points
        .iter()
        .filter(|point| paths.contains(&point.row.path.as_str()))
        .filter_map(|point| Some((point.row.name(), point.row.measured.as_ref()?)));
    measured.max_by(|one, other| one.1.ops_per_s.median.total_cmp(&other.1.ops_per_s.median))
}

fn places(points: &[Point]) -> Vec<(&str, Vec<&Point>)> {
    let mut places: Vec<(&str, Vec<&Point>)> = Vec::new();
    for point in points {
        match places.iter_mut().find(|(at, _)| *at == point.at) {
            Some((_, here)) => here.push(point),
            None => places.push((&point.at, vec![point])),
        }
    }
    places
}

/// What the figure shows, in one sentence.
pub(super) fn reading(name: Name, figure: &Figure) -> String {
    let text = match &figure.data {
        Data::Points(points) => match name {
            Name::Bypass => bypass(points),
            Name::Starve => starve(points),
            Name::LoadLatency => load_latency(points),
            Name::Cache => cache(points),
            Name::Floor => floor(points),
            _ => sweep(points, figure.axis),
        },
        Data::Timelines(lines) => freeze(lines),
        Data::Tenths(repetitions) => fill(repetitions),
    };
    text.unwrap_or_else(|| "Nothing to compare: it takes measured paths around the server's CPU and through it.".into())
}

fn bypass(points: &[Point]) -> Option<String> {
    let all: Vec<&Point> = points.iter().collect();
    let (around, through) = (best(&all, &AROUND)?, best(&all, &THROUGH)?);
    let finding = Finding::between(through.1, around.1, |run| run.ops_per_s)?;
    let cpu =
        |of: &Measurement| of.server_cpu_us_per_op.map_or("an unknown number of".into(), |cpu| significant(cpu.median));
    let (spent, saved) = (cpu(around.1), cpu(through.1));
    let verdict = match finding.verdict() {
        Verdict::More => format!("and did {} the operations", finding.times()),
        Verdict::Less => {
            format!("but did only {} the operations: bypassing did not pay in throughput", finding.times())
        }
        Verdict::Noise => format!("with no difference in operations beyond noise, {}", finding.times()),
    };
    let (around, through) = (around.0, through.0);
    Some(format!(
        "At its best {around} spent {spent} µs of server CPU per operation where {through} at its best spent {saved} µs, \
         {verdict}{}.",
        caution(finding.few)
    ))
}

fn sweep(points: &[Point], axis: &str) -> Option<String> {
    let found: Vec<(&str, Finding)> = places(points)
        .into_iter()
        .filter_map(|(at, here)| {
            let (around, through) = (best(&here, &AROUND)?, best(&here, &THROUGH)?);
            Some((at, Finding::between(through.1, around.1, |run| run.ops_per_s)?))
        })
        .collect();
    let by_ratio =
        |one: &&(&str, Finding), other: &&(&str, Finding)| one.1.ratio.median.total_cmp(&other.1.ratio.median);
    let (least, most) = (found.iter().min_by(by_ratio)?, found.iter().max_by(by_ratio)?);
    let at = |verdict: Verdict| {
        let all = found.iter().filter(|(_, finding)| finding.verdict() == verdict).map(|(at, _)| *at);
        all.collect::<Vec<_>>().join(", ")
    };
    let (lost, noise) = (at(Verdict::Less), at(Verdict::Noise));
    let mut text = format!(
        "Around the server's CPU there were {} the operations of the best way through it at {} and {} at {} ({axis})",
        least.1.times(),
        least.0,
        most.1.times(),
        most.0
    );
    text.push_str(&if lost.is_empty() { String::new() } else { format!("; bypassing did not pay at {lost}") });
    text.push_str(&if noise.is_empty() { String::new() } else { format!("; no difference beyond noise at {noise}") });
    Some(format!("{text}{}.", caution(found.iter().any(|(_, finding)| finding.few))))
}

fn starve(points: &[Point]) -> Option<String> {
    let (mut parts, mut few) = (Vec::new(), false);
    let mut around_grew = None;
    for alone in points.iter().filter(|point| point.at == ALONE) {
        let beside = points.iter().find(|point| point.at == BESIDE && point.row.path == alone.row.path);
        let (before, after) = (alone.row.measured.as_ref()?, beside?.row.measured.as_ref()?);
        let finding = Finding::between(before, after, |run| run.p99_ns as f64)?;
        let grew = finding.verdict() == Verdict::More;
        let (path, times) = (&alone.row.path, finding.times());
        parts.push(match finding.verdict() {
            Verdict::Noise => format!("{path} did not change beyond noise, {times}"),
            _ => format!("{path} became {times} what it was"),
        });
        few |= finding.few;
        if AROUND.contains(&path.as_str()) {
            around_grew = Some(around_grew.unwrap_or(false) || grew);
        }
    }
    let verdict = match around_grew? {
        true => ": going around the server's CPU did not keep the neighbour out",
        false => "",
    };
    let list = parts.join(", that of ");
    Some(format!("With a busy neighbour on the server's processor the p99 of {list}{verdict}{}.", caution(few)))
}

fn freeze(lines: &[Timeline]) -> Option<String> {
    let parts: Vec<String> = lines
        .iter()
        .filter_map(|line| {
            let share = Interval::of(&line.share_while_stopped)?;
            let counts: Vec<f64> = line.completed_while_stopped.iter().map(|&count| count as f64).collect();
            let percent = |share: f64| significant(share * 100.0);
            Some(format!(
                "{} completed {} operations, {} % ({} to {}) of its own rate before",
                line.path,
                grouped(median(&counts)?),
                percent(share.median),
                percent(share.low),
                percent(share.high)
            ))
        })
        .collect();
    let around = lines.iter().filter(|line| AROUND.contains(&line.path.as_str()));
    let stood_still = around.filter_map(|line| median(&line.share_while_stopped)).any(|share| share < 0.01);
    let verdict = if stood_still { ": going around the server's CPU did not help here" } else { "" };
    let few = lines.iter().any(|line| line.share_while_stopped.len() < 4);
    (!parts.is_empty()).then(|| format!("While the server stood still {}{verdict}{}.", parts.join(", "), caution(few)))
}

/// At the highest rate that the best path through the server's CPU served.
fn load_latency(points: &[Point]) -> Option<String> {
    let served = |paths: &[&str]| {
        let all = points.iter().filter(|point| paths.contains(&point.row.path.as_str()) && !point.overloaded);
        all.max_by(|one, other| one.offered_per_s.unwrap_or(0.0).total_cmp(&other.offered_per_s.unwrap_or(0.0)))
    };
    let (Some(around), Some(through)) = (served(&AROUND), served(&THROUGH)) else {
        let measured = points.iter().any(|point| AROUND.contains(&point.row.path.as_str()));
        return measured.then(|| "No rate that was offered was served in full by paths of both kinds.".into());
    };
    let (most_around, most_through) = (around.offered_per_s?, through.offered_per_s?);
    let p99 = |point: &Point| {
        let of = point.row.measured.as_ref()?;
        let values: Vec<f64> = of.runs.iter().map(|run| run.p99_ns as f64 / 1e3).collect();
        let Interval { median, low, high } = Interval::of(&values)?;
        Some(format!("{} µs ({} to {})", significant(median), significant(low), significant(high)))
    };
    let verdict = if most_around < most_through { ": bypassing did not pay" } else { "" };
    Some(format!(
        "The highest offered load served in full was {} operations/s by {} at a p99 of {} and {} operations/s by {} at \
         a p99 of {}{verdict}.",
        grouped(most_around),
        around.row.path,
        p99(around)?,
        grouped(most_through),
        through.row.path,
        p99(through)?
    ))
}

fn cache(points: &[Point]) -> Option<String> {
    let mut parts = Vec::new();
    let mut few = false;
    for path in AROUND {
        let own = || points.iter().filter(|point| point.row.path == path);
        let measured = |point: &'_ Point| point.row.measured.as_ref().map(|of| of.ops_per_s.median);
        let Some(without) = own().find(|point| point.x == Some(0.0)) else { continue };
        let with = own().filter(|point| point.x != Some(0.0));
        let Some(fastest) =
            with.max_by(|one, other| measured(one).partial_cmp(&measured(other)).unwrap_or(std::cmp::Ordering::Equal))
        else {
            continue;
        };
        let finding =
            Finding::between(without.row.measured.as_ref()?, fastest.row.measured.as_ref()?, |run| run.ops_per_s)?;
        few |= finding.few;
        let (times, at) = (finding.times(), &fastest.at);
        parts.push(match finding.verdict() {
            Verdict::More => format!("{path} did {times} the operations with {at} entries that it did without"),
            Verdict::Less => {
                format!("{path} did only {times} even with the best number of entries, {at}: it did not pay")
            }
            Verdict::Noise => format!("{path} did not gain beyond noise, {times} at best with {at} entries"),
        });
    }
    (!parts.is_empty()).then(|| format!("Of the location cache {}{}.", parts.join(", and "), caution(few)))
}

fn floor(points: &[Point]) -> Option<String> {
    let measured = |path: &str, place: &str| {
        points.iter().find(|point| point.row.path == path && point.at == place)?.row.measured.as_ref()
    };
    let mut few = false;
    let mut parts = Vec::new();
    for (path, floor, place) in [
        ("shm", "memcpy", SINGLE),
        ("shm", "local", SINGLE),
        ("tcp", "tcp echo", SINGLE),
        ("tcp", "tcp echo", PIPELINED),
        ("rdma", "bare READ", SINGLE),
        ("rdma", "bare READ", PIPELINED),
    ] {
        let Some((path_is, floor_is)) = measured(path, place).zip(measured(floor, place)) else { continue };
        let finding = Finding::between(floor_is, path_is, |run| run.ops_per_s)?;
        few |= finding.few;
        let noise = if finding.verdict() == Verdict::Noise { ", no difference beyond noise" } else { "" };
        parts.push(format!("{path} did {} what {floor} did, {place}{noise}", finding.times()));
    }
    (!parts.is_empty()).then(|| format!("Of operations per second {}{}.", parts.join("; "), caution(few)))
}

fn fill(repetitions: &[Vec<Part>]) -> Option<String> {
    let ends: Vec<(&Part, &Part)> = repetitions.iter().filter_map(|parts| parts.first().zip(parts.last())).collect();
    let rates = |of: fn(&(&Part, &Part)) -> f64| ends.iter().map(of).collect::<Vec<f64>>();
    let change = Change::between(&rates(|ends| ends.0.inserts_per_s), &rates(|ends| ends.1.inserts_per_s))?;
    let finding = Finding { ratio: change.ratio?, few: change.too_few };
    let what = match finding.verdict() {
        Verdict::Noise => format!("no slower or faster beyond noise than the first, {}", finding.times()),
        _ => format!("at {} the rate of the first", finding.times()),
    };
    let memory = ends.iter().filter_map(|ends| ends.1.memory_to_payload).collect::<Vec<f64>>();
    let memory = Interval::of(&memory).map_or(String::new(), |times| {
        let Interval { median, low, high } = times;
        format!(", and memory in use came to {median:.3} times the payload ({low:.3} to {high:.3})")
    });
    Some(format!("The last tenth of the inserts went {what}{memory}{}.", caution(finding.few)))
}

#[cfg(test)]
#[path = "reading_tests.rs"]
mod tests;
