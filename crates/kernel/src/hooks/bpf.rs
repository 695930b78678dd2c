//! Where BPF programs are attached: kprobes and tracepoints of perf events, raw tracepoints, and trampolines.
//!
//! A link of a perf event does not say what it is on before Linux 6.6, and a trampoline never says which functions it has. What is
//! attached elsewhere (kprobe.multi, uprobes, tc, XDP, cgroups, iterators) is not looked for.

use std::collections::BTreeSet;
use std::io;

use super::HookKind;
use super::walk::{Found, MOST, MOST_SHORT, Walk, Walked, collected};

/// `TRAMPOLINE_TABLE_SIZE` of kernel/bpf/trampoline.c.
const TRAMPOLINES: u64 = 1 << 10;

/// The lists of a trampoline: `enum bpf_tramp_prog_type`.
const KINDS: [HookKind; 3] = [HookKind::Fentry, HookKind::Fexit, HookKind::FmodRet];

/// Begins the names of functions that programs of the LSM are on, and of what calls raw tracepoints' programs.
const LSM: &str = "bpf_lsm_";
const RAW: &str = "__bpf_trace_";

/// Longest name of a tracepoint that is read.
const LONGEST: u64 = 64;

impl Walk<'_> {
    /// All places that call BPF programs, and what could not be read.
    pub(super) fn bpf(&self) -> (Vec<Found>, Vec<String>) {
        let (mut found, unknown) = collected([
            ("BPF programs on kprobes", self.bpf_kprobes()),
            ("BPF programs on tracepoints", self.bpf_events()),
            ("BPF programs on raw tracepoints", self.bpf_raw_tracepoints()),
            ("BPF programs on trampolines", self.bpf_trampolines()),
        ]);
        // A kprobe of tracefs is an event, too.
        let mut seen = BTreeSet::new();
        found.retain(|found: &Found| seen.insert(found.hook.address));
        (found, unknown)
    }

    /// Where the code of the program at an address begins.
    fn program(&self, address: u64) -> io::Result<u64> {
        let [function] = self.reader.offsets("bpf_prog", ["bpf_func"])?;
        self.word(address, function)
    }

    /// The programs of a perf event, by where its array has them; 0 is no array.
    fn programs(&self, array: u64) -> io::Result<Vec<(u64, u64)>> {
        let [items] = self.reader.offsets("bpf_prog_array", ["items"])?;
        let [program] = self.reader.offsets("bpf_prog_array_item", ["prog"])?;
        let bytes = self.reader.structure("bpf_prog_array_item")?.size;
        let mut found = Vec::new();
        for number in 0..if array == 0 { 0 } else { MOST_SHORT as u64 } {
            let at = array.wrapping_add(items + program + bytes * number);
            match (self.read)(at)? {
                0 => break,
                address => found.push((at, self.program(address)?)),
            }
        }
        Ok(found)
    }

    fn bpf_kprobes(&self) -> Walked {
        let [rp, tp] = self.reader.offsets("trace_kprobe", ["rp", "tp"])?;
        let [kp] = self.reader.offsets("kretprobe", ["kp"])?;
        let [event] = self.reader.offsets("trace_probe", ["event"])?;
        let [call] = self.reader.offsets("trace_probe_event", ["call"])?;
        let [array] = self.reader.offsets("trace_event_call", ["prog_array"])?;
        let dispatchers =
            ["kprobe_dispatcher", "kretprobe_dispatcher"].map(|name| self.reader.symbol(name).ok());
        let mut found = Vec::new();
        for probe in self.kprobes()? {
            let dispatcher = probe.calls.iter().any(|call| dispatchers.contains(&Some(*call)));
            if !dispatcher || found.len() >= MOST {
                continue;
            }
            let event = self.word(probe.hook.address.wrapping_sub(rp + kp), tp + event)?;
            for (address, program) in self.programs(self.word(event, call + array)?)? {
                let hook = super::Hook { address, ..probe.hook.clone() };
                found.push(Found { hook, at: probe.at, calls: vec![program] });
            }
        }
        Ok(found)
    }

    fn bpf_events(&self) -> Walked {
        let [list, class, array] =
            self.reader.offsets("trace_event_call", ["list", "class", "prog_array"])?;
        let head = self.reader.symbol("ftrace_events")?;
        let tracepoints = self.all_tracepoints();
        let mut found = Vec::new();
        for node in self.list((self.read)(head)?, 0, head, 4 * MOST)? {
            if found.len() >= MOST {
                break;
            }
            let call = node.wrapping_sub(list);
            let programs = self.programs(self.word(call, array)?)?;
            if programs.is_empty() {
                continue;
            }
            // Behind the class: a tracepoint, or else a name.
            let name = self.word(call, class + 8)?;
            let name = match tracepoints.iter().find(|(address, _)| *address == name) {
                Some((_, name)) => (*name).to_owned(),
                None => self.text(name)?,
            };
            for (at, program) in programs {
                found.push(Found::named(HookKind::Tracepoint, name.clone(), program, at));
            }
        }
        Ok(found)
    }

    fn bpf_raw_tracepoints(&self) -> Walked {
        let link = self.reader.offsets("bpf_raw_tp_link", ["link"]).ok();
        let link = link.zip(self.reader.offsets("bpf_link", ["prog"]).ok());
        let mut found = Vec::new();
        for (name, at, call) in self.on_tracepoints()? {
            if !self.names.below(call).is_some_and(|(_, name, _)| name.starts_with(RAW)) {
                continue;
            }
            // The data is the program, and since Linux 6.10 its link (commit d4dfc5700e86).
            let data = self.word(at, 8)?;
            let of_link = link.map(|([link], [program])| self.word(data, link + program));
            let programs = [Some(data), of_link.transpose()?];
            let mut raw = Found::named(HookKind::RawTracepoint, name, 0, at);
            raw.calls =
                programs.into_iter().flatten().filter_map(|it| self.program(it).ok()).collect();
            found.push(raw);
        }
        Ok(found)
    }

    fn bpf_trampolines(&self) -> Walked {
        let [hlist, function, lists] =
            self.reader.offsets("bpf_trampoline", ["hlist", "func", "progs_hlist"])?;
        // In a structure without a name, behind the function's model.
        let function = function + self.reader.structure("btf_func_model")?.size.next_multiple_of(8);
        let in_list = self.program_in_list()?;
        let mut found = Vec::new();
        for node in self.hashed(self.reader.symbol("trampoline_table")?, TRAMPOLINES)? {
            let trampoline = node.wrapping_sub(hlist);
            let place = self.names.place(self.word(trampoline, function)?);
            for (number, kind) in (0..).zip(KINDS) {
                let first = self.word(trampoline, lists + 8 * number)?;
                for entry in self.list(first, 0, 0, MOST.saturating_sub(found.len()))? {
                    let program = self.program(self.word(entry, in_list)?)?;
                    let (kind, place) = match place.strip_prefix(LSM) {
                        Some(hook) => (HookKind::Lsm, hook),
                        None => (kind, place.as_str()),
                    };
                    found.push(Found::named(kind, place, program, entry));
                }
            }
        }
        Ok(found)
    }

    /// From a node of a trampoline's list to the pointer to its program: links are in these lists since Linux 6.0 (commit
    /// f7e0beaf39d3), and programs' `aux` before.
    fn program_in_list(&self) -> io::Result<u64> {
        let [list, program] = match self.reader.offsets("bpf_tramp_link", ["tramp_hlist", "link"]) {
            Ok([list, link]) => [list, link + self.reader.offsets("bpf_link", ["prog"])?[0]],
            Err(_) => self.reader.offsets("bpf_prog_aux", ["tramp_hlist", "prog"])?,
        };
        Ok(program.wrapping_sub(list))
    }

    /// The name that lies at an address.
    fn text(&self, address: u64) -> io::Result<String> {
        let mut name: Vec<u8> = Vec::new();
        for at in (0..LONGEST).step_by(8) {
            name.extend(self.word(address, at)?.to_le_bytes());
            if name.contains(&0) {
                break;
            }
        }
        let name =
            name.iter().take_while(|byte| **byte != 0).filter(|byte| byte.is_ascii_graphic());
        Ok(name.map(|byte| char::from(*byte)).collect())
    }
}
