//! Functions of a module, of the kernel image or of BPF programs, and hooks, as tables.

use serde::Serialize;

use profiler_base::text::plural;
use profiler_kernel::hooks::{Hooks, ProbeState};
use profiler_kernel::target::Target;

use super::document::{Document, Note, Table, or_dash};

pub fn functions(functions: &[Target]) -> Document {
    let head = ["function", "address", "traceable", "BTF", "note"];
    let count = functions.len();
    let described = functions.iter().filter(|function| function.btf_id.is_some()).count();
    let mut notes =
        vec![format!("{count} function{}, {described} of them described by BTF", plural(count))];
    if functions.iter().any(|function| function.address == 0) {
        notes.push(
            "the kernel hides addresses from this process: run as root to see them".to_owned(),
        );
    }
    if functions.iter().any(|function| function.traceable.is_none()) {
        notes.push(
            "tracefs cannot be read, so what can be traced is unknown: run as root, and mount it with `mount -t \
             tracefs nodev /sys/kernel/tracing`"
                .to_owned(),
        );
    }
    Document {
        tables: vec![Table::words(head, functions.iter().map(row))],
        notes: notes.into_iter().map(|words| Note::new("", words)).collect(),
        ..Document::default()
    }
}

/// A function of a loaded BPF program.
#[derive(Debug, Serialize)]
pub struct BpfFunction {
    /// As `profiler run --bpf-prog` takes it.
    name: String,
    /// Id of its program.
    program: Option<u32>,
    /// Whether the program has BTF, without which no probe can be attached to it.
    btf: bool,
}

impl BpfFunction {
    /// What is shown of it.
    pub fn of(target: &Target) -> Self {
        Self { name: target.label(), program: target.program, btf: target.btf_id.is_some() }
    }
}

/// Functions of BPF programs.
pub fn programs(functions: &[BpfFunction]) -> Document {
    let rows = functions.iter().map(|of| {
        vec![of.name.clone(), or_dash(of.program.map(|id| id.to_string())), yes_no(of.btf)]
    });
    let tables = vec![Table::words(["function", "program", "BTF"], rows)];
    Document { tables, ..Document::default() }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

pub fn hooks(hooks: &Hooks) -> Document {
    let rows = hooks.list.iter().map(|hook| {
        vec![
            hook.kind.name().to_owned(),
            hook.place.clone(),
            hook.handlers.join(", "),
            hook.state.map_or("-", ProbeState::name).to_owned(),
            or_dash(hook.maxactive.map(|most| most.to_string())),
        ]
    });
    let head = ["hook", "on", "calls", "by", "maxactive"];
    let count = hooks.list.len();
    let mut notes = vec![Note::new("", format!("{count} hook{}", plural(count)))];
    notes.extend(hooks.unknown.iter().map(|why| Note::new("not known", why)));
    let tables = vec![Table::words(head, rows)];
    Document { tables, notes, ..Document::default() }
}

fn row(target: &Target) -> Vec<String> {
    let taken = target.taken_for.as_ref();
    let notes = [
        taken.map(|namesake| format!("no fentry: {namesake} has this name, too")),
        target.variant().map(|variant| format!("{variant} of {}", target.source_name())),
        target
            .duplicate_index
            .map(|_| format!("one of several of this name: `{}`", target.label())),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    let address = (target.address != 0).then(|| format!("{:016x}", target.address));
    vec![
        target.name.clone(),
        or_dash(address),
        or_dash(target.traceable.map(yes_no)),
        yes_no(target.btf_id.is_some()),
        or_dash((!notes.is_empty()).then(|| notes.join("; "))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Target {
        Target { btf_id: None, ..profiler_tests::function(name) }
    }

    #[test]
    fn each_kind_of_function_has_its_line() {
        let other = Some("a function of `other`".to_owned());
        let twin = |number| Target { duplicate_index: Some(number), ..function("twice_handler") };
        let functions = [
            Target { btf_id: Some(7), ..function("bind_handler") },
            Target { taken_for: other.clone(), ..function("taken") },
            Target { traceable: None, ..function("asm_handler") },
            function("split_handler.isra.0"),
            twin(1),
            Target { address: 0xffff_ffff_c000_2000, taken_for: other, ..twin(2) },
            Target { address: 0, traceable: Some(false), ..function("dark_handler") },
        ];
        insta::assert_snapshot!(super::functions(&functions).text(None));
    }
}
