//! What was found, as text.

use super::{Answer, Check, Report, Status};
use crate::export::grid::words as grid;
use crate::kernel::hooks::ProbeState;

/// The tables for people; `width` is the terminal's, in columns.
#[must_use]
pub fn text(report: &Report, width: Option<u16>) -> String {
    let kernel = report.kernel.as_deref().unwrap_or("unknown");
    let mut text = format!("kernel {kernel} {}\n\n", report.arch);
    let rows = report.checks.iter().map(|check| {
        vec![check.title.to_owned(), word(check.status).to_owned(), check.detail.clone()]
    });
    text.push_str(&grid(&["check", "", "found"], rows.collect(), width));

    text.push('\n');
    let module = match &report.module {
        Some(module) => format!("functions of {module}"),
        None => "functions of modules".to_owned(),
    };
    let mut rows = Vec::new();
    for backend in &report.backends {
        for (place, answer) in [
            ("functions of the kernel", &backend.kernel_functions),
            (module.as_str(), &backend.module_functions),
        ] {
            let answer_word = if answer.available { "yes" } else { "no" };
            rows.push(vec![
                backend.backend.to_string(),
                place.to_owned(),
                answer_word.to_owned(),
                reasons(answer, &report.checks),
            ]);
        }
    }
    text.push_str(&grid(&["backend", "for", "", "because of"], rows, width));

    if !report.handlers.is_empty() {
        text.push('\n');
        let rows = report.handlers.iter().map(|handler| {
            let backend = handler.backend.map_or("none".to_owned(), |backend| backend.to_string());
            vec![handler.name.clone(), backend, handler.obstacle.clone().unwrap_or_default()]
        });
        text.push_str(&grid(
            &["handler", "backend", "why not a better one"],
            rows.collect(),
            width,
        ));
    } else if let Some(why) = &report.no_handlers {
        text.push_str(&format!("\nno handler looked at: {why}\n"));
    }
    text.push_str(&own_probes(report, width));
    text.push_str(&remedies(report));
    text
}

/// The module's own kprobes, and the hits for which the kernel did not call their handlers.
fn own_probes(report: &Report, width: Option<u16>) -> String {
    if let Some(why) = &report.no_own_probes {
        return format!("\nhits that the module's own kprobes missed are not known: {why}\n");
    }
    if report.own_probes.is_empty() {
        return String::new();
    }
    let rows = report.own_probes.iter().map(|probe| {
        vec![
            probe.kind.name().to_owned(),
            probe.place.clone(),
            probe.handlers.join(", "),
            probe.state.map_or("-", ProbeState::name).to_owned(),
            probe.maxactive.map_or("-".to_owned(), |most| most.to_string()),
            probe.missed.to_string(),
            probe.maxactive.map_or("-".to_owned(), |_| probe.beyond_maxactive.to_string()),
        ]
    });
    let header = ["hook", "on", "calls", "by", "maxactive", "missed", "beyond maxactive"];
    format!("\n{}", grid(&header, rows.collect(), width))
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Yes => "yes",
        Status::No => "no",
        Status::Unknown => "?",
    }
}

fn reasons(answer: &Answer, checks: &[Check]) -> String {
    let titles: Vec<&str> = checks
        .iter()
        .filter(|check| answer.because_of.contains(&check.id))
        .map(|check| check.title)
        .collect();
    titles.join(", ")
}

/// What to do, first where it keeps a backend from working.
fn remedies(report: &Report) -> String {
    let blocks = |check: &Check| {
        report.backends.iter().any(|backend| {
            [&backend.kernel_functions, &backend.module_functions]
                .iter()
                .any(|answer| answer.because_of.contains(&check.id))
        })
    };
    let mut text = String::new();
    // One backend is enough: what the others lack is then no obstacle.
    let heading = if report.can_measure { "for other backends:" } else { "to measure:" };
    for (heading, wanted) in [(heading, true), ("not needed to measure:", false)] {
        let lines: Vec<String> = report
            .checks
            .iter()
            .filter(|check| blocks(check) == wanted)
            .filter_map(|check| {
                check.remedy.as_ref().map(|remedy| format!("  {}: {remedy}\n", check.title))
            })
            .collect();
        if !lines.is_empty() {
            text.push_str(&format!("\n{heading}\n{}", lines.concat()));
        }
    }
    text
}
