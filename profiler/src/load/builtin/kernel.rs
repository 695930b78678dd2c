//! Operations that change the running kernel: for a guest that ends with them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::kmod::{DeleteModuleFlags, delete_module, init_module};

use super::worker::{NewWorker, failed, simple, unavailable};
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
    let file = load.module.as_ref().ok_or(
        "only the lab has a module to load (--agent alone has none); elsewhere a command can: \
         -- sh -c 'insmod FILE.ko; rmmod NAME'",
    )?;
    let bytes = fs::read(file).map_err(unavailable(file.to_string_lossy()))?;
    simple(move |_| {
        init_module(&bytes, c"").map_err(failed("load a module"))?;
        delete_module(MODULE, DeleteModuleFlags::O_NONBLOCK).map_err(failed("unload the module"))
    })
}

/// Has the kernel patch its code, there and back every other time: for a static key, a tracepoint (which is a static call where the architecture has them), and
/// the entry of a function that is traced. What this kernel lacks is left out.
pub(super) fn text_poke(load: &BuiltinLoad) -> NewWorker {
    if load.remover != Remover::Nothing {
        return Err("it changes the kernel's code, so it runs in the lab's guest alone".to_owned());
    }
    let instance = Path::new(TRACEFS).join("instances/profiler-load");
    let has_tracer = match fs::create_dir(&instance) {
        Ok(()) => write(&instance.join("set_ftrace_filter"), TRACED).is_ok(),
        Err(_) => instance.is_dir(),
    };
    let mut switches = vec![
        ("/proc/sys/kernel/sched_schedstats".into(), ["0", "1"]),
        // The value that it has: the other would take kprobes off.
        ("/proc/sys/kernel/ftrace_enabled".into(), ["1", "1"]),
        (instance.join(EVENT), ["0", "1"]),
    ];
    if has_tracer {
        switches.push((instance.join("current_tracer"), ["nop", "function"]));
    }
    switches.retain(|(path, _): &(PathBuf, _)| path.exists());
    if switches.is_empty() {
        return Err("this kernel has neither scheduler statistics nor ftrace".to_owned());
    }
    let mut on = false;
    simple(move |_| {
        on = !on;
        switches.iter().try_for_each(|(path, values)| {
            let value = values[usize::from(on)];
            write(path, value).map_err(failed(format!("write {value} to {}", path.display())))
        })
    })
}

/// Writes to a file that is there.
fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::File::options()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
}
