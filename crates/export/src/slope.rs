//! What handlers take for each unit of what they walk over: the report as it is stored, and its view.

use std::collections::BTreeSet;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::Serialize;

use profiler_load::{BuiltinKind, Points};
use profiler_recording::{Clock, Meter, Recording, Tool};
use profiler_verdict::{Limit, Measured, Rule, Statistic, load_of, operation_of};

use super::document::{Document, Note, Table, or_dash};

/// What the field `schema` says.
pub const SLOPE_SCHEMA: &str = "profiler/slope";
/// Version of the format.
pub const SLOPE_VERSION: u32 = 1;

/// A figure is not linear if one of its last two steps is this many times as steep as the other.
const BEND: f64 = 1.25;

const EXACT: Measured = Measured { meter: Meter::Exact, clock: Clock::Virtual, in_turns: true };

/// The limit of `--max-slope`: how much more a candidate may take from the first point to the last.
///
/// # Errors
/// If it is malformed, or a time.
pub fn max_slope(text: &str) -> Result<Limit, String> {
    match text.parse()? {
        Limit::By(amount) if amount.meter != Meter::Exact => {
            Err(format!("`{text}` is a time, and instructions are counted: write '+10' or '5%'"))
        }
        limit => Ok(limit),
    }
}

/// Instructions that may be added to so many; without a limit, as many as the gate allows an average.
fn allowed(limit: Option<Limit>, span: f64) -> f64 {
    let rule = Rule::default();
    match limit.unwrap_or_else(|| rule.limit("", Statistic::Avg, EXACT)) {
        Limit::Off => f64::INFINITY,
        Limit::Share(share) => (share * span).max(rule.floor("", EXACT)),
        Limit::By(amount) => amount.value,
    }
}

/// Handlers of one or two builds at each point.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SlopeReport {
    /// Always `profiler/slope`.
    #[schemars(extend("const" = SLOPE_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = SLOPE_VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// Release of the kernel.
    pub kernel: String,
    pub load: String,
    /// What there is more of at each point.
    pub dimension: String,
    /// How much of it.
    pub points: Vec<u32>,
    /// Handlers that each point called, and the operation if it has a cost of its own.
    pub handlers: Vec<HandlerSlope>,
    /// Handlers that not every point of each build called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_called: Vec<String>,
    /// Handlers that each point of one build called, and not of the other. Nothing is judged of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub called_by_one_build: Vec<String>,
}

/// A handler, or `operation of LOAD`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HandlerSlope {
    /// Its name.
    pub handler: String,
    /// The only build, or the baseline.
    pub baseline: Slope,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Slope>,
    /// Instructions that the candidate takes more from the first point to the last, in the placement where that is least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub more: Option<f64>,
    /// Whether that is more than the limit allows.
    pub fails: bool,
}

/// A figure by the size of a dimension.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Slope {
    /// Instructions of a call, or of an operation, on average, at each point; means over placements.
    pub instructions: Vec<f64>,
    /// Instructions for each unit, from the first point to the last.
    pub per_unit: f64,
    /// How it grows.
    pub growth: Growth,
}

/// How a figure grows with a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, strum::Display, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "lowercase")]
pub enum Growth {
    /// By less than the gate would see.
    Constant,
    /// By as much for each unit.
    Linear,
    /// By less and less: it stops at a limit of its own.
    #[strum(to_string = "less than linear")]
    LessThanLinear,
    /// By more and more.
    #[strum(to_string = "more than linear")]
    MoreThanLinear,
}

impl Growth {
    fn of(points: &[u32], figures: &[f64]) -> Self {
        let first = figures.first().copied().unwrap_or_default();
        if span(figures).abs() <= allowed(None, first) {
            return Self::Constant;
        }
        let steps = points.windows(2).zip(figures.windows(2));
        // Not the first steps: a load that has nothing to walk over may call other code.
        let mut last =
            steps.rev().map(|(points, figures)| [span(figures), f64::from(points[1] - points[0])]);
        let [at_end, units] = last.next().unwrap_or([0.0, 1.0]);
        if at_end.abs() <= allowed(None, first) {
            return Self::LessThanLinear;
        }
        let (ends, begins) =
            (at_end / units, last.next().map_or(0.0, |[more, units]| more / units));
        if ends > begins * BEND {
            Self::MoreThanLinear
        } else if ends * BEND < begins {
            Self::LessThanLinear
        } else {
            Self::Linear
        }
    }
}

impl Slope {
    /// Of figures by placement and point.
    fn of(points: &[u32], placements: &[Vec<f64>]) -> Self {
        let sums =
            (0..points.len()).map(|at| placements.iter().map(|figures| figures[at]).sum::<f64>());
        let instructions: Vec<f64> = sums.map(|sum| sum / placements.len() as f64).collect();
        let units = points.last().zip(points.first()).map_or(1, |(last, first)| last - first);
        let (per_unit, growth) =
            (span(&instructions) / f64::from(units), Growth::of(points, &instructions));
        Self { instructions, per_unit, growth }
    }
}

fn span(figures: &[f64]) -> f64 {
    figures.last().zip(figures.first()).map_or(0.0, |(last, first)| last - first)
}

impl SlopeReport {
    /// The report of the runs of a baseline and of a candidate, which may be none.
    pub fn of(
        [baseline, candidate]: [&[Recording]; 2],
        load: BuiltinKind,
        points: &Points,
        limit: Option<Limit>,
    ) -> Self {
        let parts: Vec<String> = points.numbers.iter().map(|number| points.part(*number)).collect();
        // Handlers that the candidate alone has are named, and not judged.
        let all = baseline.iter().chain(candidate).flat_map(|run| &run.handlers);
        let names = all.map(|handler| handler.name.clone()).unique();
        let (mut handlers, mut not_called, mut called_by_one_build) =
            (Vec::new(), Vec::new(), Vec::new());
        for name in names.chain([operation_of(load)]) {
            match [baseline, candidate].map(|runs| figures(runs, &parts, &name)) {
                [Some(base), new] if new.is_some() || candidate.is_empty() => {
                    handlers.push(judge(name, &points.numbers, &base, new.as_deref(), limit));
                }
                // It has no cost of its own.
                [None, None] if name == operation_of(load) => {}
                [None, None] => not_called.push(name),
                _ => called_by_one_build.push(name),
            }
        }
        let kernel = baseline.first().and_then(|run| run.host.kernel_release.clone());
        Self {
            schema: SLOPE_SCHEMA.to_owned(),
            version: SLOPE_VERSION,
            tool: Tool::this(),
            kernel: kernel.unwrap_or_default(),
            load: load.name().to_owned(),
            dimension: points.name.clone(),
            points: points.numbers.clone(),
            handlers,
            not_called,
            called_by_one_build,
        }
    }

    /// Names of those that take more than they may.
    pub fn failed(&self) -> Vec<&str> {
        self.handlers.iter().filter(|it| it.fails).map(|it| it.handler.as_str()).collect()
    }
}

fn judge(
    handler: String,
    points: &[u32],
    base: &[Vec<f64>],
    new: Option<&[Vec<f64>]>,
    limit: Option<Limit>,
) -> HandlerSlope {
    let more = new.and_then(|new| {
        let pairs = base.iter().zip(new);
        pairs.map(|(base, new)| span(new) - span(base)).min_by(f64::total_cmp)
    });
    let baseline = Slope::of(points, base);
    let fails = more.is_some_and(|more| more > allowed(limit, span(&baseline.instructions)));
    HandlerSlope {
        handler,
        baseline,
        candidate: new.map(|new| Slope::of(points, new)),
        more,
        fails,
    }
}

/// What a handler, or the operation, takes at each point, by placement; `None` if one of them has no call.
fn figures(runs: &[Recording], parts: &[String], name: &str) -> Option<Vec<Vec<f64>>> {
    let boots = runs.iter().filter_map(|run| Some(run.place.as_ref()?.boot));
    let boots: BTreeSet<u32> = boots.collect();
    let all = boots.into_iter().map(|boot| {
        let runs = runs.iter().filter(|run| run.place.as_ref().is_some_and(|it| it.boot == boot));
        let of_part = parts.iter().map(|part| runs.clone().find(|run| run.part() == Some(&**part)));
        of_part.map(|run| figure(run?, name)).collect()
    });
    let all: Option<Vec<Vec<f64>>> = all.collect();
    all.filter(|all| !all.is_empty())
}

fn figure(run: &Recording, name: &str) -> Option<f64> {
    match run.handlers.iter().find(|handler| handler.name == name) {
        Some(handler) => handler.mean_ns(),
        None if load_of(name).is_some() => Some(run.driver_costs.first()?.with_ns),
        None => None,
    }
}

/// The view of `report`.
pub fn document(report: &SlopeReport) -> Document {
    let two = report.handlers.iter().any(|it| it.candidate.is_some());
    let words = format!("instructions of a call by {}, under {}", report.dimension, report.load);
    let mut lead = vec![format!("Linux {}: {words}", report.kernel)];
    if two {
        let failed = report.failed();
        let verdict = match failed.as_slice() {
            [] if !report.called_by_one_build.is_empty() => "inconclusive".to_owned(),
            [] => {
                let judged = report.handlers.len();
                format!("pass: {judged} of {} judged", judged + report.not_called.len())
            }
            failed => format!("fail: {}", failed.join(", ")),
        };
        lead.insert(0, format!("slope: {verdict}"));
    }
    let mut notes = vec![
        Note::new("not called at each point", report.not_called.join(", ")),
        Note::new("called at each point by one build alone", report.called_by_one_build.join(", ")),
    ];
    notes.retain(|note| !note.words.is_empty());
    Document {
        title: "What handlers take for each unit".to_owned(),
        lead,
        facts: vec![Note::new("points", report.points.iter().join(", "))],
        tables: vec![table(report, two)],
        notes,
        ..Document::default()
    }
}

fn table(report: &SlopeReport, two: bool) -> Table {
    let mut head = vec!["handler".to_owned()];
    head.extend(report.points.iter().map(|point| format!("{}={point}", report.dimension)));
    head.extend(["a unit".to_owned(), "growth".to_owned()]);
    if two {
        head.extend(["candidate: a unit", "growth", "more at the end"].map(str::to_owned));
    }
    let rows = report.handlers.iter().map(|it| {
        let mut cells = vec![it.handler.clone()];
        cells.extend(it.baseline.instructions.iter().map(|figure| format!("{figure:.1}")));
        for slope in [&it.baseline].into_iter().chain(&it.candidate) {
            cells.extend([format!("{:.2}", slope.per_unit), slope.growth.to_string()]);
        }
        if two {
            cells.push(or_dash(it.more.map(|more| format!("{more:+.1}"))));
        }
        cells
    });
    Table::figures(head, rows)
}

#[cfg(test)]
mod tests {
    use profiler_recording::{HandlerRecording, SeriesPosition};

    use super::*;

    #[test]
    fn growth_is_told_from_the_last_two_steps() {
        let points = [0, 10, 100];
        for (figures, growth) in [
            ([100.0, 101.0, 103.0], Growth::Constant),
            ([100.0, 150.0, 600.0], Growth::Linear),
            ([100.0, 150.0, 160.0], Growth::LessThanLinear),
            ([100.0, 150.0, 150.0], Growth::LessThanLinear),
            ([100.0, 110.0, 1100.0], Growth::MoreThanLinear),
        ] {
            assert_eq!(Growth::of(&points, &figures), growth);
        }
        let slope = Slope::of(&points, &[vec![100.0, 150.0, 600.0], vec![102.0, 152.0, 604.0]]);
        assert_eq!((slope.per_unit, slope.instructions[0]), (5.01, 101.0));
    }

    /// A handler that was renamed may take more for each unit, and none of both has a slope to compare.
    #[test]
    fn a_handler_of_one_build_alone_is_no_pass() {
        let points: Points = "args=0,1,2".parse().unwrap();
        let run = |name: &str, point: u32| {
            let mut run = profiler_tests::recording::runs(&[Default::default()]).remove(0);
            let name = name.to_owned();
            run.handlers.push(HandlerRecording { name, count: 1, ..HandlerRecording::default() });
            run.place = Some(SeriesPosition { boot: 0, order: 0, part: Some(points.part(point)) });
            run
        };
        let side = |name: &str| [0, 1, 2].map(|point| run(name, point));
        let of = |base: &str, candidate: &str| {
            let sides = [side(base), side(candidate)];
            let sides = sides.each_ref().map(|side| &side[..]);
            SlopeReport::of(sides, BuiltinKind::Execve, &points, None)
        };
        assert!(of("check", "check").called_by_one_build.is_empty());
        let renamed = of("check", "check2");
        assert_eq!(renamed.called_by_one_build, ["check", "check2"]);
        assert!(renamed.not_called.is_empty());
    }

    #[test]
    fn a_candidate_fails_by_what_holds_in_each_placement() {
        let base = [vec![10.0, 20.0, 110.0], vec![10.0, 20.0, 110.0]];
        let judged = |new: [Vec<f64>; 2], limit: Option<&str>| {
            let limit = limit.map(|text| max_slope(text).unwrap());
            let it = judge("h".to_owned(), &[0, 1, 10], &base, Some(&new), limit);
            (it.more.unwrap(), it.fails)
        };
        let steeper = |more: f64| vec![10.0, 20.0, 110.0 + more];
        assert_eq!(judged([steeper(4.0), steeper(9.0)], None), (4.0, false));
        assert_eq!(judged([steeper(5.0), steeper(9.0)], None), (5.0, true));
        assert_eq!(judged([steeper(1.0), steeper(1.0)], Some("+0")), (1.0, true));
        assert_eq!(judged([steeper(5.0), steeper(9.0)], Some("10%")), (5.0, false));
        // More in all calls is no slope.
        assert_eq!(judged([vec![30.0, 40.0, 130.0], vec![30.0, 40.0, 130.0]], None), (0.0, false));
        assert!(max_slope("+2us").is_err());
    }
}
