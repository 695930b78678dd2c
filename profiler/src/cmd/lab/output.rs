//! What the lab prints and writes.

use std::fs;

use comfy_table::{Cell, Row};
use profiler_vm::KernelImage;

use super::cannot_write;
use crate::cli::LabArgs;
use crate::cmd::{report, to_stdout};
use crate::error::{Failure, exit};
use crate::export::grid;
use crate::lab::plan::Build;
use crate::lab::spread::{self, STATISTICS};
use crate::lab::{Bench, Measured, Settings};
use crate::profile::{OutputFile, Profile, Series};
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

    /// Writes and prints what one kernel brought; gives back why it ended early, if it did.
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

/// What the driver costs an operation, if that was measured: medians over the runs.
fn cost_table(series: &Series, width: Option<u16>) -> Option<String> {
    let first = series.runs.first()?;
    let rows: Vec<Row> = (0..first.driver_costs.len())
        .filter_map(|index| {
            let load = first.driver_costs[index].load;
            let over = |value: &dyn Fn(&Profile) -> Option<f64>| {
                let values: Option<Vec<f64>> = series.runs.iter().map(value).collect();
                median(&values?)
            };
            let cost = |run: &Profile| run.driver_costs.get(index).cloned();
            let without = over(&|run| Some(cost(run)?.without_ns))?;
            let with = over(&|run| Some(cost(run)?.with_ns))?;
            let handlers = over(&|run| run.handlers_ns_per_operation());
            let figure = |value: f64| format!("{value:.1}");
            let added = with - without;
            Some(Row::from([
                load.to_string(),
                figure(without),
                figure(with),
                figure(added),
                handlers.map_or("-".into(), figure),
                handlers.map_or("-".into(), |handlers| figure(added - handlers)),
            ]))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let header =
        ["an operation of", "without driver", "with it", "added", "in the handlers", "around them"];
    let table = grid::figures(&header, rows.into_iter(), width);
    Some(format!(
        "what the driver costs an operation of the load, in nanoseconds, probes off\n{table}\n"
    ))
}
