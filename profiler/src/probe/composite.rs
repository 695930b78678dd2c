//! Handlers of different backends side by side, as one session.

use super::{
    Drained, Options, ProbeError, Session,
    bpf::BpfSession,
    choice::{Choice, Features, Wish, better_than_kprobe, choose},
    ftrace::FtraceSession,
    nest,
};
use crate::{profile::Backend, target::Target};

/// Probes on handlers, each by the backend that suits it. They are gone when it is dropped.
pub struct Probes {
    targets: Vec<Target>,
    choices: Vec<Choice>,
    parts: Vec<Part>,
    /// Whether a probe that counts nothing is no error.
    force: bool,
}

/// The handlers of one backend.
struct Part {
    session: Box<dyn Session>,
    /// Where they stand among all.
    places: Vec<usize>,
}

impl Probes {
    /// Chooses a backend for each target and attaches it.
    ///
    /// # Errors
    /// When a target cannot be measured, or not as wished; when the kernel refuses a probe; when
    /// another tool is on a handler. Nothing stays attached.
    pub fn attach(targets: &[Target], options: Options) -> Result<Self, ProbeError> {
        let wish = Wish { backend: options.backend, force: options.force };
        let choices = choose(targets, wish, &mut Features::new())?;
        if options.self_time {
            nest::check(targets, &choices)?;
        }
        let mut parts = Vec::new();
        for backend in Backend::ALL {
            let places: Vec<usize> =
                (0..targets.len()).filter(|&place| choices[place].backend == backend).collect();
            if places.is_empty() {
                continue;
            }
            let own: Vec<Target> = places.iter().map(|&place| targets[place].clone()).collect();
            parts.push(Part { session: attach_by(backend, &own, options)?, places });
        }
        Ok(Self { targets: targets.to_vec(), choices, parts, force: options.force })
    }

    /// A kprobe that the kernel skipped each time is in a function that runs inside a kprobe.
    fn refuse_inside_kprobes(&self, drained: &[Drained]) -> Result<(), ProbeError> {
        let of_all = self.targets.iter().zip(&self.choices).zip(drained);
        for ((target, choice), Drained { books, .. }) in of_all {
            if choice.backend == Backend::Kprobe && books.entries == 0 && books.missed > 0 {
                return Err(ProbeError::InsideKprobe {
                    handler: target.name.clone(),
                    missed: books.missed,
                    instead: better_than_kprobe(target),
                });
            }
        }
        Ok(())
    }

    /// How each target is measured, in their order, and why not by a better backend.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }
}

fn attach_by(
    backend: Backend,
    targets: &[Target],
    options: Options,
) -> Result<Box<dyn Session>, ProbeError> {
    Ok(match backend {
        Backend::FunctionGraph => Box::new(FtraceSession::attach(targets, options)?),
        _ => Box::new(BpfSession::attach(targets, backend, options)?),
    })
}

impl Session for Probes {
    fn targets(&self) -> Vec<&Target> {
        self.targets.iter().collect()
    }

    fn backends(&self) -> Vec<Backend> {
        self.choices.iter().map(|choice| choice.backend).collect()
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
        let mut all: Vec<Option<Drained>> = self.targets.iter().map(|_| None).collect();
        for part in &mut self.parts {
            for (place, drained) in part.places.iter().zip(part.session.drain()?) {
                all[*place] = Some(drained);
            }
        }
        // Every target is in one part.
        let all: Vec<Drained> = all.into_iter().flatten().collect();
        if !self.force {
            self.refuse_inside_kprobes(&all)?;
        }
        Ok(all)
    }

    fn entries(&mut self) -> Result<Option<Vec<u64>>, ProbeError> {
        let mut all = vec![0; self.targets.len()];
        for part in &mut self.parts {
            let Some(entries) = part.session.entries()? else { return Ok(None) };
            for (place, entries) in part.places.iter().zip(entries) {
                all[*place] = entries;
            }
        }
        Ok(Some(all))
    }

    fn detach(&mut self) {
        for part in &mut self.parts {
            part.session.detach();
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.session.memory_bytes()).sum()
    }
}
