//! What was found, as text.

use profiler_export::document::{Document, Table, or_dash};
use profiler_kernel::hooks::ProbeState;

use super::Report;

/// The tables for people; `width` is the terminal's, in columns.
pub(super) fn text(report: &Report, width: Option<u16>) -> String {
    let kernel = report.kernel.as_deref().unwrap_or("unknown");
    let rows = report.checks.iter().map(|check| {
        let status: &str = check.status.into();
        vec![check.title.to_owned(), status.to_owned(), check.detail.clone()]
    });
    let checks = Table::words(["check", "", "found"], rows);
    let tables = [Document::of_table("", checks), Document::of_table("", backends(report))];
    let others = [handlers(report), own_probes(report), remedies(report)];
    let sections = tables.into_iter().chain(others).flatten().collect();
    let lead = vec![format!("kernel {kernel} {}", report.arch)];
    Document { lead, sections, ..Document::default() }.text(width)
}

fn backends(report: &Report) -> Table {
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
            rows.push(vec![
                backend.backend.to_string(),
                place.to_owned(),
                if answer.available { "yes" } else { "no" }.to_owned(),
                answer.titles(&report.checks).join(", "),
            ]);
        }
    }
    Table::words(["backend", "for", "", "because of"], rows)
}

fn handlers(report: &Report) -> Option<Document> {
    if report.handlers.is_empty() {
        let why = report.no_handlers.as_ref()?;
        return Some(Document::of_lines(vec![format!("no handler looked at: {why}")]));
    }
    let rows = report.handlers.iter().map(|handler| {
        let backend = handler.backend.map_or("none".to_owned(), |backend| backend.to_string());
        vec![handler.name.clone(), backend, handler.obstacle.clone().unwrap_or_default()]
    });
    Document::of_table("", Table::words(["handler", "backend", "why not a better one"], rows))
}

/// The module's own kprobes, and the hits for which the kernel did not call their handlers.
fn own_probes(report: &Report) -> Option<Document> {
    if let Some(why) = &report.no_own_probes {
        let line = format!("hits that the module's own kprobes missed are not known: {why}");
        return Some(Document::of_lines(vec![line]));
    }
    let rows = report.own_probes.iter().map(|probe| {
        vec![
            probe.kind.name().to_owned(),
            probe.place.clone(),
            probe.handlers.join(", "),
            probe.state.map_or("-", ProbeState::name).to_owned(),
            or_dash(probe.maxactive.map(|most| most.to_string())),
            probe.missed.to_string(),
            or_dash(probe.maxactive.map(|_| probe.beyond_maxactive.to_string())),
        ]
    });
    let head = ["hook", "on", "calls", "by", "maxactive", "missed", "beyond maxactive"];
    Document::of_table("", Table::words(head, rows))
}

fn remedies(report: &Report) -> Option<Document> {
    // One backend is enough: what the others lack is then no obstacle.
    let heading = if report.can_measure { "for other backends:" } else { "to measure:" };
    let mut lines = vec![heading.to_owned()];
    lines.extend(report.checks.iter().filter_map(|check| {
        check.remedy.as_ref().map(|remedy| format!("  {}: {remedy}", check.title))
    }));
    (lines.len() > 1).then(|| Document::of_lines(lines))
}
