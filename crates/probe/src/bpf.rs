//! The backends that are BPF programs: they store each call's start and count its duration in the kernel.
//! `programs` has the programs of each backend, and attaches them.

use std::{
    collections::{HashMap, HashSet},
    io,
    mem::offset_of,
    ops::Range,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
            fence,
        },
    },
    time::{Duration, Instant},
};

use aya::maps::{HashMap as BpfHashMap, Map, MapData, MapError};
use nix::time::{ClockId, clock_gettime};

use profiler_base::limits;
use profiler_base::stats::Durations;
use profiler_common::{
    bucket::lowest_value,
    layout::{DISPLACED_MAX, PHASES, RecordHead, SLOTS_MAX, Slot},
};
use profiler_kernel::{
    btf::{BTF_FOLDER, Btf},
    host,
    target::Target,
};
use profiler_recording::Backend;

use super::{
    Attached, Books, Drained, OTHER_FILES, Options, Pair, ProbeError, Refused, Session, calibrate,
    counters::{self, Layout, Record},
    errno::{Doing as _, ENOTSUPP, in_words},
    kprobe_event::{self, Counted},
    memory::Available,
    missed::{self, HookCount},
    object::{self, Instance, Parameters, Template},
    programs::{self, Hook, Kind, Set, Side, Starts},
    sys::{self, AttachType, GracePeriod},
};

/// Probes of a BPF backend. They are removed when it is dropped, and when the process ends.
pub(super) struct BpfSession {
    probed: Vec<Probed>,
    backend: Backend,
    starts: Starts,
    /// Whether the kernel preempted tasks that run in the kernel when programs were loaded, which are for that.
    preempts: bool,
    /// A start and a CPU each.
    displaced: BpfHashMap<MapData, [u64; 2], [u64; 2]>,
    grace: GracePeriod,
    /// The phase that programs write to.
    phase: u32,
    /// Whether the other phase has still to be read.
    is_closed: bool,
    layout: Layout,
    /// The end of the time whose calls the last drain has.
    drained_until: Option<Instant>,
    /// When the entry probes had been removed.
    detached: Option<Instant>,
}

/// One handler with its programs and maps.
struct Probed {
    target: Target,
    /// Its index among the targets given; its programs have it as a constant.
    number: usize,
    /// Id of the BTF object or BPF program that holds the function, as links show it; 0 if it is not known.
    holder: u32,
    maps: Instance,
    programs: Vec<Program>,
    /// As of the last drain.
    books: Books,
    /// The slots as they were when the last three phases were closed, the oldest first.
    before: [Vec<Slot>; 3],
    /// What was read and not yet returned, because a later phase could not be read.
    pending: Option<Drained>,
    /// Starts that were left over and taken out of the shared maps.
    swept: u64,
}

/// A loaded program.
struct Program {
    kind: Kind,
    fd: OwnedFd,
    /// `None` before it is attached and after it was taken off.
    hook: Option<Hook>,
    /// What hooks had counted that were taken off.
    before: HookCount,
}

/// What the programs of all handlers are loaded with.
struct Loader {
    template: Template,
    set: Set,
    displaced: MapData,
    parameters: Parameters,
    modules: BtfObjects,
    /// The kernel's functions, where programs call them.
    kernel: Option<Arc<Btf>>,
}

impl Loader {
    fn new(targets: &[Target], backend: Backend, options: Options) -> Result<Self, ProbeError> {
        let Options { precision, pair, .. } = options;
        let kernel =
            programs::Kernel { exchanges: sys::has_exchange(), preempts: host::may_preempt() };
        let set = Set::of(backend, precision, pair, kernel);
        let template = Template::load()?;
        let (possible, online) = cpus()?;
        let handlers = targets.len().max(options.room_for) as u64;
        let layout = Layout::new(possible, online, precision);
        if let Some(available) = Available::read() {
            available.check(&layout, handlers)?;
        }
        // Only now: whether the kernel takes a value is tried with one of that size.
        let layout = layout.that_fits();
        let displaced = template.make_displaced()?;
        let traces = set.kinds.iter().any(|kind| kind.attach_type.is_tracing());
        let modules = if traces { btf_objects(targets)? } else { HashMap::new() };
        let preempts = kernel.preempts;
        let mut parameters = Parameters { preempts, exit_shift: 0, layout };
        if backend == Backend::Kprobe {
            kprobe_event::remove_leftovers();
            if pair == Pair::Measuring {
                parameters.exit_shift = calibrate::exit_shift(&template, &displaced, &parameters)?;
            }
        }
        // Programs that keep starts in cookies call functions of the kernel.
        let calls = set.starts == Starts::Cookies;
        let kernel = calls.then(|| Btf::of(None, Path::new(BTF_FOLDER)).ok()).flatten();
        Ok(Self { template, set, displaced, parameters, modules, kernel })
    }

    /// Makes a handler's maps and loads its programs; they are not attached yet.
    ///
    /// # Errors
    /// [`ProbeError::Handler`] when this handler cannot be measured; others are not about it.
    fn load(&self, number: usize, target: &Target) -> Result<Probed, ProbeError> {
        let Self { template, set, displaced, parameters, .. } = self;
        let (maps, code) =
            template.instantiate(number as u64, parameters, displaced, &set.kinds)?;
        let module = self.modules.get(&target.module).and_then(Option::as_ref);
        let opened = target.program.map(sys::program).transpose();
        let program = opened.doing(&format!(
            "opening the BPF program (was it unloaded meanwhile?) for handler {}",
            target.name
        ))?;
        // Without an object the kernel looks in its image.
        let of_module = module.filter(|_| target.module.is_some()).map(|(_, fd)| fd);
        let object = program.as_ref().or(of_module).map(|fd| fd.as_fd());
        let traced = (target.btf_id.unwrap_or_default(), object);
        let mut programs = Vec::new();
        for (kind, code) in set.kinds.iter().zip(code) {
            let fd = object::load(kind, code, &target.name, traced, self.kernel.as_deref())?;
            let before = Some(Counted::default());
            programs.push(Program { kind: kind.clone(), fd, hook: None, before });
        }
        let holder = target.program.or(module.map(|(id, _)| *id)).unwrap_or_default();
        // No program has run: what none of them counts is empty from the first drain on.
        let empty = slots(&parameters.layout, &maps);
        Ok(Probed {
            target: target.clone(),
            number,
            holder,
            maps,
            programs,
            books: Books::default(),
            before: [empty.clone(), empty.clone(), empty],
            pending: None,
            swept: 0,
        })
    }
}

impl BpfSession {
    /// Attaches the programs of `backend` to all targets that the kernel does not refuse: all exits first,
    /// so that no entry is counted whose exit is not.
    ///
    /// # Errors
    /// What is not about a single handler; when another tool is on one. Nothing stays attached.
    pub(super) fn attach_each(
        targets: &[Target],
        backend: Backend,
        options: Options,
    ) -> Result<Attached, ProbeError> {
        limits::raise_locked_memory();
        limits::raise_open_files(targets.len() * FILES_OF_A_HANDLER + OTHER_FILES);
        let loader = Loader::new(targets, backend, options)?;
        let mut probed = Vec::with_capacity(targets.len());
        let mut refused = Vec::new();
        for (number, target) in targets.iter().enumerate() {
            match loader.load(number, target) {
                Ok(loaded) => probed.push(loaded),
                Err(error @ ProbeError::Handler { .. }) => refused.push((number, error)),
                Err(error) => return Err(error),
            }
        }
        let Loader { set, displaced, parameters, .. } = loader;
        let displaced = BpfHashMap::try_from(Map::HashMap(displaced)).map_err(io::Error::other);
        let mut session = Self {
            probed,
            backend,
            starts: set.starts,
            preempts: parameters.preempts,
            displaced: displaced.doing("opening a shared map")?,
            grace: GracePeriod::new().doing("making the maps that show when no program runs")?,
            phase: 0,
            is_closed: false,
            layout: parameters.layout,
            drained_until: None,
            detached: None,
        };
        refused.extend(session.link(set.kinds.len()));
        if !options.allow_shared
            && let Some((handler, prog_id)) = session.foreign_program()?
        {
            return Err(ProbeError::Other(format!(
                "another tracing program (id {prog_id}) is attached to handler {handler}: its time would be \
                 counted as the handler's; stop the other tool (`bpftool link show` names it) or allow it \
                 with --allow-shared"
            )));
        }
        let any = !session.probed.is_empty();
        Ok((any.then(|| Box::new(session) as _), refused))
    }

    /// Attaches all programs of the first kind, then all of the next. Handlers that the kernel
    /// refuses are dropped.
    fn link(&mut self, kinds: usize) -> Vec<Refused> {
        let mut refused: Vec<Refused> = Vec::new();
        for number in 0..kinds {
            self.probed.retain_mut(|probed| {
                let program = &mut probed.programs[number];
                let Err(error) = program.attach(&probed.target) else { return true };
                let doing = match program.kind.side {
                    Side::Entry => "attaching the entry probe",
                    Side::Exit => "attaching the exit probe",
                    Side::Both => "attaching the probe",
                };
                refused.push((probed.number, failed(&probed.target, doing, &error)));
                false
            });
        }
        refused
    }

    /// Takes the programs off the handlers at `places`. Entries first, so that the exits of calls under way are still counted
    /// where the kernel runs them.
    fn take_off(&mut self, places: Range<usize>) {
        let all = places.len() == self.probed.len();
        for side in [Side::Entry, Side::Both, Side::Exit] {
            if side == Side::Exit && all {
                // From here on no entry is counted.
                self.detached.get_or_insert_with(Instant::now);
            }
            let mut programs: Vec<&mut Program> = self.probed[places.clone()]
                .iter_mut()
                .flat_map(|probed| &mut probed.programs)
                .filter(|program| program.kind.side == side)
                .collect();
            for program in &mut programs {
                if let Some(Hook::Event(event)) = &mut program.hook {
                    event.stop();
                }
            }
            let events = match self.backend {
                Backend::Kprobe => kprobe_event::profile().ok(),
                _ => None,
            };
            for program in programs {
                program.detach(events.as_ref());
            }
        }
        self.grace.wait();
    }

    /// Counts the calls of a handler without probes that are under way as lost: their exits will not be seen. A start that
    /// stayed would be taken by the exit of a later call with the same frame.
    fn give_up_starts(&mut self, place: usize) -> Result<(), ProbeError> {
        let displaced = self.displaced_keys()?;
        let probed = &mut self.probed[place];
        let slots = slots(&self.layout, &probed.maps);
        let mut given_up = 0;
        if self.starts == Starts::Cookies {
            let ended: u64 = slots.iter().map(|slot| slot.start + slot.lost).sum();
            given_up += entries(&slots).saturating_sub(ended + probed.swept);
        }
        // No program writes to them now.
        for slot in self.layout.slots_of(probed.maps.value.words()) {
            let frame = slot.get(offset_of!(Slot, frame) / 8);
            given_up += u64::from(frame.is_some_and(|frame| frame.swap(0, Relaxed) != 0));
        }
        probed.swept += given_up;
        let number = probed.number as u64;
        for key in displaced.iter().filter(|[_, handler]| *handler == number) {
            probed.swept += u64::from(self.displaced.remove(key).is_ok());
        }
        Ok(())
    }

    fn displaced_keys(&self) -> Result<HashSet<[u64; 2]>, ProbeError> {
        let keys = each_once(self.displaced.keys(), DISPLACED_MAX as usize);
        keys.map_err(io::Error::other).doing("reading the displaced starts")
    }

    /// Starts that wait in the map of displaced starts, by handler number. Those that are left over are
    /// taken out of it first, where it is crowded.
    fn displaced_starts(&mut self) -> Result<HashMap<usize, u64>, ProbeError> {
        let mut found = self.displaced_keys()?;
        // Only where the kernel has skipped runs are there starts that are left over.
        let has_skipped = self.probed.iter().any(|probed| probed.books.missed > 0);
        if has_skipped && found.len() > DISPLACED_MAX as usize / 2 {
            // By the clock of starts. If it cannot be read, no start is left over.
            let now =
                clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
            let old = now.saturating_sub(OLD).as_nanos();
            let Self { displaced, probed, .. } = self;
            found.retain(|key| {
                // If it is no longer there, the call has left since.
                let start = displaced.get(key, 0);
                let is_swept = start.is_ok_and(|[start, _]| u128::from(start) < old)
                    && displaced.remove(key).is_ok();
                if is_swept
                    && let Some(of) = probed.iter_mut().find(|of| of.number as u64 == key[1])
                {
                    of.swept += 1;
                }
                !is_swept
            });
        }
        let mut waiting = HashMap::new();
        for [_, handler] in found {
            *waiting.entry(handler as usize).or_default() += 1;
        }
        Ok(waiting)
    }

    /// What a handler's programs and the kernel have counted so far.
    fn books(
        &self,
        probed: &Probed,
        displaced_now: u64,
        events: &HashMap<String, Counted>,
    ) -> Result<Books, ProbeError> {
        let lost = probed.swept;
        let mut books = Books { in_flight: displaced_now, lost, ..Books::default() };
        let mut paired = 0;
        for slot in slots(&self.layout, &probed.maps) {
            books.entries += slot.entries;
            books.lost += slot.lost;
            books.unpaired_exits += slot.unpaired_exits;
            books.displaced += slot.displaced;
            books.migrated += slot.migrated;
            books.in_flight += u64::from(slot.frame != 0);
            if self.starts == Starts::Cookies {
                paired += slot.start;
            }
        }
        if self.starts == Starts::Cookies {
            // Between two reads, a call may be counted as paired on one CPU and not yet as entered on another.
            books.in_flight = books.entries.saturating_sub(paired + books.lost);
        }
        let [skipped_entries, skipped_exits] = self.add_skipped(probed, &mut books, events)?;
        if self.may_mispair() && !books.missed_unknown {
            books.doubtful = skipped_entries.min(skipped_exits).max(probed.books.doubtful);
            books.skipped_entries = skipped_entries;
        }
        // An event's hits and its program's runs are read one after the other, so their difference may
        // shrink. The number of skipped runs does not.
        books.missed = books.missed.max(probed.books.missed);
        books.settle(skipped_entries, skipped_exits, probed.books.lost);
        Ok(books)
    }

    /// Adds the runs that the kernel skipped; returns those of entry programs and of exit programs.
    fn add_skipped(
        &self,
        probed: &Probed,
        books: &mut Books,
        events: &HashMap<String, Counted>,
    ) -> Result<[u64; 2], ProbeError> {
        let mut skipped = [0, 0];
        for program in &probed.programs {
            let missed = program
                .missed(books.entries, events)
                .map_err(|error| failed(&probed.target, "asking for missed calls", &error))?;
            books.missed_unknown |= missed.is_none();
            let missed = missed.unwrap_or(0);
            match program.kind.side {
                Side::Entry => skipped[0] += missed,
                Side::Exit => skipped[1] += missed,
                Side::Both => {}
            }
            // A call that is skipped is skipped at both of its kprobes.
            books.missed = match self.backend {
                Backend::Kprobe => books.missed.max(missed),
                _ => books.missed + missed,
            };
        }
        Ok(skipped)
    }

    /// Whether the kernel may skip one program of a call and run the other, so that a start is paired with
    /// the exit of another call.
    ///
    /// - Fentry: yes. An interrupt or another task that comes in during one of the two programs skips that one.
    /// - Fsession and kprobe-session: no. The cookie keeps each start with its own call.
    /// - Kprobe: unknown. The kernel counts skipped exit programs only since 6.7 (`trace_call_bpf`), and the
    ///   number of skipped entries is the difference of two counts that are read at two times.
    fn may_mispair(&self) -> bool {
        self.backend == Backend::Fentry
    }

    /// The sum of the closed phase's records of all CPUs: durations, and calls that left before they had entered. Records with
    /// anything in them are among the `touched`.
    fn read_records<'a>(
        &self,
        probed: &'a Probed,
        counted: &[bool],
        touched: &mut Vec<&'a [AtomicU64]>,
    ) -> Result<(Durations, u64), ProbeError> {
        let mut durations = self.layout.precision.growing_durations();
        let mut backwards = 0;
        let magnitude = self.layout.precision.magnitude();
        let (value, map) = (probed.maps.value.words(), probed.maps.records.words());
        let late = self.layout.may_be_shared(counted);
        for Record { cpu, words } in self.layout.records_of(value, map, self.other_phase()) {
            let may_count = cpu.map_or(late, |cpu| counted.get(cpu as usize) != Some(&false));
            if !may_count {
                continue;
            }
            let (head, counts) = words.split_at(size_of::<RecordHead>() / 8);
            let found = Head::of(head);
            // Counters above the maximum are zero. A record that CPUs share may lack its true maximum.
            let used = if cpu.is_some() {
                self.layout.precision.words_up_to(found.max)
            } else {
                counts.len()
            };
            let counts = counts.get(..used).unwrap_or(counts);
            touched.extend([head, counts]);
            backwards += found.backwards;
            // The longest first, so that the histogram grows once.
            let counts = counts.iter().map(|word| word.load(Relaxed)).enumerate().rev();
            let mut counted = counts.filter(|(_, word)| *word != 0).peekable();
            if counted.peek().is_none() {
                continue;
            }
            // The head has the extremes of long durations; each short value has a counter of its own.
            let (mut min, mut max) = (found.min, found.max);
            for (counter, count) in counted.flat_map(two_counters) {
                let value = lowest_value(magnitude, counter);
                let recorded = if value < 1 << magnitude {
                    durations.record_n(value, count)
                } else {
                    // CPUs that share a record may lose an extreme, and never a count: then it is its bucket's bound.
                    if cpu.is_none() && found.over_range == 0 {
                        let highest = lowest_value(magnitude, counter + 1) - 1;
                        (min, max) = (min.min(highest), max.max(value));
                    }
                    durations.record_bucket(value, count)
                };
                recorded.map_err(|error| {
                    let error = io::Error::other(error.to_string());
                    failed(&probed.target, "reading the histogram", &error)
                })?;
            }
            durations.add_exact(found.sum, min, max, found.over_range);
        }
        Ok((durations, backwards))
    }

    /// Switches programs to the other phase, whose records were emptied when they were read.
    fn close(&mut self) {
        for probed in &mut self.probed {
            probed.before.rotate_left(1);
            probed.before[2] = slots(&self.layout, &probed.maps);
        }
        self.phase = self.other_phase();
        let places = self.layout.places(self.phase);
        // Emptied first, also as programs see it.
        fence(SeqCst);
        for probed in &self.probed {
            Layout::set_places(probed.maps.value.words(), &places);
        }
        fence(SeqCst);
        self.is_closed = true;
        self.drained_until = self.detached.or_else(|| Some(Instant::now()));
    }

    /// The one that programs do not write to.
    fn other_phase(&self) -> u32 {
        (self.phase + 1) % PHASES
    }

    /// Waits until no program writes the phase that was closed, and reads it.
    fn read_closed(&mut self) -> Result<(), ProbeError> {
        self.grace.wait();
        let displaced = self.displaced_starts()?;
        let events = match self.backend {
            Backend::Kprobe => kprobe_event::profile().doing("reading kprobe_profile")?,
            _ => HashMap::new(),
        };
        let mut all = Vec::with_capacity(self.probed.len());
        let mut touched = Vec::new();
        for probed in &self.probed {
            let displaced = displaced.get(&probed.number).copied().unwrap_or_default();
            let mut books = self.books(probed, displaced, &events)?;
            // The phase was opened when the one before was closed, and the oldest slots are of a drain before that.
            let [before, _, at_close] = &probed.before;
            books.entered_before = Some(entries(at_close));
            let after = slots(&self.layout, &probed.maps);
            let counted = may_have_counted(self.starts, before, &after);
            let (durations, backwards) = self.read_records(probed, &counted, &mut touched)?;
            books.backwards = probed.books.backwards + backwards;
            all.push(Drained { durations, books });
        }
        // Only now: what is read again after an error must still be there.
        for word in touched.into_iter().flatten().filter(|word| word.load(Relaxed) != 0) {
            word.store(0, Relaxed);
        }
        self.is_closed = false;
        for (probed, drained) in self.probed.iter_mut().zip(all) {
            probed.books = drained.books;
            Drained::append(&mut probed.pending, drained);
        }
        Ok(())
    }
}

impl Session for BpfSession {
    fn handlers(&self) -> Vec<(&Target, Backend)> {
        self.probed.iter().map(|probed| (&probed.target, self.backend)).collect()
    }

    fn foreign_program(&self) -> Result<Option<(String, u32)>, ProbeError> {
        const LISTING: &str = "listing the BPF links";
        let mut own = Vec::new();
        for program in self.probed.iter().flat_map(|probed| &probed.programs) {
            if let Some(Hook::Link(link)) = &program.hook {
                own.push(sys::link(link.as_fd()).doing(LISTING)?.id);
            }
        }
        let links = sys::links().doing(LISTING)?;
        Ok(links.iter().filter(|link| !own.contains(&link.id)).find_map(|link| {
            let [holder, id] = link.function?;
            let mut all = self.probed.iter();
            let probed = all.find(|of| of.target.btf_id == Some(id) && of.holder == holder)?;
            Some((probed.target.name.clone(), link.prog_id))
        }))
    }

    /// Each call is in exactly one drain, and count, sum, minimum and maximum of a drain agree.
    ///
    /// # Errors
    /// [`ProbeError::PreemptionChanged`] from then on; what had come in since the last drain is never returned.
    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
        // A drain that failed has left it.
        if self.is_closed {
            self.read_closed()?;
        }
        self.close();
        self.read_closed()?;
        // Read after what it is about: whether tasks were preempted meanwhile is then known.
        if !self.preempts && self.starts != Starts::Cookies && host::may_preempt() {
            return Err(ProbeError::PreemptionChanged);
        }
        Ok(self.probed.iter_mut().filter_map(|probed| probed.pending.take()).collect())
    }

    fn drained_until(&self) -> Option<Instant> {
        self.drained_until
    }

    fn entries(&mut self) -> Result<Vec<Option<u64>>, ProbeError> {
        let of_all = self.probed.iter().map(|probed| slots(&self.layout, &probed.maps));
        Ok(of_all.map(|slots| Some(entries(&slots))).collect())
    }

    fn detach(&mut self) {
        self.take_off(0..self.probed.len());
    }

    fn pause(&mut self, place: usize) -> Result<bool, ProbeError> {
        self.take_off(place..place + 1);
        // The session goes on: what is drained from now on is of the time of that drain.
        self.detached = None;
        self.give_up_starts(place)?;
        Ok(true)
    }

    /// As for the first time: the exits first. Before 5.13 the kernel attaches a tracing program once (commit f3a95075549e).
    fn resume(&mut self, place: usize) -> Result<bool, ProbeError> {
        let probed = &mut self.probed[place];
        for program in probed.programs.iter_mut().filter(|program| program.hook.is_none()) {
            let Err(error) = program.attach(&probed.target) else { continue };
            let is_once =
                program.kind.attach_type.is_tracing() && error.raw_os_error() == Some(libc::ENOENT);
            let failed = failed(&probed.target, "putting the probe back", &error);
            self.take_off(place..place + 1);
            return if is_once { Ok(false) } else { Err(failed) };
        }
        self.detached = None;
        Ok(true)
    }

    fn memory_bytes(&self) -> u64 {
        self.probed.len() as u64 * self.layout.bytes()
    }

    fn is_direct(&self) -> Option<bool> {
        Some(self.layout.is_direct)
    }
}

/// What was tried for a handler, and what the system said.
fn failed(target: &Target, doing: &str, error: &io::Error) -> ProbeError {
    let words = in_words(error);
    let hint = match error.raw_os_error() {
        Some(ENOTSUPP) => "; a function may have more arguments than a trampoline takes",
        _ => "",
    };
    let text = format!("{doing} for handler {}: {words}", target.name);
    ProbeError::Handler { text, reason: format!("{doing}: {words}{hint}") }
}

impl Program {
    fn attach(&mut self, target: &Target) -> io::Result<()> {
        self.hook = Some(programs::attach(&self.kind, &self.fd, target)?);
        Ok(())
    }

    /// Detaches it from its function, and keeps what the hook has counted.
    fn detach(&mut self, events: Option<&HashMap<String, Counted>>) {
        let Some(hook) = self.hook.take() else { return };
        // Where it cannot be asked, the number is not known.
        let asked = missed::of_hook(Some(&hook), events).unwrap_or(None);
        self.before = missed::sum(self.before, asked);
    }

    /// Runs that the kernel skipped; `None` where it does not say. `entries` are the runs of entry programs.
    fn missed(&self, entries: u64, events: &HashMap<String, Counted>) -> io::Result<Option<u64>> {
        let hooks = missed::sum(self.before, missed::of_hook(self.hook.as_ref(), Some(events))?);
        if self.kind.attach_type == AttachType::Kprobe {
            return Ok(missed::of_event(hooks, self.kind.side, entries));
        }
        Ok(missed::of_link(hooks, sys::recursion_misses(self.fd.as_fd())?))
    }
}

/// Which CPUs may have counted calls of a handler in a phase, by number. Reading the records of all others would take most
/// of a drain on a machine with many CPUs. `before` are its slots at the drain before the one that opened the phase: an
/// exit program that had begun by then has ended before the phase was opened. `after` are those since no program writes it.
///
/// Where slots count exits, they show it. Else a call that ended on a CPU had entered there: since `before`, which `entries`
/// shows, or earlier, which the frame shows, because entry programs write it before they count the call. Not so if it
/// migrated or its start left the slot, which slots count, too.
fn may_have_counted(starts: Starts, before: &[Slot], after: &[Slot]) -> Vec<bool> {
    let [old, new] = [before, after].map(|of| of.iter().map(|slot| slot.migrated).sum::<u64>());
    if starts == Starts::Map || old != new || after.iter().any(|slot| slot.displaced > 0) {
        return vec![true; after.len()];
    }
    let counted = before.iter().zip(after).map(|(old, new)| match starts {
        Starts::Cookies => old.start != new.start,
        _ => old.frame != 0 || new.frame != 0 || old.entries != new.entries,
    });
    counted.collect()
}

/// Calls that have entered on any CPU.
fn entries(slots: &[Slot]) -> u64 {
    slots.iter().map(|slot| slot.entries).sum()
}

/// The slots of a handler, of all possible CPUs.
fn slots(layout: &Layout, maps: &Instance) -> Vec<Slot> {
    layout.slots_of(maps.value.words()).map(counters::slot).collect()
}

/// Age from which a start counts as left over, once the map is crowded: in long runs those whose exit program the kernel skipped
/// would fill it. An older call that is still under way becomes lost, and its exit unpaired.
const OLD: Duration = Duration::from_secs(10);

/// Maps, programs and links of a handler, and some to spare.
const FILES_OF_A_HANDLER: usize = 8;

/// The highest possible CPU number, plus one; and the numbers of those that are online.
fn cpus() -> Result<(u32, Vec<u32>), ProbeError> {
    const COUNTING: &str = "counting the CPUs";
    let possible = host::cpus("possible").doing(COUNTING)?;
    let possible = possible.into_iter().max().map_or(1, |highest| highest + 1);
    if possible as usize > SLOTS_MAX {
        return Err(ProbeError::Other(format!(
            "{COUNTING}: this machine may have {possible}, and {SLOTS_MAX} is the most that can \
             be measured"
        )));
    }
    Ok((possible, host::cpus("online").doing(COUNTING)?))
}

/// BTF objects of the modules that hold the targets (not of BPF programs), with their ids. That of the kernel image is
/// `None` where it cannot be found by name (before 5.11, commit 5329722057d4): programs for the image
/// do not need it.
type BtfObjects = HashMap<Option<String>, Option<(u32, OwnedFd)>>;

fn btf_objects(targets: &[Target]) -> Result<BtfObjects, ProbeError> {
    let mut objects = HashMap::new();
    for target in targets.iter().filter(|target| target.program.is_none()) {
        if objects.contains_key(&target.module) {
            continue;
        }
        let object = match target.module.as_deref() {
            None => sys::kernel_btf("vmlinux").ok().flatten(),
            Some(module) => {
                let found = sys::kernel_btf(module).doing("listing the kernel's BTF")?;
                Some(found.ok_or_else(|| ProbeError::ModuleGone { module: module.to_owned() })?)
            }
        };
        objects.insert(target.module.clone(), object);
    }
    Ok(objects)
}

/// The keys of a map, each once: if the key read last is deleted, the kernel starts over at the first. A
/// lookup of whole batches would keep kprobes on the CPU from running meanwhile.
fn each_once<Key: std::hash::Hash + Eq>(
    keys: impl Iterator<Item = Result<Key, MapError>>,
    capacity: usize,
) -> Result<HashSet<Key>, MapError> {
    // While programs add and delete keys all the time, the iteration may never end.
    keys.take(capacity.saturating_mul(2)).collect()
}

/// The counters in a word of a record, by its place among them: two, of which the first has the low bytes, as machines are
/// little endian.
fn two_counters((at, word): (usize, u64)) -> impl Iterator<Item = (usize, u64)> {
    let [low, high] = [word & u64::from(u32::MAX), word >> 32];
    [(2 * at, low), (2 * at + 1, high)].into_iter().filter(|(_, count)| *count != 0)
}

/// What the head of a record says, with the extremes of runs at any depth.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    sum: u64,
    min: u64,
    max: u64,
    over_range: u64,
    backwards: u64,
}

impl Head {
    fn of(words: &[AtomicU64]) -> Self {
        const WORDS: usize = size_of::<RecordHead>() / 8;
        let words: [u64; WORDS] =
            std::array::from_fn(|at| words.get(at).map_or(0, |word| word.load(Relaxed)));
        let [sum, mut not_min, mut max, over_range, backwards, _depth, nested @ ..] = words;
        for extremes in nested.chunks_exact(2) {
            (not_min, max) = (not_min.max(extremes[0]), max.max(extremes[1]));
        }
        Self { sum, min: !not_min, max, over_range, backwards }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extremes_of_a_record_are_those_of_all_depths() {
        let words = [900, !40, 300, 1, 2, 0, !50, 200, 0, 0, !30, 500, 0, 0];
        let words = words.map(AtomicU64::new);
        assert_eq!(words.len() * 8, size_of::<RecordHead>());
        let head = Head { sum: 900, min: 30, max: 500, over_range: 1, backwards: 2 };
        assert_eq!(Head::of(&words), head);
        words[6..].iter().for_each(|word| word.store(0, Relaxed));
        let alone = Head { min: 40, max: 300, ..head };
        assert_eq!(Head::of(&words), alone, "an empty pair is no duration");
    }

    #[test]
    fn records_of_cpus_that_counted_nothing_are_not_read() {
        let read = |starts, change: &dyn Fn(&mut [Slot], &mut [Slot])| {
            let mut before = vec![Slot { entries: 5, start: 5, migrated: 1, ..Slot::default() }; 3];
            let mut after = before.clone();
            change(&mut before, &mut after);
            let counted = may_have_counted(starts, &before, &after);
            counted.iter().map(|counted| if *counted { '1' } else { '0' }).collect::<String>()
        };
        for starts in [Starts::Slots, Starts::Cookies] {
            assert_eq!(read(starts, &|_, _| {}), "000", "{starts:?}");
        }
        assert_eq!(read(Starts::Map, &|_, _| {}), "111", "no slot shows their exits");
        assert_eq!(read(Starts::Cookies, &|_, after| after[1].start += 1), "010");
        assert_eq!(read(Starts::Cookies, &|_, after| after[1].entries += 1), "000", "no exit");
        assert_eq!(read(Starts::Slots, &|_, after| after[1].entries += 1), "010");
        assert_eq!(read(Starts::Slots, &|before, _| before[2].frame = 8), "001", "entered before");
        assert_eq!(read(Starts::Slots, &|_, after| after[0].migrated += 1), "111");
        assert_eq!(read(Starts::Slots, &|_, after| after[0].displaced = 1), "111");
    }

    #[test]
    fn keys_that_come_again_are_counted_once() {
        let again = (0..10_u64).chain(0..12).map(Ok);
        assert_eq!(each_once(again, 100).unwrap().len(), 12);
        let endless = (0..5_u64).cycle().map(Ok);
        assert_eq!(each_once(endless, 100).unwrap().len(), 5, "and there is an end");
    }
}
