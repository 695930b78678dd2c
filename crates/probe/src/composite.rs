//! One session for handlers that are measured by different backends.

use std::time::Instant;

use profiler_kernel::target::{KernelFiles, LeftOut, Target, not_traceable};
use profiler_recording::Backend;

use super::{
    Attached, Books, Drained, Options, Precision, ProbeError, Session, Traced,
    bpf::BpfSession,
    errno::Doing as _,
    ftrace::FtraceSession,
    keeper::Keeper,
    select::{Features, Obstacle, comes_into_question, obstacle, select},
};

/// Probes on handlers, each by the backend that suits it. They are gone when it is dropped.
pub struct Probes {
    handlers: Vec<Handler>,
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

/// A handler that is measured.
struct Handler {
    target: Target,
    backend: Backend,
    /// What was drained and not delivered, because another part failed.
    pending: Option<Drained>,
    /// The books of the last drain.
    books: Books,
}

/// The handlers of one backend.
struct Part {
    session: Box<dyn Session>,
    /// Their indices among all handlers; while probes are attached, among the candidates.
    places: Vec<usize>,
}

/// A handler whose best backend the kernel refused when it was attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FellBack {
    /// Its name.
    pub handler: String,
    /// What it is measured by instead.
    pub backend: Backend,
    /// What the kernel refused when it was attached, by backend.
    pub reason: String,
}

/// A target whose backend is being chosen: `backend` is `None` until one has taken it.
struct Candidate<'a> {
    target: &'a Target,
    backend: Option<Backend>,
    /// Why none of the backends that were tried so far.
    obstacles: Vec<Obstacle>,
    /// What the kernel refused when it was attached, by backend.
    refused: Vec<Obstacle>,
}

impl Candidate<'_> {
    /// Notes that the kernel refused it by this backend, so that the next that may is tried.
    ///
    /// # Errors
    /// The refusal, if no other backend may take it.
    fn try_next(
        &mut self,
        backend: Backend,
        error: ProbeError,
        options: Options,
    ) -> Result<(), ProbeError> {
        let Target { name, module, .. } = self.target;
        if is_required(self.target) {
            // Where no probe of any kind can be placed, another backend does not help.
            if !KernelFiles::default().is_traceable(module.as_deref(), name) {
                return Err(ProbeError::NotTraceable(not_traceable(name, module.as_deref())));
            }
            if options.backend.is_some() {
                return Err(error);
            }
        }
        let refused = Obstacle { backend, reason: error.without_handler() };
        self.obstacles.push(refused.clone());
        self.refused.push(refused);
        self.backend = None;
        Ok(())
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
        let mut features = Features::default();
        // Nothing is attached yet when this fails.
        for target in targets.iter().filter(|target| is_required(target)) {
            let choice = select(target, options, |backend| features.refusal(backend));
            if choice.backend.is_none() {
                return Err(unmeasurable(target, &choice.obstacles));
            }
        }
        let candidate = |target| Candidate {
            target,
            backend: None,
            obstacles: Vec::new(),
            refused: Vec::new(),
        };
        let mut candidates: Vec<Candidate<'_>> = targets.iter().map(candidate).collect();
        // Dropped after the parts, also by an error.
        let mut keeper = None;
        let mut parts = Vec::new();
        for &backend in Backend::ALL {
            let mut places = Vec::new();
            for (place, candidate) in candidates.iter_mut().enumerate() {
                let target = candidate.target;
                if candidate.backend.is_some() || !comes_into_question(target, backend, options) {
                    continue;
                }
                let refusal = features.refusal(backend);
                if let Some(reason) = refusal.or_else(|| obstacle(target, backend, options)) {
                    candidate.obstacles.push(Obstacle { backend, reason });
                } else {
                    candidate.backend = Some(backend);
                    places.push(place);
                }
            }
            if places.is_empty() {
                continue;
            }
            let own: Vec<Target> = places.iter().map(|&at| candidates[at].target.clone()).collect();
            if options.keeper && keeper.is_none() && changes_tracefs(backend) {
                keeper = Some(Keeper::start().doing(
                    "starting the process that puts tracefs back if this one is killed (nothing has been \
                     changed; fentry and the other backends by BPF alone need none)",
                )?);
            }
            let (session, refused) = attach_by(backend, &own, options)?;
            for (at, error) in refused {
                candidates[places[at]].try_next(backend, error, options)?;
            }
            places.retain(|&at| candidates[at].backend.is_some());
            parts.extend(session.map(|session| Part { session, places }));
        }
        Self::of(candidates, options, keeper, parts)
    }

    /// The attached probes, without the targets that were left out.
    ///
    /// # Errors
    /// If no backend takes a target that has to be measured, or none takes any target.
    fn of(
        candidates: Vec<Candidate<'_>>,
        Options { precision, force, .. }: Options,
        // On an error arguments are dropped from the last to the first: the parts, then the keeper.
        _keeper: Option<Keeper>,
        mut parts: Vec<Part>,
    ) -> Result<Self, ProbeError> {
        let of_programs = candidates.iter().any(|candidate| candidate.target.program.is_some());
        let (mut handlers, mut left_out, mut fell_back) = (Vec::new(), Vec::new(), Vec::new());
        // Of each candidate, how many before it are measured.
        let mut places = Vec::with_capacity(candidates.len());
        for Candidate { target, backend, obstacles, refused } in candidates {
            places.push(handlers.len());
            let Some(backend) = backend else {
                let (name, module) = (target.label(), target.module.clone());
                if is_required(target) {
                    return Err(unmeasurable(target, &obstacles));
                }
                left_out.push(LeftOut { name, module, reason: joined(&obstacles) });
                continue;
            };
            if !refused.is_empty() {
                let (handler, reason) = (target.label(), joined(&refused));
                fell_back.push(FellBack { handler, backend, reason });
            }
            let target = target.clone();
            handlers.push(Handler { target, backend, pending: None, books: Books::default() });
        }
        for place in parts.iter_mut().flat_map(|part| &mut part.places) {
            *place = places[*place];
        }
        // BPF programs may all be left out: the kernel's own statistics are shown of them.
        if handlers.is_empty()
            && !of_programs
            && let Some(error) = ProbeError::all_left_out(&left_out)
        {
            return Err(error);
        }
        Ok(Self { handlers, left_out, fell_back, parts, precision, force, _keeper })
    }

    /// An error if the kernel skipped a kprobe each time: then its function runs inside a kprobe.
    fn refuse_inside_kprobes(&self) -> Result<(), ProbeError> {
        for Handler { target, backend, books, .. } in &self.handlers {
            // For one that a glob found the warning `all-missed` says it.
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

    /// The session of a handler, by its index here, and its index there.
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

fn unmeasurable(target: &Target, obstacles: &[Obstacle]) -> ProbeError {
    let lines: String = obstacles.iter().map(|found| format!("\n  {found}")).collect();
    ProbeError::Other(format!("handler {} cannot be measured:{lines}", target.label()))
}

fn joined(obstacles: &[Obstacle]) -> String {
    obstacles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
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
        return BpfSession::attach_each(targets, backend, options);
    }
    match FtraceSession::attach_each(targets, options) {
        // The tracer cannot be used now; another backend may do.
        Err(error) if !matches!(error, ProbeError::NotAllowed(_)) => {
            let refused = (0..targets.len()).map(|at| (at, ProbeError::Other(error.to_string())));
            Ok((None, refused.collect()))
        }
        attached => attached,
    }
}

impl Session for Probes {
    fn handlers(&self) -> Vec<(&Target, Backend)> {
        self.handlers.iter().map(|handler| (&handler.target, handler.backend)).collect()
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
        for Part { session, places } in &mut self.parts {
            match session.drain() {
                Ok(drained) => {
                    for (&place, drained) in places.iter().zip(drained) {
                        let handler = &mut self.handlers[place];
                        handler.books = drained.books;
                        Drained::append(&mut handler.pending, drained);
                    }
                }
                Err(error) => {
                    failed.get_or_insert(error);
                }
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
        if self.handlers.iter().all(|handler| handler.pending.is_none()) {
            return Vec::new();
        }
        let of_all = self.handlers.iter_mut().map(|Handler { pending, books, .. }| {
            let nothing = || Drained { durations: self.precision.durations(), books: *books };
            pending.take().unwrap_or_else(nothing)
        });
        of_all.collect()
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
        // It is asked for of one handler.
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

    /// `None` if no part says.
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
            let mut durations = Precision::Three.durations();
            (0..calls).for_each(|_| durations.record(self.duration_ns));
            Ok(vec![Drained { durations, books }])
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

    fn target(name: &str) -> Target {
        Target { name: name.to_owned(), ..Target::default() }
    }

    fn handler(name: &str) -> Handler {
        let books = Books::default();
        Handler { target: target(name), backend: Backend::Fentry, pending: None, books }
    }

    fn probes(fails_at: [&'static [u64]; 2]) -> Probes {
        let parts = [("first", 100), ("second", 300)].into_iter().zip(fails_at).enumerate().map(
            |(place, ((name, duration_ns), fails_at))| {
                let (target, paused) = (target(name), Rc::default());
                let mock = Mock { target, duration_ns, drains: 0, fails_at, paused };
                Part { session: Box::new(mock), places: vec![place] }
            },
        );
        Probes {
            handlers: ["first", "second"].map(handler).into(),
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
        let mock = |name, paused: &Rc<_>| Mock {
            target: target(name),
            duration_ns: 1,
            drains: 0,
            fails_at: &[],
            paused: Rc::clone(paused),
        };
        probes.parts = vec![
            Part { session: Box::new(mock("first", &paused)), places: vec![0, 3] },
            Part { session: Box::new(mock("second", &paused)), places: vec![2, 1] },
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
