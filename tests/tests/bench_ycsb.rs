//! What `run --format ycsb` prints, held against a strict parser of YCSB's text format: lines as its
//! `TextMeasurementsExporter` writes them, measures and their order as its `OneMeasurementHdrHistogram` has them.

use std::process::{Command, Output, Stdio};

use sidestep_tests::process::program;

/// Measures of `[OVERALL]`, in order.
const OVERALL: [&str; 2] = ["RunTime(ms)", "Throughput(ops/sec)"];
/// Measures of an operation, in order; a line for each return status follows. The percentiles are YCSB's defaults.
const OPERATION: [&str; 7] = [
    "Operations",
    "AverageLatency(us)",
    "MinLatency(us)",
    "MaxLatency(us)",
    "50thPercentileLatency(us)",
    "95thPercentileLatency(us)",
    "99thPercentileLatency(us)",
];
/// Those that Java prints as floating point; all others are whole numbers.
const FLOATS: [&str; 2] = ["Throughput(ops/sec)", "AverageLatency(us)"];
/// Operations that YCSB names; with `Intended-` before them, counted from the intended start.
const NAMES: [&str; 6] = ["READ", "UPDATE", "INSERT", "SCAN", "READ-MODIFY-WRITE", "CLEANUP"];

/// A section: its name and its measures.
type Section = (String, Vec<(String, f64)>);

/// `[SECTION], MEASURE, NUMBER`, and nothing else.
fn parse_line(line: &str) -> Result<(&str, &str, f64), String> {
    let refused = || format!("not a line of YCSB: {line:?}");
    let (section, rest) = line.strip_prefix('[').and_then(|rest| rest.split_once("], ")).ok_or_else(refused)?;
    let (measure, number) = rest.split_once(", ").ok_or_else(refused)?;
    if section.contains(['[', ',', ' ']) || measure.contains([',', ' ']) || number.contains(',') {
        return Err(refused());
    }
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_float = number.split_once('.').is_some_and(|(whole, part)| is_number(whole) && is_number(part));
    if !(is_number(number) || is_float && FLOATS.contains(&measure)) {
        return Err(format!("not a number of YCSB: {line:?}"));
    }
    Ok((section, measure, number.parse().map_err(|_| refused())?))
}

fn parse(text: &str) -> Result<Vec<Section>, String> {
    if !text.ends_with('\n') {
        return Err("the last line has no end".into());
    }
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines() {
        let (section, measure, number) = parse_line(line)?;
        if sections.last().is_none_or(|(name, _)| name != section) {
            if sections.iter().any(|(name, _)| name == section) {
                return Err(format!("section {section} is in two parts"));
            }
            sections.push((section.to_owned(), Vec::new()));
        }
        if let Some((_, measures)) = sections.last_mut() {
            measures.push((measure.to_owned(), number));
        }
    }
    for (name, measures) in &sections {
        let found: Vec<&str> = measures.iter().map(|(measure, _)| measure.as_str()).collect();
        if name == "OVERALL" {
            if found != OVERALL {
                return Err(format!("[OVERALL] has {found:?}"));
            }
            continue;
        }
        if !NAMES.contains(&name.strip_prefix("Intended-").unwrap_or(name)) {
            return Err(format!("YCSB has no operation {name}"));
        }
        let (fixed, statuses) = found.split_at_checked(OPERATION.len()).ok_or(format!("[{name}] has {found:?}"))?;
        let are_statuses = statuses.iter().all(|status| status.strip_prefix("Return=").is_some_and(|s| !s.is_empty()));
        if fixed != OPERATION || !are_statuses {
            return Err(format!("[{name}] has {found:?}"));
        }
    }
    if sections.first().is_none_or(|(name, _)| name != "OVERALL") {
        return Err("expected [OVERALL] first".into());
    }
    Ok(sections)
}

fn value(sections: &[Section], section: &str, measure: &str) -> f64 {
    let found = sections.iter().find(|(name, _)| name == section);
    let found = found.and_then(|(_, measures)| measures.iter().find(|(name, _)| name == measure));
    found.unwrap_or_else(|| panic!("[{section}], {measure} in {sections:?}")).1
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(program("sidestep-bench"));
    command.arg("run").args(arguments).env("RUST_LOG", "warn").stdin(Stdio::null()).output().expect("it runs")
}

fn lines_of(arguments: &[&str]) -> Vec<Section> {
    let output = run(&[arguments, &["--format", "ycsb"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let sections = parse(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    for (name, _) in sections.iter().filter(|(name, _)| name != "OVERALL") {
        let of = |measure: &str| value(&sections, name, measure);
        let times = ["MinLatency(us)", "50thPercentileLatency(us)", "95thPercentileLatency(us)"].map(of);
        assert!(times.is_sorted() && of("95thPercentileLatency(us)") <= of("99thPercentileLatency(us)"), "{text}");
        // The histogram keeps three digits, of an average none but its own.
        assert!(of("MinLatency(us)") <= of("AverageLatency(us)") * 1.01, "{text}");
        assert!(of("AverageLatency(us)") <= of("MaxLatency(us)") + 1.0, "{text}");
        assert_eq!(of("Return=OK"), of("Operations"), "{text}");
    }
    sections
}

#[test]
fn the_parser_is_strict() {
    let good = "[OVERALL], RunTime(ms), 1011\n[OVERALL], Throughput(ops/sec), 989.12\n";
    assert!(parse(good).is_ok());
    let changes = [
        ("1011", "1011.5"),
        ("1011", "-1"),
        ("1011", "NaN"),
        ("989.12", "9.8912E2"),
        ("989.12", "989,12"),
        ("RunTime(ms), ", "RunTime(ms) "),
        ("[OVERALL], RunTime", "OVERALL, RunTime"),
        ("RunTime", "Runtime"),
        ("989.12\n", "989.12"),
        ("989.12\n", "989.12\n\n"),
        ("989.12\n", "989.12\n[READ], Operations, 5\n"),
    ];
    for (from, to) in changes {
        assert!(parse(&good.replacen(from, to, 1)).is_err(), "{from:?} as {to:?}");
    }
}

#[test]
fn ycsbs_own_spelling_and_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("workloadb");
    let properties = "recordcount=1000\noperationcount=3000\nworkload=site.ycsb.workloads.CoreWorkload\n\
                      readproportion=0.95\nupdateproportion=0.05\nscanproportion=0\ninsertproportion=0\n\
                      requestdistribution=zipfian\n";
    std::fs::write(&file, properties).expect("written");
    let file = file.to_str().expect("a name");
    let lines = lines_of(&["-P", file, "-p", "recordcount=500", "-threads", "2", "--path", "local"]);
    let value = |section: &str, measure: &str| value(&lines, section, measure);
    assert!(value("OVERALL", "Throughput(ops/sec)") > 0.0 && value("OVERALL", "RunTime(ms)") >= 0.0);
    let (reads, updates) = (value("READ", "Operations"), value("UPDATE", "Operations"));
    assert!((3000.0..3100.0).contains(&(reads + updates)) && reads > 10.0 * updates && updates > 0.0, "{lines:?}");
    // Scans need ordered keys.
    let refused = run(&["--workload", "e", "--path", "local"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("ordered"), "{said}");
}

/// Of an open loop, YCSB's `-target`, the lines that count from the intended start too.
#[test]
fn every_operation_has_its_lines() {
    for (workload, names) in [("d", &["READ", "INSERT"][..]), ("f", &["READ", "READ-MODIFY-WRITE"])] {
        let lines = lines_of(&[
            "--workload",
            workload,
            "--path",
            "local",
            "--records",
            "500",
            "--warm-up",
            "0",
            "--operations",
            "1000",
            "-target",
            "5000",
        ]);
        let found: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
        let intended: Vec<String> = names.iter().map(|name| format!("Intended-{name}")).collect();
        let expected = names.iter().zip(&intended).flat_map(|(name, intended)| [*name, intended.as_str()]);
        assert_eq!(found, ["OVERALL"].into_iter().chain(expected).collect::<Vec<_>>(), "{workload}");
        for (name, intended) in names.iter().zip(&intended) {
            let mean = |section: &str| value(&lines, section, "AverageLatency(us)");
            assert!(mean(intended) >= mean(name), "{workload}: {lines:?}");
            assert_eq!(value(&lines, intended, "Operations"), value(&lines, name, "Operations"));
        }
    }
}
