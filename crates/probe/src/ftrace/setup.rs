//! Sets up the tracer. It is used only if no other tool is using it.

use std::fs;
use std::path::Path;
use std::time::Instant;

use profiler_base::limits;
use profiler_kernel::host::{self, read_fact};
use profiler_kernel::target::Target;

use super::journal::{Journal, PATIENCE, patiently};
use super::tracefs::{CURRENT, Folder, TRACER, stat};
use super::{filter, users};
use crate::life::Life;
use crate::{OTHER_FILES, Options, ProbeError, errno::Doing as _};

/// All buffers together take at most this fraction of the machine's memory: 1 / 32.
const MEMORY_SHARE: u64 = 32;
/// Room for about 100,000 calls on a CPU: more than it makes between two reads.
const BUFFER_KIB: u64 = 8192;
/// The least that lets the reader keep up.
const BUFFER_LEAST_KIB: u64 = 256;

/// Switches that change what is measured or lost, and what they have to be.
const SWITCHES: [(&str, &str); 9] = [
    // A full buffer drops new events, not old ones. Each dropped event is then a call that was not seen, or
    // a missing exit, and can be counted.
    ("overwrite", "0"),
    // The time in which a call sleeps counts, as with BPF backends.
    ("sleep-time", "1"),
    // The time of its callees counts, too.
    ("graph-time", "1"),
    // Calls from interrupts count.
    ("funcgraph-irqs", "1"),
    // Not read, and each costs time in every event.
    ("funcgraph-args", "0"),
    ("funcgraph-retaddr", "0"),
    ("stacktrace", "0"),
    ("userstacktrace", "0"),
    ("record-tgid", "0"),
];

/// Those of them that older kernels have once for all instances.
const GLOBAL_SWITCHES: [&str; 3] = ["sleep-time", "graph-time", "funcgraph-irqs"];

/// The one that a call tree has otherwise: what an interrupt runs is no callee of the function that it fell into.
const IRQS: &str = "funcgraph-irqs";

/// Clocks of a machine by which any two CPUs agree, so that the tracer's cheapest clock, which reads the
/// same counter, does as well.
const COHERENT: [&str; 2] = ["tsc", "arch_sys_counter"];

/// The machine's clock.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The set-up of tracefs. Dropping it restores every setting.
#[derive(Debug)]
pub(super) struct Tracing {
    journal: Journal,
    /// Where the tracer runs.
    pub(super) place: Folder,
    /// The CPUs that have a buffer, and whether they run.
    pub(super) cpus: Vec<(u32, bool)>,
    /// Bytes of all buffers.
    pub(super) buffer_bytes: u64,
    /// Events and calls are timed by the same clock.
    pub(super) coherent: bool,
}

impl Tracing {
    /// Sets up everything for handlers at these places in the kernel's list, without starting the tracer.
    ///
    /// # Errors
    /// When tracefs is in use, or refuses a setting. Then nothing stays changed.
    pub(super) fn prepare(
        top: &Folder,
        targets: &[Target],
        places: &[usize],
        options: Options,
    ) -> Result<Self, ProbeError> {
        let (mut journal, recovered) = Journal::begin(Path::new("/"))?;
        if let Some(recovered) = recovered {
            profiler_base::terminal::say(&recovered.to_string());
        }
        check_global(top)?;
        if options.call_tree {
            check_alone(top)?;
        }
        if !options.allow_shared {
            users::refuse_foreign(top, targets)?;
        }
        let instance = instance(&mut journal, top)?;
        let is_instance = instance.is_some();
        if !is_instance {
            check_free(top)?;
        }
        let place = instance.unwrap_or_else(|| top.clone());
        let cpus = cpus(&place)?;
        // One for each CPU's buffer, and what else a run opens.
        limits::raise_open_files(cpus.len() + OTHER_FILES);

        if options.call_tree {
            filter::within(&mut journal, top, targets)?;
        } else {
            filter::set(&mut journal, &place, targets, places)?;
        }
        for (switch, value) in SWITCHES {
            let value = if options.call_tree && switch == IRQS { "0" } else { value };
            set_if_there(&mut journal, &place, &format!("options/{switch}"), value)?;
            if is_instance && GLOBAL_SWITCHES.contains(&switch) {
                set_if_there(&mut journal, top, &format!("options/{switch}"), value)?;
            }
        }
        let coherent = clock(&mut journal, &place)?;
        let buffer_bytes = buffer(&mut journal, &place, &cpus, options.trace_buffer_kib)?;
        set_if_there(&mut journal, &place, "tracing_on", "1")?;
        let online = host::cpus("online").unwrap_or_default();
        let cpus = cpus.into_iter().map(|cpu| (cpu, online.contains(&cpu))).collect();
        Ok(Self { journal, place, cpus, buffer_bytes, coherent })
    }

    /// Starts the tracer.
    ///
    /// # Errors
    /// When the kernel does not.
    pub(super) fn start(&mut self) -> Result<(), ProbeError> {
        set_if_there(&mut self.journal, &self.place, CURRENT, TRACER)
    }

    /// Stops the writing of events; those in the buffers can still be read.
    ///
    /// # Errors
    /// When the kernel does not take it.
    pub(super) fn pause(&mut self) -> Result<(), ProbeError> {
        set_if_there(&mut self.journal, &self.place, "tracing_on", "0")
    }
}

/// An instance with a name of this process alone, if the kernel lets the tracer run in one: since Linux 6.11
/// (kernel commit c132be2c4fcc) the instance's list of tracers says so.
fn instance(journal: &mut Journal, top: &Folder) -> Result<Option<Folder>, ProbeError> {
    if !top.path("instances").is_dir() {
        return Ok(None);
    }
    let own = Life::this(Path::new("/"));
    let place = Folder(top.path(&format!("instances/profiler-{own}")));
    journal.instance(place.0.clone())?;
    let tracers = place.read("available_tracers")?;
    if tracers.split_whitespace().any(|tracer| tracer == TRACER)
        && place.path("set_ftrace_filter").exists()
    {
        return Ok(Some(place));
    }
    // Its line stays in the journal, and says of nothing that it has to go.
    let removed = patiently(Instant::now() + PATIENCE, &|| fs::remove_dir(&place.0));
    removed.doing(&format!("removing {}", place.0.display()))?;
    Ok(None)
}

/// Settings that limit every user of the tracer, also in instances, with their default values.
const GLOBAL: [(&str, &str); 4] = [
    ("max_graph_depth", "0"),
    ("tracing_thresh", "0"),
    ("set_graph_function", ""),
    ("set_graph_notrace", ""),
];

/// Settings of the top folder, which all tools share, with their default values.
const SHARED: [(&str, &str); 7] = [
    (CURRENT, "nop"),
    ("events/enable", "0"),
    ("function_profile_enabled", "0"),
    ("set_ftrace_filter", ""),
    ("set_ftrace_notrace", ""),
    ("set_ftrace_pid", ""),
    ("set_ftrace_notrace_pid", ""),
];

/// Refuses settings that limit every user of the tracer.
fn check_global(top: &Folder) -> Result<(), ProbeError> {
    let sysctl = Path::new("/proc/sys/kernel/ftrace_enabled");
    if read_fact(sysctl).is_some_and(|enabled| enabled == "0") {
        return Err(is_set(sysctl, "0", "sysctl kernel.ftrace_enabled=1"));
    }
    GLOBAL.iter().try_for_each(|(file, default)| expect(top, file, default))
}

/// What limits the tracer to a handler and its callees limits it for all tools: none may be using it now.
fn check_alone(top: &Folder) -> Result<(), ProbeError> {
    let instances = fs::read_dir(top.path("instances")).into_iter().flatten().flatten();
    let instances = instances.filter_map(|entry| entry.file_name().into_string().ok());
    let others = instances.map(|name| Folder(top.path(&format!("instances/{name}"))));
    for place in std::iter::once(top.clone()).chain(others) {
        if place.read_if_there(CURRENT)?.is_some_and(|tracer| tracer == TRACER) {
            expect(&place, CURRENT, "nop")?;
        }
    }
    Ok(())
}

/// All tools share the top folder: none may be using it now.
fn check_free(top: &Folder) -> Result<(), ProbeError> {
    SHARED.iter().try_for_each(|(file, default)| expect(top, file, default))?;
    let mask = top.read_if_there("tracing_cpumask")?.unwrap_or_default();
    let online = host::cpus("online").unwrap_or_default();
    if !mask.is_empty() && !online.into_iter().all(|cpu| covers(&mask, cpu)) {
        let file = top.path("tracing_cpumask");
        let remedy = format!("write a mask of all CPUs to {}", file.display());
        return Err(is_set(&file, &mask, &remedy));
    }
    for cpu in cpus(top)? {
        let stats = top.read(&format!("per_cpu/cpu{cpu}/stats"))?;
        if stat(&stats, "entries").is_some_and(|entries: u64| entries > 0) {
            let trace = top.path("trace");
            let remedy =
                format!("save what is needed of it, then empty it: echo > {}", trace.display());
            return Err(in_use(&format!("per_cpu/cpu{cpu} holds a recorded trace"), &remedy));
        }
    }
    Ok(())
}

/// Refuses a setting of another tool: any line but comments and the default value.
fn expect(folder: &Folder, file: &str, default: &str) -> Result<(), ProbeError> {
    let text = folder.read_if_there(file)?.unwrap_or_default();
    let mut set = text.lines().filter(|line| !line.starts_with('#'));
    let Some(line) = set.find(|line| !["", "no pid", default].contains(line)) else {
        return Ok(());
    };
    let path = folder.path(file);
    let remedy = format!("stop that tool, or: echo {default} > {}", path.display());
    Err(is_set(&path, line, &remedy))
}

fn is_set(file: &Path, is: &str, remedy: &str) -> ProbeError {
    in_use(&format!("{} is `{is}`", file.display()), remedy)
}

fn in_use(what: &str, remedy: &str) -> ProbeError {
    ProbeError::Other(format!(
        "the function_graph tracer cannot be used now: {what}; {remedy}, and try again"
    ))
}

/// Whether a mask of hexadecimal words, the highest first, has a CPU.
fn covers(mask: &str, cpu: u32) -> bool {
    let digits = mask.chars().rev().filter_map(|digit| digit.to_digit(16));
    digits.skip(cpu as usize / 4).take(1).any(|digit| digit >> (cpu % 4) & 1 == 1)
}

fn cpus(place: &Folder) -> Result<Vec<u32>, ProbeError> {
    let entries = fs::read_dir(place.path("per_cpu")).doing(&place.doing("reading", "per_cpu"))?;
    let mut cpus: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok())
        .collect();
    cpus.sort_unstable();
    Ok(cpus)
}

/// Sets a file, if this kernel has it and it has another value.
fn set_if_there(
    journal: &mut Journal,
    place: &Folder,
    file: &str,
    value: &str,
) -> Result<(), ProbeError> {
    match place.read_if_there(file)? {
        Some(was) if was != value => journal.set(place.path(file), &was, value),
        _ => Ok(()),
    }
}

/// Chooses the events' clock; returns whether calls are timed by the same clock.
fn clock(journal: &mut Journal, place: &Folder) -> Result<bool, ProbeError> {
    const FILE: &str = "trace_clock";
    let coherent = read_fact(Path::new(CLOCK_SOURCE))
        .is_some_and(|source| COHERENT.contains(&source.as_str()));
    let clocks = place.read(FILE)?;
    let was = clocks.split(['[', ']']).nth(1).unwrap_or("local").to_owned();
    let wanted = if coherent { "local" } else { "mono" };
    if was != wanted {
        journal.set(place.path(FILE), &was, wanted)?;
    }
    Ok(coherent)
}

/// Makes the buffers large enough for the load; returns the bytes of all together.
fn buffer(
    journal: &mut Journal,
    place: &Folder,
    cpus: &[u32],
    asked: Option<u64>,
) -> Result<u64, ProbeError> {
    const FILE: &str = "buffer_size_kb";
    let wanted = asked.unwrap_or_else(|| {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total: u64 = stat(&meminfo, "MemTotal").unwrap_or(0);
        (total / MEMORY_SHARE / cpus.len().max(1) as u64).clamp(BUFFER_LEAST_KIB, BUFFER_KIB)
    });
    // `X` is of CPUs whose buffers differ in size.
    let files = match place.read(FILE)?.as_str() {
        "X" => cpus.iter().map(|cpu| format!("per_cpu/cpu{cpu}/{FILE}")).collect(),
        _ => vec![FILE.to_owned()],
    };
    for file in files {
        let was = place.read(&file)?;
        journal.set(place.path(&file), size(&was), &wanted.to_string())?;
    }
    let total = place.read("buffer_total_size_kb")?;
    Ok(size(&total).parse::<u64>().unwrap_or(wanted * cpus.len() as u64) * 1024)
}

/// `1408`, or `7 (expanded: 1408)` if nothing has traced since the boot: the kernel enlarges the buffer for
/// its first user, and there is no way back to the small size.
fn size(text: &str) -> &str {
    match text.split_once("(expanded:") {
        Some((_, size)) => size.trim().trim_end_matches(')'),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_buffers() {
        assert_eq!(size("1408"), "1408");
        assert_eq!(size("7 (expanded: 1408)"), "1408");
    }

    #[test]
    fn masks_of_cpus() {
        assert!(covers("3", 0) && covers("3", 1) && !covers("3", 2) && !covers("3", 100));
        assert!(covers("1,00000000", 32) && !covers("1,00000000", 0));
        assert!(covers("ff,ffffffff", 39));
    }
}
