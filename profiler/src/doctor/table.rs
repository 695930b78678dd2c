//! What was found, as text.

use super::{Answer, Check, Report, Status};
use crate::export::grid::words as grid;

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
    text.push_str(&remedies(report));
    text
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
