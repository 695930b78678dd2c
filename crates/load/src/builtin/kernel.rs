//! Operations that change the running kernel: for a guest that ends with them.

use std::fs;
use std::path::{Path, PathBuf};

use nix::kmod::{DeleteModuleFlags, delete_module, init_module};

use super::worker::{Doing as _, NewWorker, refused, simple};
use super::{BuiltinLoad, Remover};

/// Name of the module that the load `module` loads.
pub const MODULE: &std::ffi::CStr = c"profiler_load";

/// A function that is traced while nothing calls it; Linux has had it since 3.15.
const TRACED: &str = "vfs_fallocate";

/// A tracepoint that no load passes.
const EVENT: &str = "events/task/task_rename/enable";

const TRACEFS: &str = "/sys/kernel/tracing";

/// Loads and unloads a module of no code.
pub(super) fn module(load: &BuiltinLoad) -> NewWorker {
    let file = load.module.as_ref().ok_or_else(|| {
        refused(
            "only the lab has a module to load (--agent alone has none); elsewhere a command can: \
             -- sh -c 'insmod FILE.ko; rmmod NAME'",
        )
    })?;
    let bytes = fs::read(file).doing(file.display())?;
    simple(move || {
        init_module(&bytes, c"").doing("load a module")?;
        delete_module(MODULE, DeleteModuleFlags::O_NONBLOCK).doing("unload the module")
    })
}

/// Has the kernel patch its code there and back: for a static key, a tracepoint (which is a static call where the architecture has
/// them), and the entry of a function that is traced. Skips what this kernel lacks or a driver refuses.
pub(super) fn text_poke(load: &BuiltinLoad) -> NewWorker {
    if load.remover != Remover::Nothing {
        return Err(refused("it changes the kernel's code, so it runs in the lab's guest alone"));
    }
    let instance = Path::new(TRACEFS).join("instances/profiler-load");
    // The run before has made it.
    let _ = fs::create_dir(&instance);
    // Without a filter all functions would be traced.
    let has_tracer = fs::write(instance.join("set_ftrace_filter"), TRACED).is_ok();
    let mut switches = vec![
        ("/proc/sys/kernel/sched_schedstats".into(), ["1", "0"]),
        // The value that it has: the other would take kprobes off.
        ("/proc/sys/kernel/ftrace_enabled".into(), ["1", "1"]),
        (instance.join(EVENT), ["1", "0"]),
    ];
    if has_tracer {
        switches.push((instance.join("current_tracer"), ["function", "nop"]));
    }
    switches.retain(|(path, [_, off]): &(PathBuf, _)| fs::write(path, off).is_ok());
    if switches.is_empty() {
        return Err(refused("neither scheduler statistics nor ftrace can be switched"));
    }
    simple(move || {
        let mut writes = switches.iter().flat_map(|(path, values)| values.map(|to| (path, to)));
        writes.try_for_each(|(path, to)| {
            fs::write(path, to).doing(format_args!("write {to} to {}", path.display()))
        })
    })
}
