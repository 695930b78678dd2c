//! A real driver that is not the project's own: Falco's `scap`, out of Debian 12.
//!
//! Its probes hang on the kernel's system call tracepoints and call one function (a filler) for each
//! kind of event, so the counts of fillers are those of system calls.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo;
use crate::kbuild;
use crate::paths::Paths;
use crate::process;
use crate::series::Series;
use crate::setup::{self, Part};
use crate::vm::word;

/// Which system call of the loads calls which functions, as the loads count their calls.
const FILLERS: [(&str, &str, &str); 4] = [
    ("f_sys_openat_e", "open_create", "openat(2)"),
    ("f_sys_openat_x", "open_create", "openat(2)"),
    ("f_sys_connect_e", "connect", "connect(2)"),
    ("f_sys_connect_x", "connect", "connect(2)"),
];

/// The built-in loads.
const LOADS: &str = "open,connect";

/// Out of step with the timer, as in the other demo.
const RATE: &str = "97/s";

const DURATION: &str = "10s";

/// Calls that other programs of the guest may make meanwhile: a share of the load's own, and some. A
/// system of no more than a shell makes few.
const OTHERS_SHARE: f64 = 0.05;
const OTHERS: u64 = 100;

/// Runs the demo; gives the exit code of `profiler run`. Counts that cannot be are an error.
pub(super) fn run(paths: &Paths, series: Series) -> Result<i32> {
    if series != Series::V6_1 {
        bail!("Debian 12 has this driver for Linux 6.1: leave out --kernel, or say --kernel 6.1");
    }
    setup::ensure(paths, &[Part::Vm, Part::ModuleBuild, Part::Kernel(series), Part::ScapDriver])?;
    let profiler = cargo::build_profiler(paths)?;
    let module = build(paths, series, &profiler)?;
    let result = super::output(paths, "demo-scap")?.join("result.json");
    let consumer = paths.root().join("xtask/src/demo/scap_consumer.py");
    let script = script(&profiler, &module, &consumer, &result);
    let outcome = super::boot(paths, "demo-scap", series, &script)?;
    super::conclude(&outcome, &result)?;
    if outcome.code == 0 {
        let profile = process::read_json(&result)?;
        let events = events(&outcome.lines)?;
        println!("\n{:18} {:>8} {:>8}  system call", "function", "counted", "made");
        for filler in check(&profile)? {
            println!("{filler}");
        }
        println!("the driver itself counted {events} events of all kinds, and dropped none");
    }
    Ok(outcome.code)
}

/// The driver with BTF, built as its package would and prepared as a user would.
fn build(paths: &Paths, series: Series, profiler: &Path) -> Result<PathBuf> {
    let kernel = setup::kernel(paths, series)?;
    let _lock = setup::lock(paths)?;
    let folder = paths.target().join("scap");
    process::empty_dir(&folder)?;
    let source = folder.join("src");
    process::run(Command::new("cp").arg("-r").arg(setup::scap_source(paths)?).arg(&source))?;
    println!("demo: building Falco's driver for {}", kernel.release);
    kbuild::make_foreign(&kernel, &source, &folder.join("build.log"))?;
    let base = folder.join("vmlinux.btf");
    kbuild::extract_btf(&kernel, &base)?;
    let prepared = folder.join("scap.btf.ko");
    let mut prepare = Command::new(profiler);
    prepare.arg("prepare").arg(source.join("scap.ko")).arg("--btf").arg(base);
    process::run(prepare.arg("--output").arg(&prepared))?;
    Ok(prepared)
}

/// What runs in the guest. A pipe keeps the consumer's input open until the profiler is done.
fn script(profiler: &Path, module: &Path, consumer: &Path, result: &Path) -> String {
    let handlers: String = FILLERS.iter().map(|(name, ..)| format!(" --handler {name}")).collect();
    format!(
        "insmod {module} || exit\n\
         cp {profiler} /run/profiler-demo || exit\n\
         mkfifo /run/end || exit\n\
         python3 {consumer} </run/end >/run/consumer 2>&1 &\n\
         exec 9>/run/end\n\
         tries=0\n\
         until grep -q 'capture enabled' /run/consumer; do\n\
         tries=$((tries + 1))\n\
         if [ $tries = 300 ]; then cat /run/consumer; echo 'error: no capture'; exit 1; fi\n\
         sleep 0.1\n\
         done\n\
         /run/profiler-demo run --module scap{handlers} --builtin {LOADS} --rate {RATE} --load-dir /dev/shm \
         --duration {DURATION} --clock virtual --json {result}\n\
         code=$?\n\
         exec 9>&-\n\
         wait\n\
         cat /run/consumer\n\
         rmmod scap || exit\n\
         exit $code\n",
        module = word(module),
        profiler = word(profiler),
        consumer = word(consumer),
        result = word(result),
    )
}

/// Events that the driver says it recorded. A dropped one is a filler not called.
fn events(lines: &[String]) -> Result<u64> {
    let mut sum = 0;
    let mut rings = 0;
    for line in lines.iter().filter_map(|line| line.strip_prefix("scap: ring ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "events", events, "dropped", dropped] = words.as_slice() else {
            bail!("the consumer said `{line}`");
        };
        if *dropped != "0" {
            bail!("the driver dropped {dropped} events: its reader was too slow");
        }
        sum += events.parse::<u64>().with_context(|| format!("the consumer said `{line}`"))?;
        rings += 1;
    }
    if rings == 0 {
        bail!("the consumer of the driver's events said nothing");
    }
    Ok(sum)
}

/// Compares each filler's count with the system calls that the loads made; a line each.
fn check(profile: &Value) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for (name, field, call) in FILLERS {
        let handlers = profile["handlers"].as_array().context("no handlers in the profile")?;
        let handler = handlers.iter().find(|handler| handler["name"] == name);
        let handler = handler.with_context(|| format!("{name} is not in the profile"))?;
        let count = handler["count"].as_u64().with_context(|| format!("{name} has no count"))?;
        let loads = profile["loads"].as_array().context("no loads in the profile")?;
        let made = loads
            .iter()
            .map(|load| load["outcome"]["calls"][field].as_u64().unwrap_or(0))
            .sum::<u64>();
        let most = made + (made as f64 * OTHERS_SHARE) as u64 + OTHERS;
        if made == 0 {
            bail!("the loads made no {call}, so nothing is shown");
        }
        // The window ends with calls under way at most in each worker, and begins before the loads.
        let under_way = loads.len() as u64;
        if count + under_way < made || count > most {
            bail!("{name} was counted {count} times for {made} calls of {call}: {most} at most");
        }
        let lost = &handler["losses"]["lost"];
        if lost != 0 {
            bail!("{name}: {lost} calls were lost");
        }
        lines.push(format!("{name:18} {count:8} {made:8}  {call}"));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn profile(open: u64, connect: u64) -> Value {
        let handler =
            |name: &str, count: u64| json!({"name": name, "count": count, "losses": {"lost": 0}});
        json!({
            "handlers": [
                handler("f_sys_openat_e", open), handler("f_sys_openat_x", open),
                handler("f_sys_connect_e", connect), handler("f_sys_connect_x", connect),
            ],
            "loads": [
                {"outcome": {"calls": {"open_create": 900, "connect": 0}}},
                {"outcome": {"calls": {"open_create": 0, "connect": 1000}}},
            ],
        })
    }

    #[test]
    fn counts_are_those_of_the_system_calls() {
        assert_eq!(check(&profile(910, 1000)).unwrap().len(), 4);
        for (open, connect) in [(800, 1000), (0, 1000), (900, 500), (900, 1200), (2000, 1000)] {
            assert!(check(&profile(open, connect)).is_err(), "{open} {connect}");
        }
        let mut lossy = profile(910, 1000);
        lossy["handlers"][3]["losses"]["lost"] = json!(1);
        assert!(check(&lossy).is_err());
    }

    #[test]
    fn a_dropped_event_spoils_the_run() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let two = "x\nscap: ring 0: events 10 dropped 0\nscap: ring 1: events 5 dropped 0";
        assert_eq!(events(&lines(two)).unwrap(), 15);
        assert!(events(&lines("scap: ring 0: events 10 dropped 3")).is_err());
        assert!(events(&[]).is_err());
    }
}
