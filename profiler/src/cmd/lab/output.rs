//! What the lab prints and writes.

use std::fs;

use comfy_table::{Cell, Row};
use profiler_vm::KernelImage;

use super::cannot_write;
use super::settings::has_cost;
use crate::atomic_file::OutputFile;
use crate::cli::LabArgs;
use crate::cmd::{report, to_stdout};
use crate::error::{Failure, exit};
use crate::export::grid;
use crate::lab::plan::Build;
use crate::lab::spread::{self, STATISTICS};
use crate::lab::{Bench, Measured, Settings};
use crate::load::LoadSpec;
use crate::profile::{Profile, Series};
use crate::stats::median;

/// The files that were asked for, opened before anything is measured.
pub(super) struct Outputs {
    /// For each kernel, one for each side.
    files: Vec<[Option<OutputFile>; 2]>,
}

impl Outputs {
    /// Opens all of them.
    pub(super) fn open(args: &LabArgs, kernels: &[&KernelImage]) -> Result<Self, Failure> {
        if args.json.is_some() && kernels.len() > 1 {
            let text = "--json is for one kernel: give a folder with --out for several";
            return Err(Failure::new(exit::USAGE, text));
        }
        let two = !args.candidate.is_empty();
        let mut files = Vec::new();
        for kernel in kernels {
            let mut of_kernel = [None, None];
            if let Some(json) = &args.json {
                of_kernel[0] = Some(OutputFile::open(json)?);
            }
            if let Some(out) = &args.out {
                let folder =
                    if kernels.len() == 1 { out.clone() } else { out.join(&kernel.release) };
                fs::create_dir_all(&folder).map_err(|error| cannot_write(&folder, &error))?;
                let open = |name: &str| OutputFile::open(&folder.join(name));
                if two {
                    of_kernel = [Some(open("baseline.json")?), Some(open("candidate.json")?)];
                } else if of_kernel[0].is_none() {
                    of_kernel[0] = Some(open("series.json")?);
                }
            }
            files.push(of_kernel);
        }
        Ok(Self { files })
    }

    /// Writes and prints the results of one kernel; returns why it ended early, if it did.
    pub(super) fn deliver(
        &mut self,
        number: usize,
        bench: &Bench,
        settings: &Settings,
        measured: Measured,
    ) -> Result<Option<Failure>, Failure> {
        let Measured { baseline, candidate, failure } = measured;
        let mut written = Ok(());
        let mut text = String::new();
        let labels = if bench.candidate.is_some() { ["baseline", "candidate"] } else { ["", ""] };
        let builds = [Some(&bench.baseline), bench.candidate.as_ref()];
        for (side, runs) in [baseline, candidate].into_iter().enumerate() {
            if runs.is_empty() {
                continue;
            }
            let series = Series::new(labels[side], runs);
            if let Some(file) = self.files.get_mut(number).and_then(|files| files[side].take()) {
                let bytes = match series.runs.as_slice() {
                    [run] if bench.candidate.is_none() && settings.boots == 1 => single(run),
                    _ => series.to_json(),
                };
                written = written.and(file.commit(&bytes).map_err(Failure::from));
            }
            text.push_str(&printed(&series, builds[side], bench));
        }
        let shown = to_stdout(&text);
        written?;
        shown?;
        Ok(failure)
    }
}

/// A run on its own, which has no place among others.
fn single(run: &Profile) -> Vec<u8> {
    use crate::export::{Exporter as _, Json};
    Json.serialize(&Profile { place: None, ..run.clone() })
}

/// The tables of one series.
fn printed(series: &Series, build: Option<&Build>, bench: &Bench) -> String {
    let mut text = String::new();
    let width = report::stdout_width();
    if let [run] = series.runs.as_slice()
        && bench.candidate.is_none()
    {
        let mut table = Vec::new();
        // Writing to memory cannot fail.
        let _ = report::print(run, crate::export::Unit::Auto, width, &mut table);
        text.push_str(&String::from_utf8_lossy(&table));
    } else {
        text.push_str(&head(series, build, bench));
        text.push_str(&spread_table(series, width));
        text.push('\n');
    }
    if let Some(table) = cost_table(series, width) {
        text.push('\n');
        text.push_str(&table);
    }
    text.push('\n');
    text
}

fn head(series: &Series, build: Option<&Build>, bench: &Bench) -> String {
    let boots: std::collections::BTreeSet<u32> =
        series.runs.iter().filter_map(|run| run.place.as_ref().map(|place| place.boot)).collect();
    let clock = series.runs.first().map_or(String::new(), |run| run.clock.to_string());
    let label = if series.label.is_empty() { String::new() } else { format!("{}: ", series.label) };
    let module = series.runs.first().and_then(|run| run.modules.first());
    let id = module.and_then(|module| module.build_id.as_deref()).unwrap_or("unknown");
    let params = build.map_or("", |build| build.params.as_str());
    let params = if params.is_empty() { String::new() } else { format!(", {params}") };
    format!(
        "{label}{} (build id {id}{params}) on Linux {}, clock {clock}, {} runs in {} boots\n\
         medians over the runs in nanoseconds, and in percent of them how far the runs are apart\n",
        bench.baseline.name,
        bench.kernel.release,
        series.runs.len(),
        boots.len(),
    )
}

fn spread_table(series: &Series, width: Option<u16>) -> String {
    let mut header = vec!["handler", "calls"];
    for (name, _) in STATISTICS {
        header.extend([name, "spread"]);
    }
    let rows = spread::of(series).into_iter().map(|handler| {
        let (fewest, most) = handler.calls;
        let calls = if fewest == most { most.to_string() } else { format!("{fewest}..{most}") };
        let mut cells = vec![handler.handler, calls];
        for (statistic, (_, quantile)) in handler.statistics.iter().zip(STATISTICS) {
            match statistic {
                Some((median, spread)) => {
                    let digits = if quantile.is_none() { 2 } else { 0 };
                    cells.push(format!("{median:.digits$}"));
                    cells.push(format!("{:.3} %", spread * 100.0));
                }
                None => cells.extend(["-".to_owned(), "-".to_owned()]),
            }
        }
        Row::from(cells.into_iter().map(Cell::new))
    });
    grid::figures(&header, rows, width)
}

/// What one load's operations took without the driver and with it, in each run.
#[derive(Debug, PartialEq)]
enum Added {
    /// Medians over the runs, in nanoseconds.
    Cost { without: f64, with: f64 },
    /// Why there is no meaningful figure.
    Unknown(String),
}

/// A driver cannot make an operation cheaper: where one took no longer with it, the difference is
/// whatever else differed, and in the other runs as well.
fn added(runs: &[(f64, f64)]) -> Added {
    let is_time = |ns: &f64| ns.is_finite() && *ns > 0.0;
    if !runs.iter().all(|(without, with)| is_time(without) && is_time(with)) {
        return Added::Unknown("no CPU time was measured".to_owned());
    }
    let no_longer = runs.iter().filter(|(without, with)| with <= without).count();
    let of_each = |side: fn(&(f64, f64)) -> f64| median(&runs.iter().map(side).collect::<Vec<_>>());
    match (of_each(|run| run.0), of_each(|run| run.1)) {
        (Some(without), Some(with)) if no_longer == 0 => Added::Cost { without, with },
        (Some(_), Some(_)) => Added::Unknown(format!(
            "in {no_longer} of {} runs it took no longer with the driver: the cost cannot be distinguished from zero",
            runs.len()
        )),
        _ => Added::Unknown("there is no run".to_owned()),
    }
}

/// What the driver costs an operation, if that was measured: medians over the runs.
fn cost_table(series: &Series, width: Option<u16>) -> Option<String> {
    let first = series.runs.first()?;
    if first.driver_costs.is_empty() {
        return None;
    }
    let handlers: Option<Vec<f64>> =
        series.runs.iter().map(Profile::handlers_ns_per_operation).collect();
    let handlers = handlers.and_then(|values| median(&values));
    let figure = |value: f64| format!("{value:.1}");
    let mut notes = String::new();
    let mut rows = Vec::new();
    for (index, cost) in first.driver_costs.iter().enumerate() {
        let of_run = |run: &Profile| {
            let cost = run.driver_costs.get(index)?;
            Some((cost.without_ns, cost.with_ns))
        };
        let runs: Option<Vec<(f64, f64)>> = series.runs.iter().map(of_run).collect();
        let mut cells = vec![cost.load.to_string()];
        match added(&runs.unwrap_or_default()) {
            Added::Cost { without, with } => {
                let around = handlers.map(|handlers| with - without - handlers);
                cells.extend([figure(without), figure(with), figure(with - without)]);
                cells.extend([handlers, around].map(|cell| cell.map_or("-".into(), figure)));
            }
            Added::Unknown(why) => {
                cells.extend(["-"; 5].map(str::to_owned));
                notes.push_str(&format!("{}: {why}\n", cost.load));
            }
        }
        rows.push(Row::from(cells));
    }
    let uncounted = first.loads.iter().filter_map(|load| match &load.spec {
        LoadSpec::Builtin { name, .. } if !has_cost(*name) => Some(*name),
        _ => None,
    });
    for kind in uncounted {
        notes.push_str(&format!("{kind}: a process of the kernel does its work, not the load\n"));
    }
    let header =
        ["an operation of", "without driver", "with it", "added", "in the handlers", "around them"];
    let table = grid::figures(&header, rows.into_iter(), width);
    Some(format!(
        "what the driver costs an operation of the load, in nanoseconds of CPU time, one load after \
         another, probes off\n{table}\n{notes}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_seems_to_save_time_has_no_cost() {
        assert_eq!(
            added(&[(2_000.0, 5_000.0), (2_010.0, 5_040.0), (2_002.0, 5_010.0)]),
            Added::Cost { without: 2_002.0, with: 5_010.0 }
        );
        let why = |runs: &[(f64, f64)]| match added(runs) {
            Added::Unknown(why) => why,
            Added::Cost { .. } => panic!("{runs:?} has a cost"),
        };
        let reason = why(&[(1_266_546_908.9, 961_791_735.4), (3_700.0, 3_900.0)]);
        assert!(reason.starts_with("in 1 of 2 runs it took no longer with the driver"), "{reason}");
        assert!(why(&[(0.0, 5.0)]).contains("no CPU time"));
        assert!(why(&[(f64::NAN, 5.0)]).contains("no CPU time"));
        assert_eq!(why(&[]), "there is no run");
    }
}
