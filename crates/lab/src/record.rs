//! Makes a recording of a guest's answers and the plugin's counts.

use std::collections::BTreeSet;

use super::counts::Counts;
use super::exact::LAYOUT;
use super::plan::{CountedHandler, RunSpec};
use profiler_kernel::host::HostFacts;
use profiler_kernel::module::ModuleFacts;
use profiler_kernel::names::module as module_of_line;
use profiler_load::LoadRun;
use profiler_recording::{Clock, Meter, Recording};

/// The names of a run's loads.
pub(super) fn load_name(run: &RunSpec) -> String {
    run.loads.iter().map(|kind| kind.name()).collect::<Vec<_>>().join("+")
}

/// A recording without handlers.
pub(super) fn recording(host: &HostFacts, module: &ModuleFacts, loads: Vec<LoadRun>) -> Recording {
    let length = loads.iter().map(|load| load.outcome.elapsed_ns).max().unwrap_or(0);
    Recording {
        window_ns: length.max(1),
        host: host.clone(),
        modules: vec![module.clone()],
        loads,
        ..Recording::new(jiff::Timestamp::now(), Clock::Virtual, Meter::Exact, LAYOUT)
    }
}

/// The plugin's line for the module: its name, where it was loaded and its bytes, to know its code where symbols are missing.
/// `text` has the lines of `/proc/modules`.
pub(super) fn module_line(module: &str, text: &str) -> String {
    let mut modules = text.lines().filter_map(module_of_line);
    match modules.find(|(name, ..)| *name == module) {
        Some((name, address, bytes)) => format!("module {name} {address:x} {bytes}\n"),
        None => format!("module {module}\n"),
    }
}

/// Adds the functions of a module without symbols that ran, where all were asked for: the plugin names them by their distance
/// from its first byte.
pub(super) fn add_unnamed(
    handlers: &mut Vec<CountedHandler>,
    counts: &Counts,
    module: &str,
    patterns: &[String],
) {
    let patterns: Vec<glob::Pattern> =
        patterns.iter().filter_map(|pattern| glob::Pattern::new(pattern).ok()).collect();
    let functions = counts.calls.keys().filter_map(|id| counts.functions.get(id));
    let wanted = functions.filter(|function| {
        function.module.as_deref() == Some(module)
            && patterns.iter().any(|pattern| pattern.matches(&function.name))
            && !handlers.iter().any(|known| known.address == function.address)
    });
    let mut found = Vec::from_iter(wanted.map(|function| CountedHandler {
        name: function.name.clone(),
        module: function.module.clone(),
        by_glob: true,
        address: function.address,
    }));
    found.sort_by_key(|handler| handler.address);
    handlers.extend(found);
}

/// Keeps only the handlers that are wanted or registered as hooks, including all of the same name.
pub(super) fn keep_wanted(
    handlers: &mut Vec<CountedHandler>,
    wanted: &BTreeSet<String>,
    module: &ModuleFacts,
) {
    let hooks = module.hooks.iter().flat_map(|hooks| &hooks.list);
    let registered = hooks.flat_map(|hook| &hook.handlers);
    let kept: BTreeSet<&str> = wanted.iter().chain(registered).map(String::as_str).collect();
    handlers.retain(|handler| kept.contains(plain(&handler.name)));
}

/// A handler's name without the number that tells it from others of its name.
pub(super) fn plain(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_one_name_are_wanted_together() {
        let hooks = serde_json::json!({
            "list": [{"kind": "kprobe", "place": "vfs_read", "handlers": ["hook"]}],
        });
        let hooks = Some(serde_json::from_value(hooks).unwrap());
        let module = ModuleFacts { hooks, ..ModuleFacts::default() };
        let handler = |name: &&str| CountedHandler {
            name: (*name).to_owned(),
            module: None,
            by_glob: true,
            address: 0,
        };
        let all = ["hook#1", "hook#2", "pre#1", "pre#2", "pre", "other"];
        let mut handlers: Vec<CountedHandler> = all.iter().map(handler).collect();
        keep_wanted(&mut handlers, &BTreeSet::from(["pre".to_owned()]), &module);
        let kept: Vec<&str> = handlers.iter().map(|it| &*it.name).collect();
        assert_eq!(kept, all[..5]);
    }
}
