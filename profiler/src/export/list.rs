//! Functions of a module or of the kernel image as a table.

use super::cell::clean;
use super::grid::words as grid;
use crate::kernel::hooks::{Hook, Hooks, ProbeState};
use crate::kernel::target::Function;
use crate::text::plural;

/// The functions as a table.
#[must_use]
pub fn table(functions: &[Function], width: Option<u16>) -> String {
    let rows = functions.iter().map(row).collect();
    let mut text =
        grid(&["function", "address", "bytes", "traceable", "BTF", "prototype"], rows, width);
    let count = functions.len();
    let described = functions.iter().filter(|function| function.btf).count();
    text.push_str(&format!(
        "\n{count} function{}, {described} of them described by BTF\n",
        plural(count)
    ));
    if functions.iter().any(|function| function.address.is_none()) {
        text.push_str("the kernel hides addresses from this process: run as root to see them\n");
    }
    if functions.iter().any(|function| function.traceable.is_none()) {
        text.push_str(
            "tracefs cannot be read, so what can be traced is unknown: run as root, and mount it \
             with `mount -t tracefs nodev /sys/kernel/tracing`\n",
        );
    }
    text
}

/// Hooks as a table.
#[must_use]
pub fn hooks_table(hooks: &Hooks, width: Option<u16>) -> String {
    let row = |hook: &Hook| {
        let most = hook.maxactive.map_or("-".to_owned(), |most| most.to_string());
        vec![
            hook.kind.name().to_owned(),
            clean(&hook.place).into_owned(),
            clean(&hook.handlers.join(", ")).into_owned(),
            hook.state.map_or("-", ProbeState::name).to_owned(),
            most,
        ]
    };
    let rows = hooks.list.iter().map(row).collect();
    let mut text = grid(&["hook", "on", "calls", "by", "maxactive"], rows, width);
    let count = hooks.list.len();
    text.push_str(&format!("\n{count} hook{}\n", plural(count)));
    for why in &hooks.unknown {
        text.push_str(&format!("not known: {}\n", clean(why)));
    }
    text
}

fn row(function: &Function) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let what = match (&function.prototype, &function.variant) {
        (Some(prototype), _) => Some(match &function.taken_for {
            Some(namesake) => format!("{prototype} (no fentry: {namesake} has this name, too)"),
            None => prototype.clone(),
        }),
        (None, Some(variant)) => Some(format!("({variant} of {})", function.source_name())),
        (None, None) if function.same_name > 1 => Some(match function.duplicate_index {
            Some(number) => {
                format!("(`{}#{number}` of {} of this name)", function.name, function.same_name)
            }
            None => format!("({} functions have this name)", function.same_name),
        }),
        (None, None) => None,
    };
    vec![
        function.name.clone(),
        or_dash(function.address.map(|address| format!("{address:016x}"))),
        or_dash(function.size_bytes.map(|bytes| bytes.to_string())),
        or_dash(function.traceable.map(yes_no)),
        yes_no(function.btf),
        or_dash(what),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function { btf: false, prototype: None, ..Function::example(name) }
    }

    #[test]
    fn each_kind_of_function_has_its_line() {
        let functions = [
            Function {
                btf: true,
                prototype: Some("int bind_handler(struct pt_regs *regs)".to_owned()),
                ..function("bind_handler")
            },
            Function { size_bytes: None, traceable: None, ..function("asm_handler") },
            Function { variant: Some("isra".to_owned()), ..function("split_handler.isra.0") },
            Function { same_name: 2, duplicate_index: Some(1), ..function("twice_handler") },
            Function {
                same_name: 2,
                duplicate_index: Some(2),
                address: Some(0xffff_ffff_c000_2000),
                ..function("twice_handler")
            },
            Function { address: None, traceable: Some(false), ..function("dark_handler") },
        ];
        insta::assert_snapshot!(table(&functions, None));
    }
}
