//! What an operation takes more where a subject is installed: the report of several subjects as it is stored, and its view.

#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use profiler_explain::Function;
use profiler_kernel::hooks::{HookKind, ProbeState};
use profiler_recording::{DriverCost, Recording, Tool};

pub use view::document;

/// What the field `schema` says.
pub const TAX_SCHEMA: &str = "profiler/tax";
/// Version of the format.
pub const TAX_VERSION: u32 = 1;

/// Runs with one subject: each load twice, once of one operation, and once of many with its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The subject as it was given.
    pub given: String,
    /// A short name for tables, which no other subject has.
    pub label: String,
    pub runs: Vec<Recording>,
}

/// What operations take without any subject, and more with each.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TaxReport {
    /// Always `profiler/tax`.
    #[schemars(extend("const" = TAX_SCHEMA))]
    pub schema: String,
    /// Version of the format.
    #[schemars(extend("const" = TAX_VERSION))]
    pub version: u32,
    /// The program that wrote this.
    pub tool: Tool,
    /// Release of the kernel.
    pub kernel: String,
    pub subjects: Vec<SubjectRecord>,
    pub operations: Vec<OperationRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SubjectRecord {
    /// Its name in tables.
    pub label: String,
    /// As it was given.
    pub given: String,
    /// The module's name; that of BPF programs for a command.
    pub module: String,
    /// Of the module; a checksum of the command's files.
    pub build_id: Option<String>,
    /// Hooks that were found in the kernel; `null` if they could not be read.
    pub hooks: Option<usize>,
    /// What could not be read of hooks, or is known of them in other words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_known: Vec<String>,
}

/// An operation of a load.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct OperationRecord {
    /// The load: a built-in one, or a program of which each run is an operation.
    pub load: String,
    /// Operations that were counted with each subject, and without.
    pub operations: u64,
    /// Instructions of one, on average, in system calls, with no subject installed.
    pub without_instructions: f64,
    /// With each subject, in the order of `subjects`; `null` where its guest failed before.
    pub with: Vec<Option<Tax>>,
}

/// What an operation takes with a subject; all figures are averages of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Tax {
    /// Instructions in system calls.
    pub instructions: f64,
    /// Those that are more than without it.
    pub more: f64,
    /// Of these, what the subject's functions and what they call took.
    pub in_handlers: f64,
    /// The rest: kprobes, tracepoints, trampolines, other paths of the entry code.
    pub around_handlers: f64,
    /// Instructions of the subject's functions and of what they call outside of system calls, which are in none of the above.
    pub elsewhere: f64,
    /// Hooks whose handlers were called, by kind and handler.
    pub hooks: Vec<HookTax>,
    /// What `in_handlers` and `elsewhere` are made of: functions by their own instructions, the dearest first.
    pub functions: Vec<FunctionTax>,
}

/// A hook of the subject.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HookTax {
    /// By which interface it was registered.
    pub kind: HookKind,
    /// What it is on; several places if the same handler is on each.
    pub places: Vec<String>,
    /// How the kernel gets from the place to the handler; kprobes and kretprobes alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ProbeState>,
    /// Calls of its handler; of a kretprobe of the one that is called first.
    pub calls: f64,
}

/// A function of the subject, or one of the kernel below these.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct FunctionTax {
    #[serde(flatten)]
    pub function: Function,
    pub calls: f64,
    /// Its own instructions, without what it calls.
    pub instructions: f64,
}

impl TaxReport {
    /// The report of these columns, with the loads in this order; an operation that was counted with no subject is left out.
    pub fn of(columns: &[Column], loads: &[String]) -> Self {
        let mut all = columns.iter().flat_map(|column| &column.runs);
        let kernel = all.next().and_then(|run| run.host.kernel_release.clone());
        let operation = |load: &String| {
            let costs = |column| counted(column, load).map(|(_, cost)| cost);
            let first = columns.iter().find_map(costs)?;
            Some(OperationRecord {
                load: load.clone(),
                operations: first.operations,
                without_instructions: first.without_ns,
                with: columns.iter().map(|column| tax(column, load)).collect(),
            })
        };
        Self {
            schema: TAX_SCHEMA.to_owned(),
            version: TAX_VERSION,
            tool: Tool::this(),
            kernel: kernel.unwrap_or_default(),
            subjects: columns.iter().map(SubjectRecord::of).collect(),
            operations: loads.iter().filter_map(operation).collect(),
        }
    }

    /// Subjects none of whose functions ran in any operation, by their labels.
    pub fn unreached(&self) -> Vec<&str> {
        let ran = |at: usize| {
            let mut taxes = self.operations.iter().filter_map(|it| it.with.get(at)?.as_ref());
            taxes.any(|tax| tax.in_handlers + tax.elsewhere > 0.0)
        };
        let subjects = self.subjects.iter().enumerate().filter(|(at, _)| !ran(*at));
        subjects.map(|(_, subject)| subject.label.as_str()).collect()
    }
}

impl SubjectRecord {
    fn of(column: &Column) -> Self {
        let module = column.runs.first().and_then(|run| run.modules.first());
        let hooks = module.and_then(|module| module.hooks.as_ref());
        let not_known = hooks.map(|hooks| hooks.unknown.clone()).unwrap_or_default();
        Self {
            label: column.label.clone(),
            given: column.given.clone(),
            module: module.map_or(String::new(), |module| module.name.clone()),
            build_id: module.and_then(|module| module.build_id.clone()),
            hooks: hooks.filter(|it| it.is_known()).map(|hooks| hooks.list.len()),
            not_known,
        }
    }
}

fn runs<'a>(column: &'a Column, load: &str) -> impl Iterator<Item = &'a Recording> {
    column.runs.iter().filter(move |run| run.part() == Some(load))
}

/// The run of many operations of a load, and its cost.
fn counted<'a>(column: &'a Column, load: &str) -> Option<(&'a Recording, &'a DriverCost)> {
    runs(column, load).find_map(|run| Some((run, run.driver_costs.first()?)))
}

fn tax(column: &Column, load: &str) -> Option<Tax> {
    let (run, cost) = counted(column, load)?;
    let once = runs(column, load).find(|run| run.driver_costs.is_empty())?;
    let (in_handlers, elsewhere) = (cost.within?, cost.elsewhere?);
    let functions = functions(once, run, cost.operations.saturating_sub(1));
    Some(Tax {
        instructions: cost.with_ns,
        more: cost.added_ns(),
        in_handlers,
        around_handlers: cost.added_ns() - in_handlers,
        elsewhere,
        hooks: hooks(run, &functions),
        functions,
    })
}

/// The hooks that these functions are handlers of. Which of several was hit is not known where they have a handler in common.
fn hooks(run: &Recording, functions: &[FunctionTax]) -> Vec<HookTax> {
    let Some(module) = run.modules.first() else { return Vec::new() };
    let mut by_handler: BTreeMap<(HookKind, &String), HookTax> = BTreeMap::new();
    for hook in module.hooks.iter().flat_map(|hooks| &hooks.list) {
        let Some(first) = hook.handlers.first() else { continue };
        let handler = Function::of(first, Some(&module.name));
        let Some(found) = functions.iter().find(|it| it.function == handler) else { continue };
        let (kind, state, calls) = (hook.kind, hook.state, found.calls);
        let none = || HookTax { kind, places: Vec::new(), state, calls };
        by_handler.entry((kind, first)).or_insert_with(none).places.push(hook.place.clone());
    }
    by_handler.into_values().collect()
}

/// What so many operations more took, by function. Both runs set their load up in the same way, which takes calls of its own: what
/// they have in common is not of operations.
fn functions(once: &Recording, many: &Recording, more: u64) -> Vec<FunctionTax> {
    let [before, all] = [once, many].map(sums);
    let of_one = |of: u64, before: u64| (of as f64 - before as f64) / more as f64;
    let function = |(function, [calls, own]): (Function, [u64; 2])| {
        let [calls_before, own_before] = before.get(&function).copied().unwrap_or_default();
        let (calls, instructions) = (of_one(calls, calls_before), of_one(own, own_before));
        FunctionTax { function, calls, instructions }
    };
    let mut functions: Vec<FunctionTax> = all.into_iter().map(function).collect();
    functions.retain(|it| it.instructions.is_finite() && it.instructions != 0.0);
    functions.sort_by(|a, b| b.instructions.total_cmp(&a.instructions));
    functions
}

/// Calls and own instructions of each function.
fn sums(run: &Recording) -> BTreeMap<Function, [u64; 2]> {
    let mut sums: BTreeMap<Function, [u64; 2]> = BTreeMap::new();
    let Some(tree) = &run.call_tree else { return sums };
    for node in &tree.nodes {
        let Some(of) = tree.functions.get(node.function as usize) else { continue };
        let [calls, own] = sums.entry(Function::of(&of.name, of.module.as_ref())).or_default();
        *calls = calls.saturating_add(node.calls);
        *own = own.saturating_add(node.own);
    }
    sums
}
