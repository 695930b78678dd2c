//! The gate's own record: decisions on the same driver and on one that is slower by a known amount, each with
//! boots of its own, written to a table in `docs/gate-power.md`.
//!
//! What was measured is kept below `target/gate-power`, a folder a decision: an interrupted run goes on
//! where it was. Runs that are there are judged anew each time, so the record is always that of the
//! present gate.

mod decision;
mod document;
mod level;
mod noise;

use std::path::Path;

use anyhow::Result;

use crate::cargo;
use crate::cli::GatePowerArgs;
use crate::cli::Slower;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::testbed::{self, More, Slow};

use decision::{Decision, Lab};
use level::Level;
use noise::Noise;

/// The handlers of one load: one is made slower, the other has to pass.
const HANDLERS: &str = "connect_*";
const LOAD: &str = "connect";

/// Makes the decisions that are not there yet, judges all, and writes the table. True if the gate keeps
/// its promises.
pub(crate) fn run(paths: &Paths, args: &GatePowerArgs) -> Result<bool> {
    let series = Series::V6_1;
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series)])?;
    let profiler = cargo::build_profiler(paths)?;
    let base = testbed::build(paths, series)?;
    let folder = paths.target().join("gate-power");
    let lab = Lab {
        profiler: profiler.clone(),
        kernel: paths.kernel(series),
        vng: paths.venv().join("bin/vng"),
        args: args.clone(),
    };
    let clock = folder.join(args.measure.name());
    let mut noise = args.noise.then(Noise::start).transpose()?;
    let mut level = None;
    for (number, change) in plan(args) {
        let place = clock.join(format!("{}-{number}", change.folder()));
        if !Decision::is_measured(&place) {
            if matches!(change.slower, Slower::Percent(1e-9..)) && level.is_none() {
                // What is to be known for sure is measured on a quiet machine.
                drop(noise.take());
                level = Some(Level::of(paths, &lab, &clock, &change.handler, &base)?);
                noise = args.noise.then(Noise::start).transpose()?;
            }
            let more = match (change.slower, level) {
                (Slower::Instructions(count), _) => Some(More::Nops(count)),
                (Slower::Percent(percent), Some(level)) if percent > 0.0 => {
                    Some(level.more(percent)?)
                }
                (Slower::Percent(_), _) => None,
            };
            let candidate = match more {
                Some(more) => {
                    let slow = Slow { handler: change.handler.clone(), more };
                    testbed::build_slow(paths, series, &slow)?
                }
                None => base.clone(),
            };
            Decision::measure(&lab, &change, &place, &base, &candidate, args.noise)?;
        }
        for decision in Decision::judge(&profiler, &place)? {
            println!("gate-power: {} {number}: {}", change.words(), decision.words());
        }
    }
    drop(noise);
    let decisions = decision::all(&profiler, &folder)?;
    let document = paths.root().join("docs/gate-power.md");
    process::create_dir(document.parent().unwrap_or(Path::new(".")))?;
    process::write(&document, document::render(&decisions)?)?;
    println!("gate-power: {} decisions, {}", decisions.len(), document.display());
    Ok(document::keeps_promises(&decisions))
}

/// One change that is injected.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The handler that is made slower.
    handler: String,
    /// By how much.
    slower: Slower,
}

impl Change {
    fn folder(&self) -> String {
        match self.slower {
            Slower::Percent(percent) => format!("{}-{percent}", self.handler),
            Slower::Instructions(count) => format!("{}+{count}", self.handler),
        }
    }

    fn words(&self) -> String {
        match self.slower {
            Slower::Percent(0.0) => "the same driver".to_owned(),
            Slower::Percent(percent) => format!("{} +{percent} %", self.handler),
            Slower::Instructions(count) => format!("{} +{}", self.handler, instructions(count)),
        }
    }
}

fn instructions(count: u64) -> String {
    format!("{count} instruction{}", if count == 1 { "" } else { "s" })
}

/// The decisions that are asked for; those on the same driver come first, for their runs tell how many
/// instructions a percent is.
fn plan(args: &GatePowerArgs) -> Vec<(u32, Change)> {
    let change = |slower| Change { handler: args.handler.clone(), slower };
    let mut plan = Vec::new();
    for wanted in &args.decisions {
        plan.extend((0..wanted.count).map(|number| (number, change(wanted.slower))));
    }
    plan.sort_by_key(|(_, change)| change.slower != Slower::Percent(0.0));
    plan
}
