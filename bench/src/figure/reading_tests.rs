use super::super::forms::{csv, json, table};
use super::super::picture::pictures;
use super::super::{Data, Figure, Name, Point, SCHEMA, Timeline};
use super::*;
use crate::environment::Environment;
use crate::report::samples::{measurement, report};
use crate::report::{Gathering, Row};

fn point(path: &str, at: &str, x: Option<f64>, rate: f64) -> Point {
    let server_cpu = if path == "shm" { 0.0 } else { 1.2 };
    let mut row = report().rows[1].clone();
    row.path = path.to_owned();
    row.measured = Some(measurement(rate, Some(server_cpu)));
    Point::at(at, x, row)
}

/// With p99 of these values, in µs, in the repetitions.
fn tail(path: &str, at: &str, p99_us: [u64; 5]) -> Point {
    let mut point = point(path, at, None, 1e6);
    if let Some(measured) = &mut point.row.measured {
        measured.runs.iter_mut().zip(p99_us).for_each(|(run, p99_us)| run.p99_ns = p99_us * 1000);
    }
    point
}

fn figure(name: Name, data: Data) -> Figure {
    let report = report();
    let mut figure = Figure {
        schema: SCHEMA,
        figure: name.text(),
        question: name.question(),
        stamp: None,
        reading: String::new(),
        partial: false,
        environment: Environment::here("", "loopback"),
        workloads: vec![report.workload],
        plan: report.plan,
        axis: "clients",
        data,
        not_available: vec![Row::not_available("rdma", "no device, \"none\"")],
        notes: Vec::new(),
    };
    figure.reading = reading(name, &figure);
    figure
}

/// `shm` and `tcp` at these rates.
fn two(shm: f64, tcp: f64) -> Data {
    Data::Points(vec![point("shm", "shm", None, shm), point("tcp", "tcp", None, tcp)])
}

#[test]
fn bypass_pays_or_does_not_or_cannot_be_told() {
    let says = |data| figure(Name::Bypass, data).reading;
    assert!(says(two(4e6, 1e6)).contains("and did 4.00 times ("), "{}", says(two(4e6, 1e6)));
    assert!(says(two(1e6, 4e6)).contains("bypassing did not pay"), "{}", says(two(1e6, 4e6)));
    assert!(says(two(1e6, 1.01e6)).contains("no difference in operations beyond noise"));
    assert!(says(Data::Points(vec![point("tcp", "tcp", None, 1e6)])).contains("Nothing to compare"));
    // One sentence.
    let text = says(two(4e6, 1e6));
    assert!(text.ends_with('.') && !text.contains(". "), "{text}");
}

#[test]
fn sweeps_say_where_it_pays() {
    let points = |shm: [f64; 3]| {
        let at = [("1", 1.0), ("8", 8.0), ("64", 64.0)];
        let both = at
            .into_iter()
            .zip(shm)
            .flat_map(|((at, x), rate)| [point("shm", at, Some(x), rate), point("tcp", at, Some(x), 1e6)]);
        Data::Points(both.collect())
    };
    let text = figure(Name::Clients, points([8e6, 1e6, 0.5e6])).reading;
    assert!(text.contains("0.500 times (") && text.contains("at 64 and 8.00 times ("), "{text}");
    assert!(text.contains("did not pay at 64;") && text.contains("beyond noise at 8."), "{text}");
    let text = figure(Name::Clients, points([8e6, 8e6, 8e6])).reading;
    assert!(!text.contains("did not pay") && !text.contains("noise") && !text.contains("first look"), "{text}");
}

#[test]
fn few_repetitions_are_said_to_be_few() {
    let mut points = vec![point("shm", "1", Some(1.0), 4e6), point("tcp", "1", Some(1.0), 1e6)];
    for point in &mut points {
        if let Some(measured) = &mut point.row.measured {
            measured.runs.truncate(3);
        }
    }
    assert!(figure(Name::Clients, Data::Points(points)).reading.contains("fewer than 4 repetitions"));
    assert!(Gathering::default().measurement(0).is_none());
}

#[test]
fn starving_is_told_from_noise() {
    let says = |shm: [u64; 5]| {
        let tcp = [tail("tcp", ALONE, [50, 51, 52, 53, 54]), tail("tcp", BESIDE, [5000, 5100, 5200, 5300, 5400])];
        let shm = [tail("shm", ALONE, [10, 11, 12, 13, 14]), tail("shm", BESIDE, shm)];
        figure(Name::Starve, Data::Points(shm.into_iter().chain(tcp).collect())).reading
    };
    let calm = says([10, 12, 11, 14, 13]);
    assert!(calm.contains("shm did not change beyond noise") && calm.contains("tcp became 100 times"), "{calm}");
    assert!(!calm.contains("did not keep"), "{calm}");
    assert!(says([100; 5]).contains("did not keep the neighbour out"));
}

#[test]
fn freezing_tells_who_went_on() {
    let line = |path: &str, share: f64| Timeline {
        path: path.into(),
        bin_ms: 50,
        stopped_s: 1.0,
        continued_s: 3.0,
        completed: vec![10.0; 80],
        share_while_stopped: vec![share; 5],
        completed_while_stopped: vec![(share * 1e6) as u64; 5],
    };
    let text = figure(Name::Freeze, Data::Timelines(vec![line("shm", 1.0), line("tcp", 0.0)])).reading;
    assert!(text.contains("shm completed 1,000,000 operations, 100 % (100 to 100)"), "{text}");
    assert!(text.contains("tcp completed 0 operations") && !text.contains("did not help"), "{text}");
    let text = figure(Name::Freeze, Data::Timelines(vec![line("shm", 0.0), line("tcp", 0.0)])).reading;
    assert!(text.contains("did not help"), "{text}");
}

#[test]
fn overload_is_told() {
    let offered = |path: &str, rate: f64, overloaded| {
        let place = point(path, "50 %", Some(rate), rate);
        Point { offered_per_s: Some(rate), overloaded, ..place }
    };
    let data = |shm: f64| {
        Data::Points(vec![offered("shm", shm, false), offered("tcp", 2e4, false), offered("tcp", 3e4, true)])
    };
    let paid = figure(Name::LoadLatency, data(1e6));
    assert!(
        paid.reading.contains("1,000,000 operations/s by shm") && paid.reading.contains("20,000 operations/s by tcp")
    );
    assert!(!paid.reading.contains("did not pay"));
    assert!(figure(Name::LoadLatency, data(1e4)).reading.contains("did not pay"));
    assert!(table(&paid).contains("OVERLOADED"));
}

#[test]
fn a_cache_that_does_nothing_is_said_to() {
    let says = |with: f64| {
        let points = vec![point("shm", "0", Some(0.0), 1e6), point("shm", "10", Some(10.0), with)];
        figure(Name::Cache, Data::Points(points)).reading
    };
    assert!(says(2e6).contains("2.00 times"), "{}", says(2e6));
    assert!(says(1.005e6).contains("did not gain beyond noise"));
    assert!(says(0.5e6).contains("did not pay"));
}

#[test]
fn every_form_has_everything() {
    let mut figure = figure(Name::Bypass, two(4e6, 1e6));
    figure.stamp = Some(crate::environment::SOFTWARE_RDMA.to_owned());
    let value: serde_json::Value = serde_json::from_str(&json(&figure).expect("JSON")).expect("parsed");
    assert_eq!(value["schema"], SCHEMA);
    assert_eq!(value["stamp"], "software RDMA: functional only");
    assert_eq!(value["points"][1]["path"], "tcp");
    assert!(value["points"][0]["measured"]["ops_per_s"]["low"].as_f64().expect("a number") > 0.0);
    for part in ["environment", "workloads", "plan", "reading", "not_available"] {
        assert!(!value[part].is_null(), "{part}");
    }
    let text = csv(&figure);
    let header = text.lines().next().expect("a header");
    assert!(header.starts_with("at,x,offered_per_s,overloaded,path,") && header.ends_with(",stamp"));
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().skip(1).all(|line| line.ends_with("functional only")), "{text}");
    let shown = table(&figure);
    assert!(shown.contains("functional only") && shown.contains("rdma  not available: no device"), "{shown}");
    for (_, picture) in pictures(&figure).expect("drawn") {
        assert!(picture.contains("functional only") && picture.contains("operations per second"));
    }
}
