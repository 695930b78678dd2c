//! Kprobes and kretprobes that a loaded module has registered, with the hits for which the kernel did not call its handlers.
//!
//! The kernel keeps `nmissed` and `maxactive` to itself: /sys/kernel/debug/kprobes/list has neither (`report_probe()` in
//! kernel/kprobes.c), and `kprobe_profile` of tracefs has the kprobes of tracefs alone. So they are read where they are, through
//! /proc/kcore, at the offsets that the kernel's BTF gives.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::Serialize;

use super::btf::Btf;
use super::target::KernelFiles;
use crate::bytes::array;

/// A kprobe or kretprobe of a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnProbe {
    /// The function that it is on.
    pub function: String,
    /// Functions of the module that it calls.
    pub handlers: Vec<String>,
    /// Calls that a kretprobe follows at a time; `None` of a kprobe.
    pub maxactive: Option<u32>,
    /// Hits without a call of the handlers, since it was registered, because another kprobe was being handled on that CPU.
    pub missed: u64,
    /// The same because `maxactive` calls were under way.
    pub beyond_maxactive: u64,
    /// Of its structure in the kernel.
    #[serde(skip)]
    address: u64,
}

impl OwnProbe {
    /// How many hits it has missed since it was `before`; `None` of another probe.
    #[must_use]
    pub fn missed_since(&self, before: &Self) -> Option<u64> {
        let sum = |probe: &Self| probe.missed + probe.beyond_maxactive;
        (self.address == before.address).then(|| sum(self).saturating_sub(sum(before)))
    }
}

/// `KPROBE_TABLE_SIZE` of kernel/kprobes.c.
const BUCKETS: u64 = 64;

/// Probes that are looked at, at most: the lists may change while they are read.
const MOST: usize = 1 << 16;

/// Bytes from a function's start to a probe on it, at most: behind `endbr64`, where the kernel puts it (`arch_adjust_kprobe_addr()`).
const PROLOGUE: u64 = 16;

/// The probes of `module`, by function.
///
/// # Errors
/// Why they cannot be read, in words.
pub fn of_module(files: &KernelFiles, module: &str) -> Result<Vec<OwnProbe>, String> {
    let btf = Btf::of(None, &files.btf_folder()).map_err(|error| error.to_string())?;
    let layout = Layout::of(&btf).ok_or("the kernel's BTF does not describe its kprobes")?;
    let names = ["kprobe_table", "aggr_pre_handler", "pre_handler_kretprobe"];
    let symbols = files.addresses_of(&names).map_err(|error| error.to_string())?;
    let [Some(table), aggregate, Some(kretprobe)] = symbols[..] else {
        return Err("/proc/kallsyms does not show where they are".to_owned());
    };
    let kcore = Kcore::open(files).map_err(|error| format!("/proc/kcore: {error}"))?;
    let list = List { layout, table, aggregate: aggregate.unwrap_or(0), kretprobe };
    let raw = list.walk(&|address| kcore.word(address));
    let raw = raw.map_err(|error| format!("/proc/kcore: {error}"))?;
    let addresses: Vec<u64> =
        raw.iter().flat_map(|raw| [raw.at, raw.calls[0], raw.calls[1]]).collect();
    let named = files.names_of(&addresses, PROLOGUE).map_err(|error| error.to_string())?;
    let mut probes: Vec<OwnProbe> = raw
        .iter()
        .zip(named.chunks_exact(3))
        .filter_map(|(raw, named)| raw.of(module, named))
        .collect();
    probes.sort_by(|a, b| (&a.function, &a.handlers).cmp(&(&b.function, &b.handlers)));
    Ok(probes)
}

/// Offsets of members, in bytes.
struct Layout {
    /// Of `struct kprobe`: hlist, list, nmissed, addr, pre_handler, post_handler.
    kprobe: [u64; 6],
    /// Of `struct kretprobe`: kp, handler, entry_handler, maxactive, nmissed.
    kretprobe: [u64; 5],
}

impl Layout {
    fn of(btf: &Btf) -> Option<Self> {
        let kprobe = ["hlist", "list", "nmissed", "addr", "pre_handler", "post_handler"];
        let kretprobe = ["kp", "handler", "entry_handler", "maxactive", "nmissed"];
        Some(Self {
            kprobe: btf.offsets("kprobe", kprobe)?,
            kretprobe: btf.offsets("kretprobe", kretprobe)?,
        })
    }
}

/// The kernel's list of kprobes.
struct List {
    layout: Layout,
    /// Address of its hash table.
    table: u64,
    /// `pre_handler` of several kprobes on one address.
    aggregate: u64,
    /// `pre_handler` of a kretprobe.
    kretprobe: u64,
}

/// What is read of a probe.
struct Raw {
    address: u64,
    /// Where it is.
    at: u64,
    /// Its handlers; 0 is none.
    calls: [u64; 2],
    maxactive: Option<u32>,
    missed: u64,
    beyond_maxactive: u64,
}

type Read<'a> = &'a dyn Fn(u64) -> io::Result<u64>;

impl List {
    fn walk(&self, read: Read<'_>) -> io::Result<Vec<Raw>> {
        let [hlist, list, _, _, pre_handler, _] = self.layout.kprobe;
        let mut found = Vec::new();
        for bucket in 0..BUCKETS {
            // Both kinds of node begin with the pointer to the next.
            let mut node = read(self.table + 8 * bucket)?;
            while node != 0 && found.len() < MOST {
                let probe = node.wrapping_sub(hlist);
                if self.aggregate != 0 && read(probe.wrapping_add(pre_handler))? == self.aggregate {
                    let head = probe.wrapping_add(list);
                    let mut member = read(head)?;
                    while member != head && found.len() < MOST {
                        found.push(self.probe(member.wrapping_sub(list), read)?);
                        member = read(member)?;
                    }
                } else {
                    found.push(self.probe(probe, read)?);
                }
                node = read(node)?;
            }
        }
        Ok(found)
    }

    fn probe(&self, address: u64, read: Read<'_>) -> io::Result<Raw> {
        let [_, _, nmissed, addr, pre_handler, post_handler] = self.layout.kprobe;
        let of_kprobe = |offset: u64| read(address.wrapping_add(offset));
        let mut raw = Raw {
            address,
            at: of_kprobe(addr)?,
            calls: [of_kprobe(pre_handler)?, of_kprobe(post_handler)?],
            maxactive: None,
            missed: of_kprobe(nmissed)?,
            beyond_maxactive: 0,
        };
        if raw.calls[0] == self.kretprobe {
            let [kp, handler, entry_handler, maxactive, nmissed] = self.layout.kretprobe;
            let of = |offset: u64| read(address.wrapping_sub(kp).wrapping_add(offset));
            // `int` both; machines are little endian.
            raw.maxactive = Some(of(maxactive)? as u32);
            raw.beyond_maxactive = u64::from(of(nmissed)? as u32);
            raw.calls = [of(entry_handler)?, of(handler)?];
        }
        Ok(raw)
    }
}

impl Raw {
    /// The probe, if it calls functions of `module`; `named` are the function that it is on, and its handlers.
    fn of(&self, module: &str, named: &[Option<(String, Option<String>)>]) -> Option<OwnProbe> {
        let [on, handlers @ ..] = named else { return None };
        let of_module = |(name, place): &(String, Option<String>)| {
            (place.as_deref() == Some(module)).then(|| name.clone())
        };
        let handlers: Vec<String> = handlers.iter().flatten().filter_map(of_module).collect();
        let on = on.as_ref().map_or_else(|| format!("{:#x}", self.at), |(name, _)| name.clone());
        (!handlers.is_empty()).then_some(OwnProbe {
            function: on,
            handlers,
            maxactive: self.maxactive,
            missed: self.missed,
            beyond_maxactive: self.beyond_maxactive,
            address: self.address,
        })
    }
}

/// The kernel's memory: an ELF core file with a segment for each range of addresses.
struct Kcore {
    file: File,
    /// First address, length, and place in the file.
    segments: Vec<[u64; 3]>,
}

impl Kcore {
    fn open(files: &KernelFiles) -> io::Result<Self> {
        let file = File::open(files.path("proc/kcore"))?;
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0)?;
        let short = |at: usize| array(&header, at).map_or(0, u16::from_ne_bytes);
        let start = array(&header, 32).map_or(0, u64::from_ne_bytes);
        let (length, count) = (u64::from(short(54)), u64::from(short(56)));
        let mut segments = Vec::new();
        for at in 0..count {
            let mut segment = [0; 56];
            file.read_exact_at(&mut segment, start.saturating_add(at * length))?;
            let long = |at: usize| array(&segment, at).map_or(0, u64::from_ne_bytes);
            segments.push([long(16), long(40), long(8)]);
        }
        Ok(Self { file, segments })
    }

    fn word(&self, address: u64) -> io::Result<u64> {
        let within = |[first, length, _]: &&[u64; 3]| {
            address.checked_sub(*first).is_some_and(|offset| offset.saturating_add(8) <= *length)
        };
        let [first, _, place] =
            self.segments.iter().find(within).ok_or_else(|| {
                io::Error::other(format!("it does not have address {address:#x}"))
            })?;
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, place.wrapping_add(address - first))?;
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const LAYOUT: Layout =
        Layout { kprobe: [0, 16, 32, 40, 48, 56], kretprobe: [0, 112, 120, 128, 132] };
    const TABLE: u64 = 0x1000;
    const AGGREGATE: u64 = 0xa0;
    const KRETPROBE: u64 = 0xb0;

    /// Memory with a kprobe of these handlers at `address`.
    fn kprobe(memory: &mut HashMap<u64, u64>, address: u64, on: u64, handler: u64, missed: u64) {
        for (offset, value) in [(0, 0), (32, missed), (40, on), (48, handler), (56, 0)] {
            memory.insert(address + offset, value);
        }
    }

    #[test]
    fn kprobes_kretprobes_and_several_of_one_function_are_found() {
        let mut memory: HashMap<u64, u64> = (0..BUCKETS).map(|at| (TABLE + 8 * at, 0)).collect();
        let of = &mut memory;
        kprobe(of, 0x2000, 0x50, 0x71, 5);
        kprobe(of, 0x3000, 0x60, KRETPROBE, 2);
        of.extend([(0x3000 + 112, 0x72), (0x3000 + 120, 0x73), (0x3000 + 128, 9 << 32 | 16)]);
        of.insert(0x3000 + 132, 9);
        // Two on one function, behind the kretprobe in its bucket.
        kprobe(of, 0x4000, 0x50, AGGREGATE, 0);
        kprobe(of, 0x5000, 0x50, 0x74, 1);
        kprobe(of, 0x6000, 0x50, 0x75, 0);
        of.extend([(0x4010, 0x5010), (0x5010, 0x6010), (0x6010, 0x4010)]);
        of.extend([(TABLE, 0x2000), (TABLE + 8 * 63, 0x3000), (0x3000, 0x4000)]);
        let list =
            List { layout: LAYOUT, table: TABLE, aggregate: AGGREGATE, kretprobe: KRETPROBE };
        let read = |address: u64| memory.get(&address).copied().ok_or_else(|| io::Error::other(""));
        let raw = list.walk(&read).unwrap();
        let named = |address: u64| match address {
            0x70..0x80 => Some((format!("h{address:x}"), Some("driver".to_owned()))),
            0 => None,
            _ => Some((format!("f{address:x}"), None)),
        };
        let probe = |raw: &Raw| raw.of("driver", &[raw.at, raw.calls[0], raw.calls[1]].map(named));
        let found: Vec<OwnProbe> = raw.iter().filter_map(probe).collect();
        let figures: Vec<_> = found
            .iter()
            .map(|of| {
                (
                    of.function.as_str(),
                    of.handlers.join(" "),
                    of.maxactive,
                    of.missed,
                    of.beyond_maxactive,
                )
            })
            .collect();
        let owned = str::to_owned;
        assert_eq!(
            figures,
            [
                ("f50", owned("h71"), None, 5, 0),
                ("f60", owned("h73 h72"), Some(16), 2, 9),
                ("f50", owned("h74"), None, 1, 0),
                ("f50", owned("h75"), None, 0, 0),
            ]
        );
        assert_eq!(found[1].missed_since(&found[1]), Some(0));
        assert_eq!(found[1].missed_since(&found[0]), None);
        assert!(
            raw.iter().all(|raw| raw.of("other", &[raw.at, raw.calls[0], 0].map(named)).is_none())
        );
    }

    /// A list that was changed while it was read.
    #[test]
    fn a_circle_ends() {
        let list = List { layout: LAYOUT, table: TABLE, aggregate: 1, kretprobe: 2 };
        let read = |_: u64| Ok(0x2000);
        assert_eq!(list.walk(&read).unwrap().len(), MOST);
    }
}
