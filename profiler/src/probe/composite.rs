//! One session for handlers that are measured by different backends.

use std::time::Instant;

use super::{
    Books, Drained, Options, Precision, ProbeError, Refused, Session, Traced,
    bpf::BpfSession,
    errno::{self, Doing as _},
    ftrace::FtraceSession,
    keeper::Keeper,
    select::{Choice, Features, Obstacle, needs_btf, select},
};
use crate::{
    kernel::target::{KernelFiles, LeftOut, Target},
    recording::Backend,
};

/// Probes on handlers, each by the backend that suits it. They are gone when it is dropped.
pub struct Probes {
    handlers: Vec<(Target, Backend)>,
    /// What a glob found and no backend measures, with the reasons.
    pub left_out: Vec<LeftOut>,
    /// Handlers whose best backend the kernel refused when it was attached.
    pub fell_back: Vec<FellBack>,
    parts: Vec<Part>,
    precision: Precision,
    /// Accept probes that never fire.
    force: bool,
    /// Held for its drop alone, and the last field: fields are dropped in order, so that the process which puts
    /// tracefs back ends when the probes are off.
    _keeper: Option<Keeper>,
}

/// The handlers of one backend.
struct Part {
    session: Box<dyn Session>,
    /// Their indices among all handlers.
    places: Vec<usize>,
    /// What was drained and not delivered, because another part failed.
    pending: Option<Vec<Drained>>,
    /// The last books of each handler.
    books: Vec<Books>,
}

impl Part {
    fn new(session: Box<dyn Session>, places: Vec<usize>) -> Self {
        let books = vec![Books::default(); places.len()];
        Self { session, places, pending: None, books }
    }

    /// Drains it, and adds to what is pending.
    fn drain(&mut self) -> Result<(), ProbeError> {
        let drained = self.session.drain()?;
        self.books = drained.iter().map(|drained| drained.books).collect();
        Drained::append(&mut self.pending, drained);
        Ok(())
    }
}

/// A handler whose best backend the kernel refused when it was attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FellBack {
    /// Its name.
    pub handler: String,
    /// What it is measured by instead.
    pub backend: Backend,
    /// The backends that were refused, with the reasons.
    pub reason: String,
}

/// A session of one backend, `None` if it could be attached to none of its targets; and the refused targets.
type Attached = (Option<Box<dyn Session>>, Vec<Refused>);

/// The choice of a backend for each target, before and while the backends are attached.
struct Selection<'a> {
    options: Options,
    features: Features,
    candidates: Vec<Candidate<'a>>,
    left_out: Vec<LeftOut>,
}

/// A target whose backend is being chosen.
struct Candidate<'a> {
    target: &'a Target,
    /// `None` if it is left out.
    choice: Option<Choice>,
    /// The backends that refused it when they were attached.
    refused: Vec<Obstacle>,
}

impl Candidate<'_> {
    fn is_by(&self, backend: Backend) -> bool {
        self.choice.as_ref().is_some_and(|choice| choice.backend == backend)
    }
}

impl<'a> Selection<'a> {
    fn new(targets: &'a [Target], options: Options) -> Result<Self, ProbeError> {
        let (features, left_out) = (Features::default(), Vec::new());
        let mut this = Self { options, features, candidates: Vec::new(), left_out };
        for target in targets {
            let choice = this.choose(target, Vec::new())?;
            this.candidates.push(Candidate { target, choice, refused: Vec::new() });
        }
        Ok(this)
    }

    /// The best backend after those with obstacles; `None` if the target is left out.
    ///
    /// # Errors
    /// If there is none for a target that has to be measured.
    fn choose(
        &mut self,
        target: &Target,
        obstacles: Vec<Obstacle>,
    ) -> Result<Option<Choice>, ProbeError> {
        let refusal = |backend| self.features.refusal(backend);
        let obstacles = match select(target, self.options, refusal, obstacles) {
            Ok(choice) => return Ok(Some(choice)),
            Err(obstacles) => obstacles,
        };
        let name = target.label();
        if is_required(target) {
            let lines: String = obstacles.iter().map(|found| format!("\n  {found}")).collect();
            return Err(ProbeError::Other(format!("handler {name} cannot be measured:{lines}")));
        }
        let module = target.module.clone();
        self.left_out.push(LeftOut { name, module, reason: joined(&obstacles) });
        Ok(None)
    }

    /// Indices of the candidates that this backend is to measure.
    fn places(&self, backend: Backend) -> Vec<usize> {
        (0..self.candidates.len()).filter(|&at| self.candidates[at].is_by(backend)).collect()
    }

    /// Chooses the next backend for a candidate that `backend` refused.
    ///
    /// # Errors
    /// The refusal, if no other backend may take it.
    fn refuse(
        &mut self,
        place: usize,
        backend: Backend,
        error: ProbeError,
    ) -> Result<(), ProbeError> {
        let candidate = &mut self.candidates[place];
        let target = candidate.target;
        // Where no probe of any kind can be placed, another backend does not help.
        let is_traceable =
            || KernelFiles::default().is_traceable(target.module.as_deref(), &target.name);
        if is_required(target) && (self.options.backend.is_some() || !is_traceable()) {
            return Err(error);
        }
        let refused = Obstacle { backend, reason: reason(&error, backend) };
        let choice = candidate.choice.take();
        let mut obstacles = choice.map(|choice| choice.obstacles).unwrap_or_default();
        obstacles.push(refused.clone());
        candidate.refused.push(refused);
        self.candidates[place].choice = self.choose(target, obstacles)?;
        Ok(())
    }

    /// The attached probes, without the targets that were left out.
    fn into_probes(
        self,
        mut parts: Vec<Part>,
        keeper: Option<Keeper>,
    ) -> Result<Probes, ProbeError> {
        let Self { candidates, left_out, options: Options { precision, force, .. }, .. } = self;
        let of_programs = candidates.iter().any(|candidate| candidate.target.program.is_some());
        let is_in = |at: &usize| candidates[*at].choice.is_some();
        let kept: Vec<usize> = (0..candidates.len()).filter(is_in).collect();
        for part in &mut parts {
            part.places = part.places.iter().filter_map(|at| kept.binary_search(at).ok()).collect();
        }
        let (mut handlers, mut fell_back) = (Vec::new(), Vec::new());
        for Candidate { target, choice, refused } in candidates {
            let Some(choice) = choice else { continue };
            if !refused.is_empty() {
                let (handler, reason) = (target.label(), joined(&refused));
                fell_back.push(FellBack { handler, backend: choice.backend, reason });
            }
            handlers.push((target.clone(), choice.backend));
        }
        // Of BPF programs there are the kernel's own statistics.
        if handlers.is_empty()
            && !of_programs
            && let Some(error) = ProbeError::all_left_out(&left_out)
        {
            return Err(error);
        }
        let _keeper = keeper;
        Ok(Probes { handlers, left_out, fell_back, parts, precision, force, _keeper })
    }
}

impl Probes {
    /// Chooses a backend for each target and attaches it. If the kernel refuses that one, the next is
    /// tried; a function that a glob found and no backend can measure is left out.
    ///
    /// # Errors
    /// When a target that was named cannot be measured, or not as wished; when another tool is on a
    /// handler. Nothing stays attached.
    pub fn attach(targets: &[Target], options: Options) -> Result<Self, ProbeError> {
        let mut selection = Selection::new(targets, options)?;
        // Dropped after the parts, also by an error.
        let mut keeper = None;
        let mut parts = Vec::new();
        for &backend in Backend::ALL {
            let mut places = selection.places(backend);
            if places.is_empty() {
                continue;
            }
            let own = places.iter().map(|&at| selection.candidates[at].target.clone());
            let own: Vec<Target> = own.collect();
            if options.keeper && keeper.is_none() && changes_tracefs(backend) {
                keeper = Some(Keeper::start().doing(
                    "starting the process that puts tracefs back if this one is killed (nothing has been \
                     changed; fentry and the other backends by BPF alone need none)",
                )?);
            }
            let (session, refused) = attach_by(backend, &own, options)?;
            for (at, error) in refused {
                selection.refuse(places[at], backend, error)?;
            }
            // Those that were refused now have another backend, or none.
            places.retain(|&at| selection.candidates[at].is_by(backend));
            if let Some(session) = session {
                parts.push(Part::new(session, places));
            }
        }
        selection.into_probes(parts, keeper)
    }

    /// A kprobe that the kernel skipped each time is in a function that runs inside a kprobe.
    fn refuse_inside_kprobes(&self) -> Result<(), ProbeError> {
        let of_all = self.parts.iter().flat_map(|part| part.places.iter().zip(&part.books));
        for (&place, books) in of_all {
            let (target, backend) = &self.handlers[place];
            // For one that a glob found there is a warning.
            let skipped = books.entries == 0 && books.missed > 0 && !target.by_glob;
            if *backend == Backend::Kprobe && skipped {
                // As far as is known without trying.
                let instead = if target.btf_id.is_some() { "fentry" } else { "function-graph" };
                return Err(ProbeError::Other(format!(
                    "the kprobe on handler {} counted nothing, and the kernel skipped it {} times: the \
                     handler runs inside a kprobe, where the kernel skips every other one; use --backend \
                     {instead} (--force measures it all the same)",
                    target.name, books.missed
                )));
            }
        }
        Ok(())
    }

    /// The session that has a target, and its index there.
    fn part_of(&mut self, place: usize) -> Option<(&mut Box<dyn Session>, usize)> {
        self.parts.iter_mut().find_map(|part| {
            let within = part.places.iter().position(|&at| at == place)?;
            Some((&mut part.session, within))
        })
    }
}

/// Whether it has to be measured: it is no BPF program, and was named.
fn is_required(target: &Target) -> bool {
    !target.by_glob && target.program.is_none()
}

fn joined(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why a backend does not measure a handler, without its name.
fn reason(error: &ProbeError, backend: Backend) -> String {
    match error {
        ProbeError::Handler { doing, error, .. } => {
            let unsupported = error.raw_os_error() == Some(errno::ENOTSUPP);
            let hint = match unsupported && needs_btf(backend) {
                true => "; a function may have more arguments than a trampoline takes",
                false => "",
            };
            format!("{doing}: {}{hint}", errno::in_words(error))
        }
        ProbeError::Refused { program, refused, .. } => {
            let is_word = |line: &&str| !line.trim().is_empty() && !line.starts_with("processed ");
            let last = refused.log.lines().rev().find(is_word).unwrap_or_default().trim();
            let words = errno::in_words(&refused.error);
            let separator = if last.is_empty() { "" } else { ": " };
            // `bpf_check_attach_target()` in kernel/bpf/verifier.c
            let hint = match last {
                "Cannot recursively attach" => {
                    " (it is a tracing program, and before Linux 6.8, commit 19bfcdf9498a, no other attaches to one)"
                }
                _ => "",
            };
            format!("the kernel refused the {program} program: {words}{separator}{last}{hint}")
        }
        ProbeError::Untraceable { why, .. } => (*why).to_owned(),
        _ => error.to_string(),
    }
}

/// Whether its changes outlive a killed process; BPF programs and their links do not.
fn changes_tracefs(backend: Backend) -> bool {
    matches!(backend, Backend::FunctionGraph | Backend::Kprobe)
}

/// Attaches one backend to all targets that the kernel does not refuse; no session if it refused all.
fn attach_by(
    backend: Backend,
    targets: &[Target],
    options: Options,
) -> Result<Attached, ProbeError> {
    if backend != Backend::FunctionGraph {
        let (session, refused) = BpfSession::attach_each(targets, backend, options)?;
        let any = refused.len() < targets.len();
        return Ok((any.then(|| Box::new(session) as Box<dyn Session>), refused));
    }
    match FtraceSession::attach_each(targets, options) {
        Ok((session, refused)) => {
            Ok((session.map(|session| Box::new(session) as Box<dyn Session>), refused))
        }
        Err(error @ ProbeError::NotAllowed(_)) => Err(error),
        // The tracer cannot be used now; another backend may do.
        Err(error) => {
            let refused = |at| (at, ProbeError::Other(error.to_string()));
            Ok((None, (0..targets.len()).map(refused).collect()))
        }
    }
}

impl Session for Probes {
    fn handlers(&self) -> Vec<(&Target, Backend)> {
        self.handlers.iter().map(|(target, backend)| (target, *backend)).collect()
    }

    fn foreign_program(&self) -> Result<Option<(String, u32)>, ProbeError> {
        for part in &self.parts {
            if let Some(found) = part.session.foreign_program()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
        let mut failed = None;
        for part in &mut self.parts {
            if let Err(error) = part.drain() {
                failed.get_or_insert(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if !self.force {
            self.refuse_inside_kprobes()?;
        }
        Ok(self.undelivered())
    }

    fn undelivered(&mut self) -> Vec<Drained> {
        if self.parts.iter().all(|part| part.pending.is_none()) {
            return Vec::new();
        }
        let precision = self.precision;
        let nothing = |books: &Books| Drained { durations: precision.durations(), books: *books };
        let mut all = Vec::with_capacity(self.handlers.len());
        for part in &mut self.parts {
            let pending = part.pending.take();
            let pending = pending.unwrap_or_else(|| part.books.iter().map(nothing).collect());
            all.extend(part.places.iter().copied().zip(pending));
        }
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, drained)| drained).collect()
    }

    fn drained_until(&self) -> Option<Instant> {
        let all = self.parts.iter().map(|part| part.session.drained_until());
        all.collect::<Option<Vec<Instant>>>()?.into_iter().max()
    }

    fn entries(&mut self) -> Result<Vec<Option<u64>>, ProbeError> {
        let mut all = vec![None; self.handlers.len()];
        for part in &mut self.parts {
            for (place, entries) in part.places.iter().zip(part.session.entries()?) {
                all[*place] = entries;
            }
        }
        Ok(all)
    }

    fn call_tree(&mut self) -> Result<Option<Traced>, ProbeError> {
        let first = self.parts.first_mut();
        first.map_or(Ok(None), |part| part.session.call_tree())
    }

    fn detach(&mut self) {
        for part in &mut self.parts {
            part.session.detach();
        }
    }

    fn pause(&mut self, place: usize) -> Result<bool, ProbeError> {
        self.part_of(place).map_or(Ok(false), |(session, place)| session.pause(place))
    }

    fn resume(&mut self, place: usize) -> Result<bool, ProbeError> {
        self.part_of(place).map_or(Ok(false), |(session, place)| session.resume(place))
    }

    fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.session.memory_bytes()).sum()
    }

    /// Those of all parts.
    fn is_direct(&self) -> Option<bool> {
        let of_parts = self.parts.iter().filter_map(|part| part.session.is_direct());
        of_parts.reduce(|all, part| all && part)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Has one call of `duration_ns` a drain, and fails at the drains (from 0) in `fails_at`.
    struct Mock {
        target: Target,
        duration_ns: u64,
        drains: u64,
        fails_at: &'static [u64],
        paused: Rc<RefCell<Vec<(String, usize)>>>,
    }

    impl Session for Mock {
        fn handlers(&self) -> Vec<(&Target, Backend)> {
            vec![(&self.target, Backend::Fentry)]
        }

        fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
            let drain = self.drains;
            self.drains += 1;
            if self.fails_at.contains(&drain) {
                return Err(ProbeError::Other("no map today".to_owned()));
            }
            // What a failed drain did not take is still there.
            let calls = 1 + (0..drain).rev().take_while(|at| self.fails_at.contains(at)).count();
            let books = Books { entries: self.drains, ..Books::default() };
            Ok(vec![Drained::of(&vec![self.duration_ns; calls], books)])
        }

        fn detach(&mut self) {}

        fn pause(&mut self, place: usize) -> Result<bool, ProbeError> {
            self.paused.borrow_mut().push((self.target.name.clone(), place));
            Ok(true)
        }

        fn memory_bytes(&self) -> u64 {
            0
        }
    }

    fn probes(fails_at: [&'static [u64]; 2]) -> Probes {
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let parts = [("first", 100), ("second", 300)].into_iter().zip(fails_at).enumerate().map(
            |(place, ((name, duration_ns), fails_at))| {
                let (target, paused) = (target(name), Rc::default());
                let mock = Mock { target, duration_ns, drains: 0, fails_at, paused };
                Part::new(Box::new(mock), vec![place])
            },
        );
        Probes {
            handlers: ["first", "second"].map(|name| (target(name), Backend::Fentry)).to_vec(),
            left_out: Vec::new(),
            fell_back: Vec::new(),
            parts: parts.collect(),
            precision: Precision::Three,
            force: false,
            _keeper: None,
        }
    }

    /// Calls, their sum, and entries of each handler.
    fn figures(drained: &[Drained]) -> Vec<(u64, u64, u64)> {
        let figures =
            |one: &Drained| (one.durations.len(), one.durations.sum_ns(), one.books.entries);
        drained.iter().map(figures).collect()
    }

    #[test]
    fn what_one_backend_gave_outlasts_the_failure_of_another() {
        let mut probes = probes([&[], &[1, 2]]);
        assert_eq!(figures(&probes.drain().unwrap()), [(1, 100, 1), (1, 300, 1)]);
        assert!(probes.drain().is_err());
        assert!(probes.drain().is_err());
        assert_eq!(figures(&probes.drain().unwrap()), [(3, 300, 4), (3, 900, 4)]);
        assert_eq!(figures(&probes.drain().unwrap()), [(1, 100, 5), (1, 300, 5)], "given once");
        assert!(probes.undelivered().is_empty());
    }

    #[test]
    fn a_handler_is_paused_by_the_session_that_has_it() {
        let mut probes = probes([&[], &[]]);
        let paused = Rc::default();
        let target = |name: &str| Target { name: name.to_owned(), ..Target::default() };
        let mock = |name, paused: &Rc<_>| Mock {
            target: target(name),
            duration_ns: 1,
            drains: 0,
            fails_at: &[],
            paused: Rc::clone(paused),
        };
        probes.parts = vec![
            Part::new(Box::new(mock("first", &paused)), vec![0, 3]),
            Part::new(Box::new(mock("second", &paused)), vec![2, 1]),
        ];
        for (place, is_there) in [(1, true), (3, true), (4, false)] {
            assert_eq!(probes.pause(place).unwrap(), is_there, "{place}");
        }
        assert_eq!(*paused.borrow(), [("second".to_owned(), 1), ("first".to_owned(), 1)]);
    }

    #[test]
    fn at_the_end_there_is_what_the_others_gave() {
        let mut probes = probes([&[], &[1, 2]]);
        probes.drain().unwrap();
        assert!(probes.drain().is_err());
        assert!(probes.drain().is_err());
        assert_eq!(figures(&probes.undelivered()), [(2, 200, 3), (0, 0, 1)]);
        assert!(probes.undelivered().is_empty(), "given once");
    }
}
