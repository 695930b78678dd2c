//! The fentry backend: a BPF program on the entry and one on the exit of each handler.
//!
//! Both run from one trampoline, through ftrace and not through a kprobe, so that they also fire
//! in functions that run inside kprobes. Needs BTF of the module that holds the function.

use std::{
    collections::HashMap,
    os::fd::{AsFd as _, OwnedFd},
};

use aya::maps::{Array, HashMap as BpfHashMap, Map, MapData};
use profiler_common::{
    bucket::lowest_value,
    layout::{PHASES, RecordHead, SLOTS_MAX, Slot, names},
};

use super::{
    Books, Drained, Options, Precision, ProbeError, Session,
    object::{Instance, Parameters, Template},
    sys::{self, AttachType, TracingProgram},
};
use crate::{profile::Backend, target::Target};

/// Probes of the fentry backend. Dropping it takes them off, and so does the end of the process.
pub struct BpfSession {
    probed: Vec<Probed>,
    backend: Backend,
    phase_map: Array<MapData, u32>,
    displaced: BpfHashMap<MapData, u64, [u64; 2]>,
    phase: u32,
    cpus: u32,
    precision: Precision,
}

/// One handler with its programs and maps.
struct Probed {
    target: Target,
    /// Id of the BTF object that holds the function.
    btf_object: u32,
    maps: Instance,
    enter: OwnedFd,
    leave: OwnedFd,
    links: Vec<OwnedFd>,
}

impl BpfSession {
    /// Attaches a pair of programs to every target: all exits first, so that no entry is counted
    /// whose exit is not.
    ///
    /// # Errors
    /// When the kernel refuses a program, or another tool is on a handler. Nothing stays attached.
    pub fn attach(
        targets: &[Target],
        backend: Backend,
        options: Options,
    ) -> Result<Self, ProbeError> {
        sys::raise_memlock();
        let template = Template::load()?;
        let cpus = aya::util::nr_cpus()
            .map_err(|(doing, error)| ProbeError::System { doing, error })
            .and_then(|cpus| {
                let fits = u32::try_from(cpus).ok().filter(|_| cpus <= SLOTS_MAX);
                fits.ok_or_else(|| ProbeError::System {
                    doing: "counting the possible CPUs",
                    error: std::io::Error::other(format!(
                        "this machine may have {cpus}, and {SLOTS_MAX} is the most that can be measured"
                    )),
                })
            })?;
        let shared = template.shared()?;
        let btf = btf_objects(targets)?;

        let mut probed = Vec::with_capacity(targets.len());
        for (number, target) in targets.iter().enumerate() {
            let parameters = Parameters {
                handler: number as u64,
                cpus: u64::from(cpus),
                slots_bytes: (SLOTS_MAX * size_of::<Slot>()) as u32,
                record_bytes: record_bytes(options.precision) as u32,
                records: cpus * PHASES,
            };
            let instance = template.instantiate(&parameters, &shared)?;
            let (btf_object, btf_fd) = &btf[&target.module];
            let (enter_name, leave_name) = match (options.empty, options.precision) {
                (true, _) => (names::EMPTY_ENTER, names::EMPTY_LEAVE),
                (false, Precision::Two) => (names::ENTER, names::LEAVE_2),
                (false, Precision::Three) => (names::ENTER, names::LEAVE_3),
            };
            let load = |program, name, attach_type| {
                sys::load_tracing(&TracingProgram {
                    name: if attach_type == AttachType::Fentry {
                        "profiler_enter"
                    } else {
                        "profiler_leave"
                    },
                    license: &instance.license,
                    instructions: instance.instructions(name)?,
                    attach_type,
                    btf_id: target.btf_id.unwrap_or_default(),
                    // The kernel image is what no object is named for.
                    btf_object: target.module.is_some().then(|| btf_fd.as_fd()),
                })
                .map_err(|refused| ProbeError::Refused {
                    program,
                    handler: target.name.clone(),
                    refused,
                })
            };
            let enter = load("entry", enter_name, AttachType::Fentry)?;
            let leave = load("exit", leave_name, AttachType::Fexit)?;
            probed.push(Probed {
                target: target.clone(),
                btf_object: *btf_object,
                maps: instance,
                enter,
                leave,
                links: Vec::new(),
            });
        }

        let mut maps: HashMap<String, MapData> =
            shared.into_iter().map(|(name, (_, data))| (name, data)).collect();
        let mut take = |name: &str| {
            maps.remove(name).ok_or_else(|| ProbeError::Object {
                path: "built into this program".to_owned(),
                what: format!("no map {name}"),
            })
        };
        let typed = |error| ProbeError::Map {
            doing: "opening a shared map".to_owned(),
            error: Box::new(error),
        };
        let mut session = Self {
            probed,
            backend,
            phase_map: Array::try_from(Map::Array(take(names::PHASE)?)).map_err(typed)?,
            displaced: BpfHashMap::try_from(Map::HashMap(take(names::DISPLACED)?))
                .map_err(typed)?,
            phase: 0,
            cpus,
            precision: options.precision,
        };
        session.link()?;
        if !options.allow_shared
            && let Some((handler, prog_id)) = session.foreign_program()?
        {
            return Err(ProbeError::Shared { handler, prog_id });
        }
        Ok(session)
    }

    fn link(&mut self) -> Result<(), ProbeError> {
        for exits in [true, false] {
            for probed in &mut self.probed {
                let program = if exits { &probed.leave } else { &probed.enter };
                let link =
                    sys::attach_tracing(program.as_fd()).map_err(|error| ProbeError::Handler {
                        doing: if exits {
                            "attaching the exit probe"
                        } else {
                            "attaching the entry probe"
                        },
                        handler: probed.target.name.clone(),
                        error,
                    })?;
                probed.links.push(link);
            }
        }
        Ok(())
    }

    fn read_slots(&self, probed: &Probed) -> Result<Vec<Slot>, ProbeError> {
        let mut bytes = vec![0; SLOTS_MAX * size_of::<Slot>()];
        probed.read(names::SLOTS, 0, &mut bytes)?;
        Ok(bytes
            .chunks_exact(size_of::<Slot>())
            .take(self.cpus as usize)
            .map(|bytes| {
                let word = |at: usize| u64_at(bytes, at * 8);
                Slot {
                    frame: word(0),
                    start: word(1),
                    entries: word(2),
                    lost: word(3),
                    unpaired_exits: word(4),
                    displaced: word(5),
                    migrated: word(6),
                    reserved: word(7),
                }
            })
            .collect())
    }

    /// Starts that wait in the map of displaced starts, by handler number.
    fn displaced_starts(&self) -> Result<Vec<u64>, ProbeError> {
        let mut waiting = vec![0; self.probed.len()];
        for entry in self.displaced.iter() {
            let (_, [_, handler]) = entry.map_err(|error| ProbeError::Map {
                doing: "reading the displaced starts".to_owned(),
                error: Box::new(error),
            })?;
            if let Some(count) = usize::try_from(handler).ok().and_then(|at| waiting.get_mut(at)) {
                *count += 1;
            }
        }
        Ok(waiting)
    }

    fn books(&self, probed: &Probed, displaced_now: u64) -> Result<Books, ProbeError> {
        let mut books = Books { in_flight: displaced_now, ..Books::default() };
        for slot in self.read_slots(probed)? {
            books.entries += slot.entries;
            books.lost += slot.lost;
            books.unpaired_exits += slot.unpaired_exits;
            books.displaced += slot.displaced;
            books.migrated += slot.migrated;
            books.in_flight += u64::from(slot.frame != 0);
        }
        for program in [&probed.enter, &probed.leave] {
            books.missed +=
                sys::recursion_misses(program.as_fd()).map_err(|error| ProbeError::Handler {
                    doing: "asking for missed calls",
                    handler: probed.target.name.clone(),
                    error,
                })?;
        }
        Ok(books)
    }

    fn read_record(
        &self,
        probed: &Probed,
        phase: u32,
        books: Books,
    ) -> Result<Drained, ProbeError> {
        let invalid = |what: String| ProbeError::Handler {
            doing: "reading the histogram",
            handler: probed.target.name.clone(),
            error: std::io::Error::other(what),
        };
        let mut histogram =
            self.precision.histogram().map_err(|error| invalid(error.to_string()))?;
        let (mut sum_ns, mut min_ns, mut max_ns, mut over_range) = (0, u64::MAX, 0, 0);
        let mut bytes = vec![0; record_bytes(self.precision)];
        let head = size_of::<RecordHead>();
        let magnitude = self.precision.magnitude();
        for cpu in 0..self.cpus {
            probed.read(names::RECORDS, self.record_key(cpu, phase), &mut bytes)?;
            if bytes[head..].iter().all(|&byte| byte == 0) {
                continue;
            }
            // The head knows the long durations alone; a short one is its counter's only value.
            sum_ns += u64_at(&bytes, 0);
            min_ns = min_ns.min(!u64_at(&bytes, 8));
            max_ns = max_ns.max(u64_at(&bytes, 16));
            over_range += u64_at(&bytes, 24);
            for (counter, count) in bytes[head..].chunks_exact(4).enumerate() {
                let count = u64::from(u32::from_ne_bytes([count[0], count[1], count[2], count[3]]));
                if count == 0 {
                    continue;
                }
                let value = lowest_value(magnitude, counter);
                if value < 1 << magnitude {
                    sum_ns += value * count;
                    min_ns = min_ns.min(value);
                    max_ns = max_ns.max(value);
                }
                histogram.record_n(value, count).map_err(|error| invalid(error.to_string()))?;
            }
        }
        let any = !histogram.is_empty();
        Ok(Drained {
            histogram,
            sum_ns,
            min_ns: any.then_some(min_ns),
            max_ns: any.then_some(max_ns),
            over_range,
            books,
        })
    }

    fn record_key(&self, cpu: u32, phase: u32) -> u32 {
        phase * self.cpus + cpu
    }

    /// Empties the records of a phase that no program writes.
    fn clear(&self, phase: u32) -> Result<(), ProbeError> {
        let empty = vec![0; record_bytes(self.precision)];
        for probed in &self.probed {
            for cpu in 0..self.cpus {
                probed.write(names::RECORDS, self.record_key(cpu, phase), &empty)?;
            }
        }
        Ok(())
    }
}

impl Session for BpfSession {
    fn targets(&self) -> Vec<&Target> {
        self.probed.iter().map(|probed| &probed.target).collect()
    }

    fn backends(&self) -> Vec<Backend> {
        vec![self.backend; self.probed.len()]
    }

    fn foreign_program(&self) -> Result<Option<(String, u32)>, ProbeError> {
        let system = |error| ProbeError::System { doing: "listing the BPF links", error };
        let mut own = Vec::new();
        for link in self.probed.iter().flat_map(|probed| &probed.links) {
            own.push(sys::link_id(link.as_fd()).map_err(system)?);
        }
        let links = sys::tracing_links().map_err(system)?;
        Ok(links.iter().filter(|link| !own.contains(&link.id)).find_map(|link| {
            let probed = self.probed.iter().find(|probed| {
                probed.target.btf_id == Some(link.btf_id) && probed.btf_object == link.btf_obj_id
            })?;
            Some((probed.target.name.clone(), link.prog_id))
        }))
    }

    /// Flips the phase, waits until no program writes the old one, reads it and empties it. So
    /// each call is in exactly one drain, and count, sum, minimum and maximum of a drain agree.
    fn drain(&mut self) -> Result<Vec<Drained>, ProbeError> {
        let old = self.phase;
        let new = (old + 1) % PHASES;
        self.phase_map.set(0, self.record_key(0, new), 0).map_err(|error| ProbeError::Map {
            doing: "flipping the phase".to_owned(),
            error: Box::new(error),
        })?;
        self.phase = new;
        sys::wait_for_running_programs();
        let displaced = self.displaced_starts()?;
        let mut all = Vec::with_capacity(self.probed.len());
        for (probed, displaced) in self.probed.iter().zip(displaced) {
            let books = self.books(probed, displaced)?;
            all.push(self.read_record(probed, old, books)?);
        }
        self.clear(old)?;
        Ok(all)
    }

    /// Entries first, so that the exits of calls under way are still counted where the kernel
    /// runs them.
    fn entries(&mut self) -> Result<Option<Vec<u64>>, ProbeError> {
        let entries = |probed| {
            let slots = self.read_slots(probed)?;
            Ok(slots.iter().map(|slot| slot.entries).sum())
        };
        self.probed.iter().map(entries).collect::<Result<_, _>>().map(Some)
    }

    fn detach(&mut self) {
        for _ in 0..2 {
            for probed in &mut self.probed {
                probed.links.pop();
            }
        }
        sys::wait_for_running_programs();
    }

    fn memory_bytes(&self) -> u64 {
        let handler = SLOTS_MAX * size_of::<Slot>()
            + (self.cpus * PHASES) as usize * record_bytes(self.precision);
        (self.probed.len() * handler) as u64
    }
}

impl Probed {
    fn map(&self, name: &'static str) -> Result<&MapData, ProbeError> {
        self.maps.maps.get(name).ok_or_else(|| ProbeError::Object {
            path: "built into this program".to_owned(),
            what: format!("no map {name}"),
        })
    }

    fn read(&self, name: &'static str, key: u32, value: &mut [u8]) -> Result<(), ProbeError> {
        sys::map_lookup(self.map(name)?.fd().as_fd(), key, value)
            .map_err(|error| self.failed("reading a map", error))
    }

    fn write(&self, name: &'static str, key: u32, value: &[u8]) -> Result<(), ProbeError> {
        sys::map_update(self.map(name)?.fd().as_fd(), key, value)
            .map_err(|error| self.failed("emptying a map", error))
    }

    fn failed(&self, doing: &'static str, error: std::io::Error) -> ProbeError {
        ProbeError::Handler { doing, handler: self.target.name.clone(), error }
    }
}

/// BTF objects of the modules that hold the targets, with their ids.
fn btf_objects(targets: &[Target]) -> Result<HashMap<Option<String>, (u32, OwnedFd)>, ProbeError> {
    let mut objects = HashMap::new();
    for target in targets {
        if objects.contains_key(&target.module) {
            continue;
        }
        let name = target.module.as_deref().unwrap_or("vmlinux");
        let object = sys::kernel_btf(name)
            .map_err(|error| ProbeError::System { doing: "listing the kernel's BTF", error })?
            .ok_or_else(|| ProbeError::ModuleGone { module: name.to_owned() })?;
        objects.insert(target.module.clone(), object);
    }
    Ok(objects)
}

fn record_bytes(precision: Precision) -> usize {
    // The kernel rounds values up to 8 bytes and so do we.
    (size_of::<RecordHead>() + precision.counters() * size_of::<u32>()).next_multiple_of(8)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(word)
}
