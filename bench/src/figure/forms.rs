//! A figure as text: the table for a terminal, CSV, JSON.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::{Data, Figure};
use crate::error::BenchError;
use crate::report::{csv as rows, grouped, significant, table as columns};
use crate::statistics::{Interval, median};

/// The JSON form, as documented at the fields of [`Figure`].
///
/// # Errors
/// A number that JSON cannot hold.
pub fn json(figure: &Figure) -> Result<String, BenchError> {
    serde_json::to_string_pretty(figure)
        .map_err(|error| BenchError::System { attempted: "write JSON", reason: error.to_string() })
}

/// The numbers as CSV: a header, then a line each; a column for the stamp, so that no line goes without it.
#[must_use]
pub fn csv(figure: &Figure) -> String {
    let stamp = figure.stamp.clone().unwrap_or_default();
    let mut text = String::new();
    let mut add = |cells: Vec<String>| text.push_str(&rows::line(&[cells, vec![stamp.clone()]].concat()));
    match &figure.data {
        Data::Points(points) => {
            for point in points {
                let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
                let place =
                    vec![point.at.clone(), number(point.x), number(point.offered_per_s), point.overloaded.to_string()];
                add([place, rows::cells(&point.row)].concat());
            }
            for row in &figure.not_available {
                add([vec![String::new(); 4], rows::cells(row)].concat());
            }
            format!("at,x,offered_per_s,overloaded,{},stamp\n{text}", rows::COLUMNS)
        }
        Data::Timelines(lines) => {
            for line in lines {
                for (bin, completed) in line.completed.iter().enumerate() {
                    let from_ms = bin as u64 * line.bin_ms;
                    let seconds = from_ms as f64 / 1e3;
                    let stopped = (line.stopped_s..line.continued_s).contains(&seconds);
                    add(vec![line.path.clone(), from_ms.to_string(), completed.to_string(), stopped.to_string()]);
                }
            }
            format!("path,from_ms,completed,stopped,stamp\n{text}")
        }
        Data::Tenths(repetitions) => {
            for (repetition, parts) in repetitions.iter().enumerate() {
                for part in parts {
                    add(vec![
                        (repetition + 1).to_string(),
                        part.records.to_string(),
                        format!("{:.1}", part.inserts_per_s),
                        part.memory_bytes.map_or(String::new(), |bytes| bytes.to_string()),
                        part.memory_to_payload.map_or(String::new(), |ratio| format!("{ratio:.4}")),
                    ]);
                }
            }
            format!("repetition,records,inserts_per_s,memory_bytes,memory_to_payload,stamp\n{text}")
        }
    }
}

/// The table for a terminal, with the reading and the environment.
#[must_use]
pub fn table(figure: &Figure) -> String {
    let mut lines = vec![format!("{}: {}", figure.figure, figure.question)];
    lines.extend(figure.stamp.clone());
    if figure.partial {
        lines.push("PARTIAL: interrupted before all repetitions were done".into());
    }
    lines.extend(figure.workloads.iter().map(|workload| format!("workload {}", workload.describe())));
    let plan = &figure.plan;
    lines.push(match &figure.data {
        Data::Tenths(repetitions) => format!("{} repetitions", repetitions.len()),
        Data::Timelines(_) => format!("{} repetitions, paths interleaved; every read verified", plan.repetitions),
        Data::Points(_) => format!(
            "{}{} repetitions of {} s after {} s of warm-up, paths interleaved; medians; every read verified; seed {}",
            plan.arrivals.map_or(String::new(), |arrivals| format!("open loop ({arrivals}); ")),
            plan.repetitions,
            plan.measure_s,
            plan.warm_up_s,
            plan.seed
        ),
    });
    lines.push(String::new());
    lines.extend(cells(figure).lines().map(|line| line.trim_end().to_owned()));
    for row in &figure.not_available {
        lines.push(format!(" {}  not available: {}", row.path, row.not_available.as_deref().unwrap_or("not known")));
    }
    lines.extend([String::new(), format!("Reading: {}", figure.reading)]);
    lines.extend(figure.notes.iter().cloned());
    lines.extend(disturbed(figure));
    lines.push(String::new());
    lines.extend(figure.environment.lines().into_iter().map(|(name, text)| format!("{name}: {text}")));
    lines.join("\n") + "\n"
}

fn cells(figure: &Figure) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    match &figure.data {
        Data::Points(points) => {
            table.set_header([&[figure.axis], &columns::COLUMNS[..columns::OF_FIGURES]].concat());
            for point in points {
                let at = if point.overloaded { format!("{} OVERLOADED", point.at) } else { point.at.clone() };
                let mut row = vec![comfy_table::Cell::new(at)];
                row.extend(columns::cells(&point.row).into_iter().take(columns::OF_FIGURES));
                table.add_row(row);
            }
        }
        Data::Timelines(lines) => {
            table.set_header(["path", "ops/s before", "completed while stopped", "% of the rate before"]);
            for line in lines {
                let before = (line.stopped_s * 1e3) as usize / line.bin_ms.max(1) as usize;
                let rate = line.completed.iter().take(before).sum::<f64>() / line.stopped_s.max(f64::MIN_POSITIVE);
                let counts: Vec<f64> = line.completed_while_stopped.iter().map(|&count| count as f64).collect();
                let share = median(&line.share_while_stopped).unwrap_or_default() * 100.0;
                let meanwhile = grouped(median(&counts).unwrap_or_default());
                table.add_row([line.path.clone(), grouped(rate), meanwhile, significant(share)]);
            }
        }
        Data::Tenths(repetitions) => {
            table.set_header(["records", "inserts/s", "× payload"]);
            for (records, rate, ratio) in tenths(repetitions) {
                let ratio = ratio.map_or("-".into(), |ratio| format!("{:.3}", ratio.median));
                table.add_row([grouped(records), grouped(rate.median), ratio]);
            }
        }
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Of each tenth: records, inserts per second, memory as a multiple of the payload.
pub(super) fn tenths(repetitions: &[Vec<crate::fill::Part>]) -> Vec<(f64, Interval, Option<Interval>)> {
    let longest = repetitions.iter().max_by_key(|parts| parts.len());
    let places = longest.into_iter().flatten().enumerate();
    places
        .filter_map(|(index, place)| {
            let here = || repetitions.iter().filter_map(|parts| parts.get(index));
            let rates: Vec<f64> = here().map(|part| part.inserts_per_s).collect();
            let ratios: Vec<f64> = here().filter_map(|part| part.memory_to_payload).collect();
            Some((place.records as f64, Interval::of(&rates)?, Interval::of(&ratios)))
        })
        .collect()
}

fn disturbed(figure: &Figure) -> Option<String> {
    let Data::Points(points) = &figure.data else { return None };
    let measured = || points.iter().filter_map(|point| point.row.measured.as_ref());
    let (kept, dropped): (usize, usize) =
        measured().fold((0, 0), |(kept, dropped), of| (kept + of.runs.len(), dropped + of.dropped));
    let marked = measured().flat_map(|of| &of.runs).filter(|run| run.disturbed).count();
    (marked + dropped > 0).then(|| {
        format!("others used the machine: {dropped} runs were dropped and repeated; of the {kept} kept {marked} are DISTURBED")
    })
}
