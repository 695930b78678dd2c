//! A QEMU plugin that counts the instructions of a kernel module's functions from outside of the guest.
//!
//! `profiler lab` loads it into QEMU. [`api`] is QEMU's interface, [`arch`] the architecture, [`symbols`] the guest's
//! functions, [`count`] says to which function and caller each instruction belongs, [`report`] writes it down.
//! This file joins them: it sees each block when it is translated, and each of the kernel's when it runs.
//!
//! Until the guest asks for it by a NOP (request 1) nothing is counted and no code is changed; request 2 writes the counts
//! and ends the count. With request 3 a load begins an operation, with 4 it has ended the last. Translating all code anew
//! takes longer than most counts, so after request 2 the code keeps its callbacks for the next count, until request 5.
//! `-plugin FILE,symbols=FILE,counts=FILE` has the files. Later counts than the first, if that is still there, get files of their own
//! with their numbers as extension.
//! With `instruments=on` code has callbacks from the start, so that a guest that is restored for counts has its code translated once.

mod api;
mod arch;
mod arm64;
mod count;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod report;
mod symbols;
mod x86;

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use api::{Access, Api, Id, Sum, Tb, Translation};
use arch::Kind;
use count::{Beside, Block, Counter, Event, Sums};
use symbols::Symbols;

/// The sums that translated code adds to.
#[derive(Clone, Copy)]
struct Meters {
    instructions: Sum,
    half_iterations: Sum,
    ordering: Sum,
}

struct Plugin {
    api: Api,
    meters: Meters,
    symbols: PathBuf,
    counts: PathBuf,
    counter: Option<Counter>,
    /// Number of the last count.
    counts_begun: u32,
    /// The text of the last count's symbols.
    text: String,
    /// These symbols, unless `counter` has them.
    known: Option<Symbols>,
    /// Code is translated with callbacks.
    instruments: bool,
}

/// Why a count ended of which the host would keep too much.
const FULL: &str = "functions are called in more ways than are kept (a million) under this load: leave it out, by --builtin, or by \
     --handler with handlers of other loads";

struct Only(UnsafeCell<Option<Plugin>>);

// SAFETY: see `with`.
unsafe impl Sync for Only {}

static PLUGIN: Only = Only(UnsafeCell::new(None));

/// Runs `then` on the count that is under way.
fn counting(then: impl FnOnce(&mut Counter)) {
    with(|plugin| plugin.counter.as_mut().map(then));
}

/// Runs `then` on the plugin.
fn with<R>(then: impl FnOnce(&mut Plugin) -> R) -> Option<R> {
    // SAFETY: QEMU calls back from the thread of the one vCPU (`Api::new` refuses more), after it has installed the
    // plugin on its own; no callback is called within another.
    unsafe { (*PLUGIN.0.get()).as_mut() }.map(then)
}

impl Meters {
    fn sums(self) -> Sums {
        let beside =
            Beside { half_iterations: self.half_iterations.get(), ordering: self.ordering.get() };
        Sums { instructions: self.instructions.get(), beside }
    }
}

impl Plugin {
    fn translated(&self, tb: *mut Tb) {
        // SAFETY: of the callback that is running.
        let block = unsafe { self.api.block(tb) };
        if !arch::is_kernel(block.address()) {
            self.translated_program(&block);
        } else if self.instruments {
            self.translated_kernel(&block);
        }
    }

    fn translated_program(&self, block: &Translation<'_>) {
        let arch = self.api.arch;
        let mut bytes = [0; 16];
        let mut requests = false;
        for index in 0..block.len() {
            let size = block.bytes(index, &mut bytes);
            match (arch.kind)(&bytes[..size]) {
                Kind::Request(number) => {
                    block.on_instruction(index, on_request, usize::from(number));
                    requests = true;
                }
                Kind::SystemCall if self.instruments => {
                    block.on_instruction(index, on_system_call, 0);
                }
                // Resets QEMU's pointer to the callbacks that the request frees.
                _ if requests && (arch.is_helped)(&bytes[..size]) => {
                    block.on_access(index, Access::Write, on_nothing);
                }
                _ => {}
            }
        }
    }

    fn translated_kernel(&self, block: &Translation<'_>) {
        let arch = self.api.arch;
        let length = block.len();
        let mut bytes = [0; 16];
        let mut sizes = Vec::with_capacity(length);
        let mut last = Kind::Other;
        let mut repeats = false;
        for index in 0..length {
            let size = block.bytes(index, &mut bytes);
            last = (arch.kind)(&bytes[..size]);
            block.count(index, self.meters.instructions);
            if (arch.orders)(&bytes[..size]) {
                block.count(index, self.meters.ordering);
            }
            match last {
                Kind::Repeat(accesses) => {
                    let weight = u64::from(2 / accesses);
                    block.count_accesses(index, Access::Any, self.meters.half_iterations, weight);
                    repeats |= index == 0;
                }
                Kind::Suspend => block.on_access(index, Access::Write, on_suspend),
                Kind::Resume => block.on_access(index, Access::Any, on_resume),
                _ => {}
            }
            sizes.push(size as u8);
        }
        match last {
            Kind::Call => block.on_access(length - 1, Access::Write, on_call),
            Kind::Return => block.on_access(length - 1, Access::Any, on_return),
            _ => {}
        }
        let known = Block::new(block.address(), sizes, last, repeats);
        // QEMU keeps the pointer as long as the code; there are as many as the kernel has blocks.
        block.on_start(on_block, Box::into_raw(Box::new(known)).cast());
    }

    fn arm(&mut self) {
        if self.counter.take().is_some() {
            return self.fail("it was asked to begin a second count while one was under way");
        }
        let text = match fs::read_to_string(&self.symbols) {
            Ok(text) => text,
            Err(error) => return self.fail(&error.to_string()),
        };
        let symbols = match self.known.take() {
            Some(symbols) if self.text == text => symbols,
            _ => match symbols::parse(&text, self.api.arch) {
                Ok(symbols) => symbols,
                Err(error) => return self.fail(&error),
            },
        };
        self.text = text;
        self.counts_begun += 1;
        self.counter = Some(Counter::new(symbols, self.counts_begun));
        self.instrument(true);
    }

    /// Has code translated with callbacks or without.
    fn instrument(&mut self, instruments: bool) {
        if std::mem::replace(&mut self.instruments, instruments) != instruments {
            self.api.translate_anew(translate);
        }
    }

    fn disarm(&mut self) {
        if let Some(counter) = self.counter.take() {
            let file = match self.counts.exists() {
                true => self.counts.with_extension(self.counts_begun.to_string()),
                false => self.counts.clone(),
            };
            if let Err(error) = report::write(&counter, &file) {
                self.fail(&format!("{} cannot be written: {error}", file.display()));
            }
            self.known = Some(counter.into_symbols());
        }
    }

    fn fail(&self, error: &str) {
        say(error);
        // Without the file the reader sees that there are no counts.
        let _ = fs::write(self.counts.with_extension("error"), error);
    }
}

extern "C" fn translate(_: Id) {
    with(|plugin| plugin.api.on_translation(on_translation));
}

extern "C" fn on_translation(_: Id, tb: *mut Tb) {
    with(|plugin| plugin.translated(tb));
}

extern "C" fn on_block(_: c_uint, block: *mut c_void) {
    with(|plugin| {
        if let Some(counter) = &mut plugin.counter {
            // SAFETY: `translated` made it, and nobody else uses it.
            let block = unsafe { &mut *block.cast::<Block>() };
            counter.begin(block, || plugin.meters.sums());
            if counter.is_full() {
                plugin.counter = None;
                plugin.fail(FULL);
            }
        }
    });
}

extern "C" fn on_call(_: c_uint, info: u32, slot: u64, _: *mut c_void) {
    if api::is_store(info) {
        counting(|counter| counter.record_event(Event::Call(slot)));
    }
}

extern "C" fn on_return(_: c_uint, info: u32, slot: u64, _: *mut c_void) {
    if !api::is_store(info) {
        counting(|counter| counter.record_event(Event::Return(slot)));
    }
}

extern "C" fn on_suspend(_: c_uint, info: u32, registers: u64, _: *mut c_void) {
    if api::is_store(info) {
        counting(|counter| counter.suspend(registers));
    }
}

extern "C" fn on_resume(_: c_uint, info: u32, registers: u64, _: *mut c_void) {
    if !api::is_store(info) {
        counting(|counter| counter.resume(registers));
    }
}

extern "C" fn on_nothing(_: c_uint, _: u32, _: u64, _: *mut c_void) {}

extern "C" fn on_request(_: c_uint, number: *mut c_void) {
    with(|plugin| match (number as usize, &mut plugin.counter) {
        (1, _) => plugin.arm(),
        (2, _) => plugin.disarm(),
        (3, Some(counter)) => counter.operation(true),
        (4, Some(counter)) => counter.operation(false),
        (5, None) => plugin.instrument(false),
        _ => {}
    });
}

extern "C" fn on_system_call(_: c_uint, _: *mut c_void) {
    counting(Counter::system_call);
}

/// Without a reader `eprintln!` would panic, and QEMU end with it.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "profiler-qemu: {text}");
}

/// QEMU calls it when it has loaded the plugin.
///
/// # Safety
/// The arguments are as QEMU's interface has them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let mut files = [None, None];
    let mut instruments = false;
    for index in 0..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: `argv` has `argc` strings.
        let word = unsafe { CStr::from_ptr(*argv.add(index)) }.to_string_lossy().into_owned();
        instruments |= word == "instruments=on";
        for (file, name) in files.iter_mut().zip(["symbols=", "counts="]) {
            if let Some(path) = word.strip_prefix(name) {
                *file = Some(Path::new(path).to_owned());
            }
        }
    }
    let [Some(symbols), Some(counts)] = files else {
        say("symbols=FILE and counts=FILE are needed");
        return 1;
    };
    // SAFETY: as the caller promises.
    let made = unsafe { Api::new(id, info.cast()) }.and_then(|api| {
        Ok(Plugin {
            meters: Meters {
                instructions: api.sum()?,
                half_iterations: api.sum()?,
                ordering: api.sum()?,
            },
            api,
            symbols,
            counts,
            counter: None,
            counts_begun: 0,
            text: String::new(),
            known: None,
            instruments,
        })
    });
    match made {
        Ok(plugin) => {
            plugin.api.on_translation(on_translation);
            // SAFETY: no callback is running yet.
            unsafe { *PLUGIN.0.get() = Some(plugin) };
            0
        }
        Err(why) => {
            say(&why);
            1
        }
    }
}
