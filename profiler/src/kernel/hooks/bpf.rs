//! Where BPF programs are attached: kprobes and tracepoints of perf events, raw tracepoints, and trampolines.
//!
//! A link of a perf event does not say what it is on before Linux 6.6, and a trampoline never says which functions it has. What is
//! attached elsewhere (kprobe.multi, uprobes, tc, XDP, cgroups, iterators) is not looked for.

use std::collections::BTreeSet;
use std::io;

use super::walk::{Found, MOST, MOST_SHORT, Walk, Walked, all};
use super::{HookKind, Read, Reader};
use crate::kernel::names::Names;

/// `TRAMPOLINE_TABLE_SIZE` of kernel/bpf/trampoline.c.
const TRAMPOLINES: u64 = 1 << 10;

/// The lists of a trampoline: `enum bpf_tramp_prog_type`.
const KINDS: [HookKind; 3] = [HookKind::Fentry, HookKind::Fexit, HookKind::FmodRet];

/// Begins the names of functions that programs of the LSM are on, and of what calls raw tracepoints' programs.
const LSM: &str = "bpf_lsm_";
const RAW: &str = "__bpf_trace_";

/// Longest name of a tracepoint that is read.
const LONGEST: u64 = 64;

impl Reader {
    /// All places that call BPF programs, and in words what could not be read; `tracepoints` has the kernel's by address.
    pub(super) fn walk_bpf(
        &self,
        names: &Names<'_>,
        tracepoints: &[(u64, &str)],
        read: Read<'_>,
    ) -> (Vec<Found>, Vec<String>) {
        let walks: [Walk<'_>; 4] = [
            ("BPF programs on kprobes", &|| self.bpf_kprobes(read)),
            ("BPF programs on tracepoints", &|| self.bpf_events(tracepoints, read)),
            ("BPF programs on raw tracepoints", &|| {
                self.bpf_raw_tracepoints(names, tracepoints, read)
            }),
            ("BPF programs on trampolines", &|| self.bpf_trampolines(names, read)),
        ];
        let (mut found, unknown) = all(&walks);
        // A kprobe of tracefs is an event, too.
        let mut seen = BTreeSet::new();
        found.retain(|found: &Found| seen.insert(found.hook.address));
        (found, unknown)
    }

    /// Where the code of the program at an address begins.
    fn program(&self, address: u64, read: Read<'_>) -> io::Result<u64> {
        read(address.wrapping_add(self.bpf.function.unwrap_or_default()))
    }

    /// The programs of a perf event, by where an array has them.
    fn programs(&self, array: u64, read: Read<'_>) -> io::Result<Vec<(u64, u64)>> {
        let Some([items, program, bytes]) = self.bpf.array else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for number in 0..MOST_SHORT as u64 {
            let at = array.wrapping_add(items + program).wrapping_add(bytes * number);
            match read(at)? {
                0 => break,
                address => found.push((at, self.program(address, read)?)),
            }
        }
        Ok(found)
    }

    fn bpf_kprobes(&self, read: Read<'_>) -> Walked {
        let (Some([back, event, call]), Some([.., in_call])) = (self.bpf.kprobe, self.bpf.event)
        else {
            return Ok(None);
        };
        let Some(probes) = self.kprobes(read)? else { return Ok(None) };
        let dispatchers =
            ["kprobe_dispatcher", "kretprobe_dispatcher"].map(|name| self.symbol(name));
        let mut found = Vec::new();
        for probe in probes {
            let dispatcher = probe.calls.iter().any(|call| dispatchers.contains(&Some(*call)));
            if !dispatcher || found.len() >= MOST {
                continue;
            }
            let event = read(probe.hook.address.wrapping_sub(back).wrapping_add(event))?;
            let array = read(event.wrapping_add(call).wrapping_add(in_call))?;
            if array != 0 {
                for (address, program) in self.programs(array, read)? {
                    let hook = super::Hook { address, ..probe.hook.clone() };
                    found.push(Found { hook, at: probe.at, calls: vec![program] });
                }
            }
        }
        Ok(Some(found))
    }

    fn bpf_events(&self, tracepoints: &[(u64, &str)], read: Read<'_>) -> Walked {
        let (Some([list, name, in_call]), Some(head)) =
            (self.bpf.event, self.symbol("ftrace_events"))
        else {
            return Ok(None);
        };
        let mut found = Vec::new();
        let mut node = read(head)?;
        for _ in 0..4 * MOST {
            if node == head || node == 0 || found.len() >= MOST {
                break;
            }
            let call = node.wrapping_sub(list);
            let array = read(call.wrapping_add(in_call))?;
            if array != 0 {
                let name = read(call.wrapping_add(name))?;
                let tracepoint = tracepoints.iter().find(|(address, _)| *address == name);
                let name =
                    tracepoint.map_or_else(|| text(name, read), |(_, it)| Ok((*it).to_owned()))?;
                for (at, program) in self.programs(array, read)? {
                    found.push(Found::named(HookKind::Tracepoint, name.clone(), program, at));
                }
            }
            node = read(node)?;
        }
        Ok(Some(found))
    }

    fn bpf_raw_tracepoints(
        &self,
        names: &Names<'_>,
        tracepoints: &[(u64, &str)],
        read: Read<'_>,
    ) -> Walked {
        let is_raw =
            |call: u64| names.below(call).is_some_and(|(_, name, _)| name.starts_with(RAW));
        let mut found = Vec::new();
        let functions = self.on_tracepoints(tracepoints, read)?.unwrap_or_default();
        for (name, at, _) in functions.into_iter().filter(|(.., call)| is_raw(*call)) {
            // The data is the program, and since Linux 6.10 its link (commit d4dfc5700e86).
            let data = read(at.wrapping_add(8))?;
            let link = self.bpf.raw_link.map(|at| read(data.wrapping_add(at)));
            let programs = [Some(data), link.transpose()?];
            let calls = programs.into_iter().flatten().filter_map(|it| self.program(it, read).ok());
            let mut hook = Found::named(HookKind::RawTracepoint, name, 0, at);
            hook.calls = calls.collect();
            found.push(hook);
        }
        Ok(Some(found))
    }

    fn bpf_trampolines(&self, names: &Names<'_>, read: Read<'_>) -> Walked {
        let (Some([hlist, function, lists]), Some(in_list), Some(table)) =
            (self.bpf.trampoline, self.bpf.in_list, self.symbol("trampoline_table"))
        else {
            return Ok(None);
        };
        let mut found = Vec::new();
        let mut nodes = 0;
        for bucket in 0..TRAMPOLINES {
            let mut node = read(table.wrapping_add(8 * bucket))?;
            while node != 0 && nodes < MOST && found.len() < MOST {
                nodes += 1;
                let trampoline = node.wrapping_sub(hlist);
                let at = read(trampoline.wrapping_add(function))?;
                for (number, kind) in (0..).zip(KINDS) {
                    let list = trampoline.wrapping_add(lists).wrapping_add(8 * number);
                    let mut entry = read(list)?;
                    while entry != 0 && found.len() < MOST {
                        let program = self.program(read(entry.wrapping_add(in_list))?, read)?;
                        found.push(on_trampoline(kind, names.place(at), program, entry));
                        entry = read(entry)?;
                    }
                }
                node = read(node)?;
            }
        }
        Ok(Some(found))
    }
}

fn on_trampoline(kind: HookKind, place: String, program: u64, address: u64) -> Found {
    match place.strip_prefix(LSM) {
        Some(hook) => Found::named(HookKind::Lsm, hook, program, address),
        None => Found::named(kind, place, program, address),
    }
}

/// The name that lies at an address.
fn text(address: u64, read: Read<'_>) -> io::Result<String> {
    let mut name: Vec<u8> = Vec::new();
    for at in (0..LONGEST).step_by(8) {
        let bytes = read(address.wrapping_add(at))?.to_le_bytes();
        let end = bytes.iter().position(|byte| *byte == 0);
        name.extend(&bytes[..end.unwrap_or(bytes.len())]);
        if end.is_some() {
            break;
        }
    }
    Ok(name.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect())
}
