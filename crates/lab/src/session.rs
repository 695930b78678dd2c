//! Default handlers, loads and repetitions of a gate of two builds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use profiler_base::text::{listed, plural};
use profiler_load::BuiltinKind;
use profiler_load::profile::LoadProfile;
use profiler_recording::{Meter, Recording};
use profiler_verdict::{HandlerRule, Limit, Limits, MOST_PLACEMENTS, Statistic};

use super::changed::Changed;
use super::exact::plain;
use super::plan::{Job, RunSpec};
use super::registered::Registered;
use super::settings::{has_cost, is_slow, waits};

/// The loads that share a guest, in this order: those that run the same code of the kernel, which QEMU translates once then. `mount`
/// comes first, as it needs root, which the process of the others gives up; loads in which all need it have a guest of their own. A load of no list has a guest of its own. General loads share
/// one with general loads alone, as they are always made: what comes before a load has to be the same in each run of it.
const TOGETHER: [&[BuiltinKind]; 8] = {
    use BuiltinKind as Of;
    [
        &[Of::Connect, Of::Bind, Of::UdpRecv, Of::Dns, Of::Accept],
        &[
            Of::Mount,
            Of::Open,
            Of::Rename,
            Of::Link,
            Of::Unlink,
            Of::Rmdir,
            Of::Write,
            Of::MemfdCreate,
            Of::Mprotect,
        ],
        &[Of::Prctl, Of::UpdateCred, Of::Kill, Of::Tkill, Of::Nanosleep, Of::Ptrace],
        &[Of::Setsid, Of::Exit, Of::Execve, Of::CallUsermodehelper],
        // All of them make calls of every kind.
        &[Of::Tcp, Of::Ipv6, Of::Errors, Of::Errors32],
        &[Of::Credentials, Of::Interface],
        // Without the driver there is no module to load: they are not counted then.
        &[Of::Module, Of::TextPoke],
        // Those that are not in a list above.
        BuiltinKind::GENERAL,
    ]
};

/// Calls that each run needs of a handler to judge it: fewer are calls of something beside the load.
const LEAST_CALLS: u64 = 20;

/// Operations of a run: two hundred calls for a TP99, and so many more that one that refills a cache or random
/// numbers does not move the average by half a percent, nor what waited for RCU that of an `accept` by a fifth of one.
const OPERATIONS: u64 = 400;

/// The same of loads that take a thousand times as long: all figures but TP99.
const OPERATIONS_IF_SLOW: u64 = 60;

/// The same of loads that start a process or a thread: an operation takes as long as twenty others, and 200 are enough for every
/// figure. And of general loads, which are judged by what an operation costs: a call that refills random numbers comes after at most
/// some fifty.
const OPERATIONS_IF_LONG: u64 = 200;

/// The same of the load that has the kernel patch its code. LKRG reads all of that code each time, which is 75 million instructions.
const OPERATIONS_IF_PATCHED: u64 = 1;

/// The number of the guest that a load is counted in, and its place there.
fn guest(kind: BuiltinKind) -> (usize, usize) {
    let mut shared = (0..).zip(TOGETHER.map(|group| group.iter().position(|it| *it == kind)));
    let place = shared.find_map(|(guest, place)| Some((guest, place?)));
    place.unwrap_or((TOGETHER.len() + kind as usize, 0))
}

/// A built-in load, and what load profiles use it for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Load {
    /// The load.
    pub(super) kind: BuiltinKind,
    /// The handlers that it is for, by name or glob.
    handlers: Vec<glob::Pattern>,
}

/// What is measured.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Session {
    /// The handlers, by name; none where they are known when they have run: BPF programs that a command loads.
    pub(super) handlers: BTreeSet<String>,
    /// What handlers the user asks for; none is all.
    wanted: Vec<glob::Pattern>,
    /// The loads, one after another.
    pub(super) loads: Vec<Load>,
    /// Parameters of the driver that turn on the hooks that loads are for.
    pub(super) module_params: String,
}

/// What the loads reached on a kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reach {
    /// The load that each handler is judged under, by the name of its runs.
    under: BTreeMap<String, String>,
    /// Handlers without a call.
    pub(super) unreached: Vec<String>,
    /// What is not judged, in words.
    pub(super) not_judged: Vec<String>,
    /// The same for the gate's rule.
    pub(super) rules: Vec<HandlerRule>,
}

impl Reach {
    /// Whether no handler is judged.
    pub(super) fn is_nothing(&self) -> bool {
        self.under.is_empty()
    }
}

impl Load {
    /// Whether a load profile names it for the handler.
    fn is_for(&self, handler: &str) -> bool {
        matches(&self.handlers, handler)
    }

    fn is_for_any(&self, handlers: &BTreeSet<String>) -> bool {
        handlers.iter().any(|name| self.is_for(name))
    }

    /// Operations of a run of it.
    fn operations(&self) -> u64 {
        match self.kind {
            BuiltinKind::Interface => OPERATIONS_IF_SLOW,
            BuiltinKind::Module => LEAST_CALLS,
            BuiltinKind::TextPoke => OPERATIONS_IF_PATCHED,
            _ if self.is_general() => OPERATIONS_IF_LONG,
            BuiltinKind::Execve | BuiltinKind::Setsid | BuiltinKind::Exit => OPERATIONS_IF_LONG,
            kind if is_slow(kind) => OPERATIONS_IF_SLOW,
            _ => OPERATIONS,
        }
    }

    /// Whether it is measured whatever the driver hooks.
    pub(super) fn is_general(&self) -> bool {
        BuiltinKind::GENERAL.contains(&self.kind)
    }
}

impl Session {
    /// Chooses for two builds of the driver `name`, from `profiles`; `wanted` narrows the handlers. Without a build handlers are
    /// what is counted.
    ///
    /// # Errors
    /// If there is no handler or no load.
    pub(super) fn choose(
        name: &str,
        builds: &[Registered],
        profiles: &[LoadProfile],
        wanted: &[glob::Pattern],
    ) -> Result<Self, String> {
        let functions: BTreeSet<String> =
            builds.iter().flat_map(|build| &build.functions).cloned().collect();
        let mut loads: Vec<Load> = Vec::new();
        let mut parameters: Vec<(BuiltinKind, &String)> = Vec::new();
        let mut is_known = false;
        for LoadProfile { modules, hook, .. } in profiles {
            let Some(builtin) = hook.builtin else { continue };
            is_known |= modules.iter().any(|module| module == name);
            parameters.extend(hook.parameter.iter().map(|parameter| (builtin.kind, parameter)));
            let patterns = hook.handlers.iter();
            let patterns = patterns.filter_map(|wanted| glob::Pattern::new(&wanted.name).ok());
            match loads.iter_mut().find(|load| load.kind == builtin.kind) {
                Some(load) => load.handlers.extend(patterns),
                None => loads.push(Load { kind: builtin.kind, handlers: patterns.collect() }),
            }
        }
        let unmatched = unmatched(wanted, &functions);
        let named = functions.into_iter().filter(|name| match wanted {
            [] => loads.iter().any(|load| load.is_for(name)),
            wanted => matches(wanted, name),
        });
        let mut handlers = BTreeSet::from_iter(named);
        if wanted.is_empty() {
            handlers.extend(builds.iter().flat_map(|build| &build.handlers).cloned());
        }
        if !builds.is_empty() && (handlers.is_empty() || !unmatched.is_empty()) {
            return Err(no_handler(name, &unmatched));
        }
        // A load that no profile names a handler of this driver for may still reach some, if the driver is unknown.
        let is_narrowed = is_known && loads.iter().any(|load| load.is_for_any(&handlers));
        if is_narrowed {
            loads.retain(|load| load.is_for_any(&handlers));
        }
        if loads.is_empty() {
            return Err("no load profile has a built-in load".to_owned());
        }
        // Who names handlers asks about these, and wants the answer in seconds.
        let all = wanted.is_empty() || !is_narrowed;
        for kind in BuiltinKind::GENERAL.iter().filter(|_| all) {
            // The module that is loaded is made from a driver's.
            let can_be_made = *kind != BuiltinKind::Module || !builds.is_empty();
            if can_be_made && !loads.iter().any(|load| load.kind == *kind) {
                loads.push(Load { kind: *kind, handlers: Vec::new() });
            }
        }
        // In one order, as each finds what those before it have left.
        loads.sort_by_key(|load| guest(load.kind));
        parameters.retain(|(kind, name)| {
            loads.iter().any(|load| load.kind == *kind)
                && !builds.is_empty()
                && builds.iter().all(|build| build.parameters.contains(*name))
        });
        let on: BTreeSet<String> = parameters.iter().map(|(_, name)| format!("{name}=1")).collect();
        let module_params = Vec::from_iter(on).join(" ");
        Ok(Self { handlers, wanted: wanted.to_vec(), loads, module_params })
    }

    /// These loads alone, whatever is installed.
    pub(super) fn of_loads(kinds: &[BuiltinKind]) -> Self {
        let loads = kinds.iter().map(|kind| Load { kind: *kind, handlers: Vec::new() });
        let mut loads: Vec<Load> = loads.collect();
        loads.sort_by_key(|load| guest(load.kind));
        Self { loads, ..Self::default() }
    }

    /// Leaves out the chosen parameters of these names, and adds the user's, in place of chosen ones of the same name.
    pub(super) fn with_parameters(
        mut self,
        left_out: &BTreeMap<String, String>,
        more: &str,
    ) -> Self {
        let more: Vec<&str> = more.split_ascii_whitespace().collect();
        let chosen = self.module_params.split_ascii_whitespace().filter(|set| {
            let name = parameter(set);
            !left_out.contains_key(name) && !more.iter().any(|new| parameter(new) == name)
        });
        self.module_params = chosen.chain(more.iter().copied()).collect::<Vec<_>>().join(" ");
        self
    }

    /// The same for the general loads and those that run what `changed`: those of each handler that may run one of these
    /// functions. All, if there is no such handler, or if none of the loads is for it.
    pub(super) fn only(&self, changed: &Changed) -> Self {
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut narrowed = Self { handlers: BTreeSet::new(), ..self.clone() };
        for handler in &self.handlers {
            let runs = changed.reached_from(handler);
            let new = changed.functions.iter().map(String::as_str);
            let before = new.filter(|name| runs.contains(name)).map(|name| reached.insert(name));
            narrowed.handlers.extend((before.count() > 0).then(|| handler.clone()));
        }
        if changed.rest
            || reached.len() < changed.functions.len()
            || narrowed.handlers.iter().any(|name| self.load_for(name).is_none())
        {
            return self.clone();
        }
        // What shares a guest is measured as a whole.
        let reached = narrowed.loads.iter().filter(|load| load.is_for_any(&narrowed.handlers));
        let guests: BTreeSet<usize> = reached.map(|load| guest(load.kind).0).collect();
        narrowed.loads.retain(|load| load.is_general() || guests.contains(&guest(load.kind).0));
        narrowed
    }

    /// Whether a job makes one of its loads.
    pub(super) fn has_load_of(&self, job: &Job) -> bool {
        self.loads.iter().any(|load| job.run.loads.contains(&load.kind))
    }

    /// Whether general loads are made.
    pub(super) fn has_general(&self) -> bool {
        self.loads.iter().any(Load::is_general)
    }

    /// The load that a load profile names for a handler, in words.
    pub(super) fn load_for(&self, handler: &str) -> Option<String> {
        let mut loads = self.loads.iter();
        let load = loads.find(|load| load.is_for(handler))?;
        Some(format!("the load {} is for it", load.kind.name()))
    }

    /// The runs each time that the driver is loaded; `kernel` is in their names where there are several.
    pub(super) fn work(&self, kernel: Option<&str>) -> Vec<Job> {
        let handlers = (!self.handlers.is_empty()).then(|| Arc::new(self.handlers.clone()));
        let jobs = self.loads.iter().map(|load| Job {
            part: Some(part(kernel, load.kind)),
            cost: has_cost(load.kind),
            guest: guest(load.kind).0 as u32,
            wanted: handlers.clone(),
            run: RunSpec::counted(vec![load.kind], load.operations()),
            ..Job::default()
        });
        jobs.collect()
    }

    /// The plan for a reader. On so many of the kernels baseline runs are `cached`, and so many have a snapshot.
    pub(super) fn text(&self, kernels: &[&str], cached: usize, snapshots: usize) -> String {
        let [loads, general] = [false, true].map(|general| -> Vec<&str> {
            let loads = self.loads.iter().filter(|load| load.is_general() == general);
            loads.map(|load| load.kind.name()).collect()
        });
        let with = match self.module_params.as_str() {
            "" => String::new(),
            params => format!("driver    loaded with {params}\n"),
        };
        let kept = match cached {
            0 => String::new(),
            _ if cached == kernels.len() => {
                "baseline  measured before, from the cache\n".to_owned()
            }
            _ => {
                format!("baseline  measured before on {cached} of these kernels, from the cache\n")
            }
        };
        let general = match general.as_slice() {
            [] => "none, as --handler names handlers".to_owned(),
            general => format!("{}: {}", general.len(), general.join(", ")),
        };
        let boots = kernels.len() - snapshots;
        let booted = match boots {
            0 => String::new(),
            _ => format!(", with {boots} boot{} for a snapshot", plural(boots)),
        };
        let kinds: Vec<BuiltinKind> = self.loads.iter().map(|load| load.kind).collect();
        let guests: BTreeSet<usize> = kinds.iter().map(|kind| guest(*kind).0).collect();
        let sides = 2 * kernels.len() - cached;
        let handlers = match self.handlers.len() {
            0 => "all that are installed".to_owned(),
            count => format!("{count}: {}", listed(&Vec::from_iter(&self.handlers))),
        };
        format!(
            "kernel    {}\n{kept}handlers  {handlers}\n{with}loads     {}: {}\n\
             general   {general}\n\
             runs      {} in {} guest{} restored from snapshots{booted}: every build under every load in one placement; \
             loads under which the builds differ in up to {MOST_PLACEMENTS} placements\n",
            kernels.join(", "),
            loads.len(),
            loads.join(", "),
            kinds.len() * sides,
            guests.len() * sides,
            plural(guests.len() * sides),
        )
    }

    /// The handlers as the runs name them: several of one name have numbers. One that no run has is as it was chosen.
    fn found(&self, base: &[Recording], candidate: &[Recording]) -> BTreeSet<String> {
        let handlers = base.iter().chain(candidate).flat_map(|run| &run.handlers);
        let named = handlers.map(|it| (plain(&it.name), &it.name));
        let wanted = named.filter(|(plain, _)| match self.handlers.is_empty() {
            true => self.wanted.is_empty() || matches(&self.wanted, plain),
            false => self.handlers.contains(*plain),
        });
        let (plain, mut found): (BTreeSet<&str>, BTreeSet<String>) =
            wanted.map(|(plain, name)| (plain, name.clone())).unzip();
        let not_found = self.handlers.iter().filter(|name| !plain.contains(name.as_str()));
        found.extend(not_found.cloned());
        found
    }

    /// What the user asks for that is no handler of these runs, where handlers are known when they have run.
    pub(super) fn not_found(&self, base: &[Recording], candidate: &[Recording]) -> Vec<&str> {
        let handlers = base.iter().chain(candidate).flat_map(|run| &run.handlers);
        let names = handlers.map(|handler| plain(&handler.name).to_owned()).collect();
        let wanted = if self.handlers.is_empty() { &self.wanted[..] } else { &[] };
        unmatched(wanted, &names)
    }

    /// Leaves each handler to the one load that reaches it best, and says what is not judged.
    pub(super) fn reach(
        &self,
        kernel: Option<&str>,
        base: &[Recording],
        candidate: &[Recording],
    ) -> Reach {
        let mut reach = Reach::default();
        let mut off: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for handler in &self.found(base, candidate) {
            let shown = kernel.map_or(handler.clone(), |of| format!("{handler} on {of}"));
            let loads = self.loads.iter().map(|load| {
                let name = part(kernel, load.kind);
                let calls = [base, candidate].map(|runs| fewest_calls(runs, &name, handler));
                // Its averages are not judged.
                let is_alone = !waits(load.kind);
                let is_for = (is_alone, load.is_for(plain(handler)));
                (calls[0].max(calls[1]), is_for, calls, name)
            });
            let loads: Vec<_> = loads.collect();
            let best = loads
                .iter()
                .filter(|(most, ..)| *most >= LEAST_CALLS)
                .max_by_key(|(most, is_for, ..)| (*is_for, *most));
            let Some((most, (is_alone, _), calls, name)) = best else {
                match loads.iter().any(|(most, ..)| *most > 0) {
                    true => off.entry("all figures".to_owned()).or_default().push(shown),
                    false => reach.unreached.push(shown),
                }
                continue;
            };
            reach.under.insert(handler.clone(), name.clone());
            // A build that never calls it has no figures to judge.
            let fewest = calls.iter().copied().filter(|calls| *calls > 0).min().unwrap_or(*most);
            let mut limits = Limits::default();
            // Beside other threads: an allocation or a random number that is refilled once more moves the average of 100 calls.
            for statistic in Statistic::GATED {
                let is_average = statistic == Statistic::Avg;
                if statistic.calls_needed(Meter::Exact) > fewest || (is_average && !is_alone) {
                    limits.0.insert(statistic, Limit::Off);
                    off.entry(statistic.to_string()).or_default().push(shown.clone());
                }
            }
            if let (true, Ok(pattern)) =
                (limits != Limits::default(), glob::Pattern::new(&glob::Pattern::escape(handler)))
            {
                reach.rules.push(HandlerRule { pattern, limits, floor: None });
            }
        }
        let not_judged = off.iter().map(|(figure, handlers)| {
            let (count, names) = (handlers.len(), listed(handlers));
            format!("{figure} of {count} handler{} ({names})", plural(count))
        });
        reach.not_judged = not_judged.collect();
        reach
    }
}

impl Reach {
    /// Leaves in `runs` the handlers that are judged there. A run stays where the other build has one to judge, as this one's may
    /// have vanished.
    pub(super) fn keep(&self, runs: &mut Vec<Recording>) {
        for run in &mut *runs {
            let name = run.part().map(str::to_owned);
            run.handlers.retain(|handler| self.under.get(&handler.name) == name.as_ref());
            run.warnings.clear();
            run.warn();
        }
        runs.retain(|run| {
            self.under.values().any(|part| run.part() == Some(part)) || !run.driver_costs.is_empty()
        });
    }
}

/// The name of a parameter that is set.
fn parameter(set: &str) -> &str {
    set.split('=').next().unwrap_or_default()
}

fn matches(patterns: &[glob::Pattern], name: &str) -> bool {
    patterns.iter().any(|one| one.matches(name))
}

/// The name of the runs of a load.
fn part(kernel: Option<&str>, kind: BuiltinKind) -> String {
    kernel.map_or(kind.name().to_owned(), |kernel| format!("{kernel}, {}", kind.name()))
}

/// Calls of a handler in the run with the fewest, of those of a part.
fn fewest_calls(runs: &[Recording], part: &str, handler: &str) -> u64 {
    let calls = runs.iter().filter(|run| run.part() == Some(part)).map(|run| {
        run.handlers.iter().filter(|found| found.name == handler).map(|found| found.count).sum()
    });
    calls.min().unwrap_or(0)
}

/// Those of the patterns of which none of these is a name.
fn unmatched<'a>(wanted: &'a [glob::Pattern], names: &BTreeSet<String>) -> Vec<&'a str> {
    let unmatched = wanted.iter().filter(|one| !names.iter().any(|name| one.matches(name)));
    unmatched.map(glob::Pattern::as_str).collect()
}

fn no_handler(name: &str, unmatched: &[&str]) -> String {
    match unmatched {
        [] => format!(
            "no function of {name} is given to the kernel: is it stripped of its symbols? Name handlers of the kernel \
             to `profiler lab` instead"
        ),
        whose => format!("neither build of {name} has a function `{}`", listed(whose)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::{Calls, Counts, Function};
    use crate::exact;
    use crate::lines::Lines;
    use crate::plan::CountedHandler;
    use crate::symbols::Symbols;
    use profiler_export::verdict::{Evidence, GateReport};
    use profiler_load::profile::Library;
    use profiler_recording::{CallTree, SeriesPosition};
    use profiler_tests::recording::runs;
    use profiler_verdict::{Outcome, Run};

    fn profiles() -> Vec<LoadProfile> {
        let listed = Library::default().list().unwrap();
        listed.into_iter().map(|listed| listed.profile.unwrap()).collect()
    }

    fn build(handlers: &[&str], parameters: &[&str]) -> Registered {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Registered {
            handlers: set(handlers),
            functions: set(&[handlers, &["helper", "ptrace_pre_handler"]].concat()),
            parameters: set(parameters),
        }
    }

    /// The loads that handlers have chosen.
    fn kinds(session: &Session) -> Vec<&'static str> {
        let chosen = session.loads.iter().filter(|load| !load.is_general());
        chosen.map(|load| load.kind.name()).collect()
    }

    fn wanted(glob: &str) -> Vec<glob::Pattern> {
        vec![glob::Pattern::new(glob).unwrap()]
    }

    #[test]
    fn a_known_driver_gets_the_loads_of_its_handlers() {
        let old = build(&["bind_handler", "mprotect_pre_handler"], &["MPROTECT_HOOK", "EXIT_HOOK"]);
        let new = build(&["bind_handler", "exit_pre_handler"], &["MPROTECT_HOOK"]);
        let of = |wanted: &[glob::Pattern]| {
            Session::choose("hids_driver", &[old.clone(), new.clone()], &profiles(), wanted)
        };
        let session = of(&[]).unwrap();
        let expected =
            ["bind_handler", "exit_pre_handler", "mprotect_pre_handler", "ptrace_pre_handler"];
        assert_eq!(Vec::from_iter(&session.handlers), expected);
        assert_eq!(kinds(&session), ["bind", "mprotect", "ptrace", "exit"]);
        assert_eq!(session.module_params, "MPROTECT_HOOK=1", "only one build has EXIT_HOOK");
        let with = |more| session.clone().with_parameters(&BTreeMap::new(), more).module_params;
        assert_eq!(with(" MPROTECT_HOOK=0 X=1"), "MPROTECT_HOOK=0 X=1");
        assert_eq!(
            (with("X=1"), with("")),
            ("MPROTECT_HOOK=1 X=1".into(), "MPROTECT_HOOK=1".into())
        );
        // A default that changed is the change, whatever a load profile says.
        let flipped = BTreeMap::from([("MPROTECT_HOOK".to_owned(), String::new())]);
        assert_eq!(session.clone().with_parameters(&flipped, "").module_params, "");
        let narrow = of(&wanted("bind_*")).unwrap();
        assert_eq!((kinds(&narrow), narrow.handlers.len()), (vec!["bind"], 1));
        assert!(!narrow.has_general(), "they are about all handlers");
        assert!(narrow.text(&["6.1"], 0, 0).contains("general   none, as --handler"));
        // General loads are made whatever the driver hooks.
        let work = session.work(None);
        let guests: Vec<Vec<&str>> = work
            .chunk_by(|one, next| one.guest == next.guest)
            .map(|jobs| jobs.iter().filter_map(|job| job.part.as_deref()).collect())
            .collect();
        assert_eq!(guests[..2], [vec!["bind"], vec!["mprotect"]]);
        assert_eq!(guests[4], ["tcp", "ipv6", "errors", "errors32"]);
        assert_eq!(guests[5], ["credentials", "interface"]);
        assert_eq!(guests[6], ["module", "text-poke"]);
        assert_eq!((guests.len(), guests[7][0], guests[7].len()), (8, "getppid", 10));
        assert_eq!(work.len(), 4 + BuiltinKind::GENERAL.len());
        let missing = of(&wanted("nothing")).unwrap_err();
        assert_eq!(missing, "neither build of hids_driver has a function `nothing`");
        let typo = of(&[wanted("bind_*"), wanted("exceve_*")].concat()).unwrap_err();
        assert_eq!(typo, "neither build of hids_driver has a function `exceve_*`");
    }

    #[test]
    fn an_unknown_driver_gets_every_load() {
        let build = build(&["my_bind_hook"], &[]);
        let session = Session::choose("mine", &[build.clone(), build], &profiles(), &[]).unwrap();
        assert_eq!(kinds(&session).len(), 24);
        assert_eq!(session.work(None).len(), 24 + BuiltinKind::GENERAL.len());
        let none = Session::choose("mine", &[Registered::default()], &profiles(), &[]);
        assert!(none.unwrap_err().contains("stripped"));
    }

    /// Which handlers there are is known when they have run.
    #[test]
    fn an_agent_gets_every_load_and_its_handlers_are_those_that_ran() {
        let pattern = glob::Pattern::new("on_*").unwrap();
        let session = Session::choose("bpf", &[], &profiles(), &[pattern]).unwrap();
        assert_eq!((kinds(&session).len(), session.module_params.as_str()), (24, ""));
        assert!(session.work(None).iter().all(|job| job.wanted.is_none()));
        assert!(session.text(&["6.1"], 0, 1).contains("handlers  all that are installed\n"));
        let run = || {
            vec![measured(BuiltinKind::Bind, &[("on_bind", 300), ("on_x/sub", 0), ("other", 9)])]
        };
        let reach = session.reach(None, &run(), &run());
        assert_eq!(reach.unreached, ["on_x/sub"]);
        assert_eq!(Vec::from_iter(reach.under.keys()), ["on_bind"]);
        assert!(session.not_found(&run(), &run()).is_empty());
        assert_eq!(session.not_found(&run()[..0], &[]), ["on_*"]);
    }

    #[test]
    fn only_loads_of_handlers_that_run_what_changed_are_left() {
        let names = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let build = build(&["bind_handler", "exit_pre_handler", "unknown_hook"], &[]);
        let all = Session::choose("hids_driver", &[build], &profiles(), &[]).unwrap();
        let only = |functions: &[&str], rest| {
            let calls = [("bind_handler", "helper"), ("unknown_hook", "other"), ("helper", "leaf")];
            let calls = calls.map(|(by, called)| (by.to_owned(), names(&[called])));
            let functions = names(functions);
            let narrowed = all.only(&Changed { functions, rest, calls: BTreeMap::from(calls) });
            for load in &narrowed.loads {
                let beside = |of: &Session| -> Vec<BuiltinKind> {
                    let loads = of.loads.iter().map(|load| load.kind);
                    loads.filter(|kind| guest(*kind).0 == guest(load.kind).0).collect()
                };
                assert_eq!(beside(&narrowed), beside(&all), "a guest is measured as a whole");
            }
            narrowed
        };
        let leaf = only(&["leaf"], false);
        assert_eq!(leaf.loads.len(), 1 + BuiltinKind::GENERAL.len());
        assert_eq!((kinds(&leaf), leaf.handlers), (vec!["bind"], names(&["bind_handler"])));
        assert_eq!(kinds(&only(&["leaf", "exit_pre_handler"], false)), ["bind", "exit"]);
        for (functions, rest, why) in [
            (&["leaf"][..], true, "data that no function refers to"),
            (&["leaf", "other"], false, "a handler without a load"),
            (&["leaf", "uncalled"], false, "a function that no handler runs"),
        ] {
            assert_eq!(only(functions, rest), all, "{why}");
        }
    }

    #[test]
    fn the_plan_names_what_is_known() {
        let build = build(&["my_bind_hook"], &[]);
        let session = Session::choose("mine", &[build.clone(), build], &profiles(), &[]).unwrap();
        let text = |cached, snapshots| session.text(&["6.1", "6.12"], cached, snapshots);
        assert!(
            text(0, 0).contains("runs      168 in 32 guests")
                && text(0, 0).contains("with 2 boots")
        );
        assert!(!text(0, 2).contains("cache") && !text(0, 2).contains("boot"));
        assert!(
            text(1, 1).contains("on 1 of these kernels")
                && text(1, 1).contains("runs      126 in 24 guests")
        );
        assert!(
            text(2, 2).contains("measured before, from")
                && text(2, 2).contains("runs      84 in 16 guests")
        );
    }

    /// A run under a load, with these calls of handlers.
    fn measured(kind: BuiltinKind, calls: &[(&str, u64)]) -> Recording {
        let mut counts = Counts::default();
        let mut handlers = Vec::new();
        for (number, (name, calls)) in (1_u32..).zip(calls) {
            let of_driver = Function {
                address: u64::from(number),
                name: (*name).to_owned(),
                module: Some("d".to_owned()),
            };
            counts.functions.insert(number, of_driver);
            let each = vec![(9, *calls)];
            let (entered, ended, own) = (*calls, *calls, each.clone());
            let calls = Calls { entered, ended, own, inclusive: each, ..Calls::default() };
            counts.calls.insert(number, calls);
            handlers.push(CountedHandler {
                name: (*name).to_owned(),
                module: Some("d".to_owned()),
                by_glob: true,
                address: u64::from(number),
            });
        }
        let mut run = runs(&[CallTree::default()]).remove(0);
        exact::fill(&mut run, &counts, handlers, &Lines::default(), &Symbols::default()).unwrap();
        run.place = Some(SeriesPosition { boot: 0, order: 0, part: Some(part(None, kind)) });
        run
    }

    #[test]
    fn each_handler_is_left_to_the_load_that_reaches_it_best() {
        let names = ["bind_handler", "execve_handler", "exit_handler", "rare", "never"];
        let build = build(&names, &[]);
        let session = Session::choose("mine", &[build.clone(), build], &profiles(), &[]).unwrap();
        let side = |execves: u64| {
            vec![
                measured(BuiltinKind::Bind, &[("bind_handler", 999), ("rare", 19), ("never", 0)]),
                measured(
                    BuiltinKind::Execve,
                    &[("execve_handler", execves), ("exit_handler", 500), ("bind_handler", 2_000)],
                ),
                measured(BuiltinKind::Mount, &[("exit_handler", 400)]),
            ]
        };
        let (base, candidate) = (side(60), side(59));
        let reach = session.reach(None, &base, &candidate);
        assert_eq!(reach.unreached, ["never", "ptrace_pre_handler"]);
        let expected = ["all figures of 1 handler (rare)", "tp99 of 1 handler (execve_handler)"];
        assert_eq!(reach.not_judged, expected);
        assert_eq!(reach.rules.len(), 1);
        assert_eq!(reach.rules[0].limits.get(Statistic::Tp99), Some(Limit::Off));
        assert_eq!(reach.rules[0].limits.get(Statistic::Tp95), None);
        for mut side in [base, candidate] {
            reach.keep(&mut side);
            let kept: Vec<Vec<&str>> = side
                .iter()
                .map(|run| run.handlers.iter().map(|handler| &*handler.name).collect())
                .collect();
            // A profile names bind_handler for the load bind, and mount has nothing left.
            assert_eq!(kept, [vec!["bind_handler"], vec!["execve_handler", "exit_handler"]]);
            side.iter().for_each(|run| run.check().unwrap());
        }
    }

    #[test]
    fn averages_beside_other_threads_are_not_judged() {
        let build = build(&["hook"], &[]);
        let session = Session::choose("mine", &[build.clone(), build], &profiles(), &[]).unwrap();
        let off = |kind| {
            let runs = vec![measured(kind, &[("hook", 300)])];
            let reach = session.reach(None, &runs, &runs);
            reach.not_judged.iter().find(|text| text.ends_with("(hook)")).cloned()
        };
        assert_eq!(off(BuiltinKind::Interface).unwrap(), "avg of 1 handler (hook)");
        assert_eq!(off(BuiltinKind::Credentials), None);
        let jobs = session.work(None);
        let cost =
            |name: &str| jobs.iter().find(|job| job.part.as_deref() == Some(name)).unwrap().cost;
        assert!(!cost("interface") && cost("credentials"));
        for load in ["execve", "fork", "exit", "setsid", "accept", "mount", "getppid"] {
            assert!(cost(load), "an operation of {load} is judged");
        }
    }

    /// Each file of a driver may have a static function of one name: a number tells them apart.
    #[test]
    fn handlers_of_one_name_are_reached_and_kept_each() {
        let build = build(&["hook"], &[]);
        let session = Session::choose("mine", &[build.clone(), build], &profiles(), &[]).unwrap();
        let calls = [("hook#1", 300), ("hook#2", 60), ("hook#3", 0)];
        let mut sides = [(); 2].map(|()| vec![measured(BuiltinKind::Bind, &calls)]);
        let reach = session.reach(None, &sides[0], &sides[1]);
        assert_eq!(reach.unreached, ["hook#3", "ptrace_pre_handler"]);
        assert_eq!(reach.not_judged, ["tp99 of 1 handler (hook#2)"], "60 calls of one of them");
        let [rule] = &reach.rules[..] else { panic!("{:?}", reach.rules) };
        assert!(rule.pattern.matches("hook#2") && !rule.pattern.matches("hook#1"));
        for side in &mut sides {
            reach.keep(side);
            let kept: Vec<&str> = side[0].handlers.iter().map(|it| &*it.name).collect();
            assert_eq!(kept, ["hook#1", "hook#2"]);
        }
    }

    #[test]
    fn a_handler_that_one_build_never_calls_is_kept() {
        let build = build(&["bind_handler"], &[]);
        let session = Session::choose("mine", &[build], &profiles(), &[]).unwrap();
        let mut sides =
            [1_000, 0].map(|calls| vec![measured(BuiltinKind::Bind, &[("bind_handler", calls)])]);
        let reach = session.reach(None, &sides[0], &sides[1]);
        sides.iter_mut().for_each(|side| reach.keep(side));
        assert_eq!(sides.map(|side| side.len()), [1, 1]);
        assert_eq!((reach.not_judged.len(), reach.rules.len()), (0, 0));
        // Nor is one that vanished with the only handler of a load without a cost passed over.
        let [mut base, mut candidate] = [&[("bind_handler", 1_000)][..], &[]]
            .map(|calls| vec![measured(BuiltinKind::Interface, calls)]);
        let reach = session.reach(None, &base, &candidate);
        [&mut base, &mut candidate].into_iter().for_each(|side| reach.keep(side));
        let runs = [base, candidate].map(|side| {
            let run = |recording| Run { name: String::new(), recording };
            side.into_iter().map(run).collect::<Vec<_>>()
        });
        let report = GateReport::of(&Evidence { runs, ..Evidence::default() });
        assert_eq!(report.outcome, Outcome::Inconclusive, "{report:?}");
    }
}
