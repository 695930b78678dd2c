//! The kernel's lists of what modules have registered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use super::{BPF, Hook, HookKind, ProbeState, Read};
use crate::btf::{Btf, Structure};
use crate::names::{Names, is_function, lines_of};

/// Most entries that are read of a list: it may change while it is read, and a guest may make a circle.
pub(super) const MOST: usize = 1 << 12;

/// The same of a chain of notifiers and of the functions of a tracepoint, of which there are thousands.
pub(super) const MOST_SHORT: usize = 256;

/// Most functions of all tracepoints together: a guest may claim any number.
const MOST_ON_TRACEPOINTS: usize = 1 << 16;

/// `KPROBE_TABLE_SIZE` of kernel/kprobes.c.
const BUCKETS: u64 = 64;

/// Tables of system calls, and the entries that are read of each: more than there are.
const SYSTEM_CALL_TABLES: [&str; 2] = ["sys_call_table", "ia32_sys_call_table"];
const SYSTEM_CALLS: u64 = 512;

/// Bytes of `struct tracepoint_func` and of `struct nf_hook_entry`, since Linux 4.4 and 4.14.
const TRACEPOINT_FUNC: u64 = 24;
const NF_HOOK_ENTRY: u64 = 16;

/// Flags of `struct kprobe`: `KPROBE_FLAG_GONE` and so on.
const GONE: u32 = 1;
const DISABLED: u32 = 2;
const OPTIMIZED: u32 = 4;
const FTRACE: u32 = 8;

/// The lowest address of the kernel, with page tables of four levels, on arm64; on x86-64 it is higher.
const KERNEL: u64 = 0xffff_0000_0000_0000;

const PREFIX: &str = "__tracepoint_";
/// Begins the names of tracepoints' further parts, since Linux 6.14.
const PARTS: &str = "ext_";

/// Hooks of netfilter: member of `struct netns_nf`, and the names of its elements.
const NETFILTER: [(&str, &str, &[&str]); 4] = [
    ("hooks_ipv4", "ipv4", &INET),
    ("hooks_ipv6", "ipv6", &INET),
    ("hooks_bridge", "bridge", &INET),
    ("hooks_arp", "arp", &["in", "out", "forward"]),
];
const INET: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];

/// Heads of chains of notifiers.
const CHAINS: [&str; 4] =
    ["atomic_notifier_head", "blocking_notifier_head", "raw_notifier_head", "srcu_notifier_head"];

/// Symbols that are needed by name.
const SYMBOLS: [&str; 15] = [
    "kprobe_table",
    "ftrace_events",
    "trampoline_table",
    "ftrace_ops_list",
    "ftrace_list_end",
    "init_net",
    "security_hook_heads",
    "static_calls_table",
    SYSTEM_CALL_TABLES[0],
    SYSTEM_CALL_TABLES[1],
    "aggr_pre_handler",
    "pre_handler_kretprobe",
    "kprobe_dispatcher",
    "kretprobe_dispatcher",
    // Through which arm64's memory is read.
    crate::hooks::PAGE_TABLES,
];

/// Whether a symbol is needed. Since Linux 7.0 data may have the kind of a function.
pub(super) fn is_needed(kind: &str, name: &str) -> bool {
    SYMBOLS.contains(&name) || name.starts_with(PREFIX) || !is_function(kind) && is_chain(name)
}

/// Whether data may be the head of a chain of notifiers, by its name; what is in it shows whether it is one.
fn is_chain(name: &str) -> bool {
    name.contains("chain") || name.contains("notif")
}

/// A hook, still without its handlers.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) hook: Hook,
    /// Where it is in code, which has no name yet.
    pub(super) at: Option<u64>,
    /// Addresses that the kernel calls; 0 is none.
    pub(super) calls: Vec<u64>,
}

impl Found {
    pub(super) fn named(kind: HookKind, place: impl Into<String>, call: u64, address: u64) -> Self {
        let hook = Hook { address, ..Hook::new(kind, place, Vec::new()) };
        Self { hook, at: None, calls: vec![call] }
    }
}

/// The hooks of one kind, or why they cannot be read.
pub(super) type Walked = io::Result<Vec<Found>>;

/// Where a kernel has its lists, and what its structures look like.
#[derive(Debug)]
pub struct Reader {
    /// Addresses of [`SYMBOLS`].
    symbols: BTreeMap<String, u64>,
    types: Arc<Btf>,
}

impl Reader {
    /// Of the kernel with these types and symbols; `kallsyms` has all that are [`needed`](super::needed), or more.
    ///
    /// # Errors
    /// If the symbols are hidden, or the types do not describe kprobes.
    pub fn new(types: Arc<Btf>, kallsyms: &str) -> Result<Self, String> {
        let reader = Self { symbols: symbols(kallsyms), types };
        if reader.structure("kprobe").is_err() || reader.structure("kretprobe").is_err() {
            return Err("the kernel's BTF does not describe its kprobes".to_owned());
        }
        match reader.symbol("kprobe_table") {
            Ok(_) => Ok(reader),
            Err(_) => Err("/proc/kallsyms does not show where they are".to_owned()),
        }
    }

    pub(super) fn symbol(&self, name: &str) -> io::Result<u64> {
        self.symbols.get(name).copied().ok_or_else(lacking)
    }

    pub(super) fn structure(&self, name: &str) -> io::Result<Structure<'_>> {
        self.types.structure(name).ok_or_else(lacking)
    }

    /// Offsets of members of a structure, in bytes.
    pub(super) fn offsets<const N: usize>(
        &self,
        structure: &str,
        members: [&str; N],
    ) -> io::Result<[u64; N]> {
        let structure = self.structure(structure)?;
        let mut offsets = [0; N];
        for (offset, member) in offsets.iter_mut().zip(members) {
            *offset = structure.offset(member).ok_or_else(lacking)?;
        }
        Ok(offsets)
    }

    /// Hits that the kprobe, or kretprobe, at `address` has missed, and those beyond `maxactive`.
    pub(super) fn misses(
        &self,
        kind: HookKind,
        address: u64,
        read: Read<'_>,
    ) -> io::Result<[u64; 2]> {
        let [missed] = self.offsets("kprobe", ["nmissed"])?;
        let missed = read(address.wrapping_add(missed))?;
        if kind != HookKind::Kretprobe {
            return Ok([missed, 0]);
        }
        let [kp, beyond] = self.offsets("kretprobe", ["kp", "nmissed"])?;
        let beyond = read(address.wrapping_sub(kp).wrapping_add(beyond))? as u32;
        Ok([missed, beyond.into()])
    }
}

fn lacking() -> io::Error {
    io::Error::other("the kernel's types or symbols lack them")
}

/// A walk over a kernel's memory for the hooks of a module.
pub(super) struct Walk<'a> {
    pub(super) reader: &'a Reader,
    pub(super) module: &'a str,
    pub(super) names: &'a Names<'a>,
    /// Has the symbols of tracepoints and chains.
    pub(super) kallsyms: &'a str,
    pub(super) read: Read<'a>,
}

impl<'a> Walk<'a> {
    /// All hooks that may be of the module, and what could not be read.
    pub(super) fn all(&self) -> (Vec<Found>, Vec<String>) {
        if self.module == BPF {
            return self.bpf();
        }
        collected([
            ("kprobes", self.kprobes()),
            ("tracepoints", self.tracepoints()),
            ("ftrace", self.ftrace()),
            ("netfilter", self.netfilter()),
            ("LSM hooks", self.lsm()),
            ("notifiers", self.notifiers()),
            ("system calls", self.system_calls()),
        ])
    }

    pub(super) fn word(&self, base: u64, offset: u64) -> io::Result<u64> {
        (self.read)(base.wrapping_add(offset))
    }

    /// Addresses of a list's nodes from `first` on, which have the pointer to the one behind them at `next`.
    pub(super) fn list(
        &self,
        first: u64,
        next: u64,
        end: u64,
        most: usize,
    ) -> io::Result<Vec<u64>> {
        let mut nodes = Vec::new();
        let mut node = first;
        while node != 0 && node != end && nodes.len() < most {
            nodes.push(node);
            node = self.word(node, next)?;
        }
        Ok(nodes)
    }

    /// Addresses of the nodes of a hash table of `struct hlist_head`.
    pub(super) fn hashed(&self, table: u64, buckets: u64) -> io::Result<Vec<u64>> {
        let mut nodes = Vec::new();
        for bucket in 0..buckets {
            let first = self.word(table, 8 * bucket)?;
            nodes.extend(self.list(first, 0, 0, MOST - nodes.len())?);
        }
        Ok(nodes)
    }

    fn is_own(&self, address: u64) -> bool {
        self.names.is_in(self.module, address)
    }

    /// A hook of the module, if `at` points to its code.
    fn own(&self, kind: HookKind, place: impl Into<String>, at: u64) -> io::Result<Option<Found>> {
        let call = (self.read)(at)?;
        Ok(self.is_own(call).then(|| Found::named(kind, place, call, at)))
    }

    /// Addresses and names of data, by what `named` makes of their kind and name in kallsyms.
    fn data(&self, named: impl Fn(&str, &'a str) -> Option<&'a str>) -> Vec<(u64, &'a str)> {
        let data = lines_of(self.kallsyms).filter_map(|(address, kind, name, _)| {
            let name = named(kind, name)?;
            let address = u64::from_str_radix(address, 16).ok()?;
            (address >= KERNEL).then_some((address, name))
        });
        data.collect()
    }

    /// The kernel's tracepoints.
    pub(super) fn all_tracepoints(&self) -> Vec<(u64, &'a str)> {
        self.data(|_, name| name.strip_prefix(PREFIX).filter(|name| !name.starts_with(PARTS)))
    }

    pub(super) fn kprobes(&self) -> Walked {
        let [hlist, list, pre_handler, flags] =
            self.reader.offsets("kprobe", ["hlist", "list", "pre_handler", "flags"])?;
        let aggregate = self.reader.symbol("aggr_pre_handler").ok();
        let mut found = Vec::new();
        for node in self.hashed(self.reader.symbol("kprobe_table")?, BUCKETS)? {
            if found.len() >= MOST {
                break;
            }
            let probe = node.wrapping_sub(hlist);
            let first = self.word(probe, flags)? as u32;
            if aggregate != Some(self.word(probe, pre_handler)?) {
                found.push(self.kprobe(probe, state(first))?);
                continue;
            }
            let head = probe.wrapping_add(list);
            for member in self.list(self.word(head, 0)?, 0, head, MOST - found.len())? {
                let probe = member.wrapping_sub(list);
                // How it is hit is known of the first alone: `report_probe()`.
                let state = state(self.word(probe, flags)? as u32 & (GONE | DISABLED) | first);
                found.push(self.kprobe(probe, state)?);
            }
        }
        Ok(found)
    }

    fn kprobe(&self, address: u64, state: ProbeState) -> io::Result<Found> {
        let [addr, pre_handler, post_handler] =
            self.reader.offsets("kprobe", ["addr", "pre_handler", "post_handler"])?;
        let call = self.word(address, pre_handler)?;
        let mut found = Found::named(HookKind::Kprobe, "", call, address);
        found.at = Some(self.word(address, addr)?);
        found.hook.state = Some(state);
        if self.reader.symbol("pre_handler_kretprobe").ok() == Some(call) {
            let members = ["kp", "handler", "entry_handler", "maxactive"];
            let [kp, handler, entry_handler, maxactive] =
                self.reader.offsets("kretprobe", members)?;
            let outer = address.wrapping_sub(kp);
            found.hook.kind = HookKind::Kretprobe;
            // `int`; machines are little endian.
            found.hook.maxactive = Some(self.word(outer, maxactive)? as u32);
            found.calls = vec![self.word(outer, entry_handler)?, self.word(outer, handler)?];
        } else {
            found.calls.push(self.word(address, post_handler)?);
        }
        let hook = &mut found.hook;
        [hook.missed, hook.beyond_maxactive] = self.reader.misses(hook.kind, address, self.read)?;
        Ok(found)
    }

    fn tracepoints(&self) -> Walked {
        let functions = self.on_tracepoints()?;
        let own = functions.into_iter().filter(|(.., call)| self.is_own(*call));
        let found = own.map(|(name, at, call)| Found::named(HookKind::Tracepoint, name, call, at));
        Ok(found.collect())
    }

    /// What tracepoints call: a tracepoint's name, the address of its `struct tracepoint_func`, and the function.
    pub(super) fn on_tracepoints(&self) -> io::Result<Vec<(&'a str, u64, u64)>> {
        let [funcs] = self.reader.offsets("tracepoint", ["funcs"])?;
        let mut found = Vec::new();
        for (tracepoint, name) in self.all_tracepoints() {
            let first = self.word(tracepoint, funcs)?;
            if first == 0 {
                continue;
            }
            for number in 0..MOST_SHORT as u64 {
                let at = first.wrapping_add(TRACEPOINT_FUNC * number);
                match (self.read)(at)? {
                    0 => break,
                    call if found.len() < MOST_ON_TRACEPOINTS => found.push((name, at, call)),
                    _ => return Err(io::Error::other("too many functions of tracepoints")),
                }
            }
        }
        Ok(found)
    }

    fn ftrace(&self) -> Walked {
        let [func, next, saved] =
            self.reader.offsets("ftrace_ops", ["func", "next", "saved_func"])?;
        let first = (self.read)(self.reader.symbol("ftrace_ops_list")?)?;
        let end = self.reader.symbol("ftrace_list_end").unwrap_or(0);
        let mut found = Vec::new();
        for ops in self.list(first, next, end, MOST_SHORT)? {
            let calls = [self.word(ops, func)?, self.word(ops, saved)?];
            let own = calls.into_iter().find(|call| self.is_own(*call));
            if let Some(call) = own.filter(|_| found.len() < MOST) {
                found.extend(self.functions_of(ops, call)?);
            }
        }
        Ok(found)
    }

    /// A hook for each function that `ops` are called in.
    fn functions_of(&self, ops: u64, call: u64) -> Walked {
        let [hash] = self.reader.offsets("ftrace_ops", ["func_hash"])?;
        let [filter] = self.reader.offsets("ftrace_ops_hash", ["filter_hash"])?;
        let [bits, buckets] = self.reader.offsets("ftrace_hash", ["size_bits", "buckets"])?;
        let [ip] = self.reader.offsets("ftrace_func_entry", ["ip"])?;
        let all = Found::named(HookKind::Ftrace, "every function", call, ops);
        let hash = self.word(self.word(ops, hash)?, filter)?;
        if hash == 0 {
            return Ok(vec![all]);
        }
        let bits = (self.word(hash, bits)? & 0xff).min(16);
        let entries = self.hashed(self.word(hash, buckets)?, 1 << bits)?;
        if entries.is_empty() {
            return Ok(vec![all]);
        }
        let entries = entries.into_iter();
        entries.map(|at| Ok(Found { at: Some(self.word(at, ip)?), ..all.clone() })).collect()
    }

    fn netfilter(&self) -> Walked {
        let [nf] = self.reader.offsets("net", ["nf"])?;
        let [hooks] = self.reader.offsets("nf_hook_entries", ["hooks"])?;
        let net = self.reader.symbol("init_net")?;
        let mut found = Vec::new();
        for (member, family, names) in NETFILTER {
            let Ok([member]) = self.reader.offsets("netns_nf", [member]) else { continue };
            for (number, name) in (0..).zip(names) {
                let entries = self.word(net, nf + member + 8 * number)?;
                if entries == 0 {
                    continue;
                }
                for entry in 0..(self.read)(entries)? & 0xffff {
                    let at = entries.wrapping_add(hooks + NF_HOOK_ENTRY * entry);
                    found.extend(self.own(HookKind::Netfilter, format!("{family} {name}"), at)?);
                }
            }
        }
        Ok(found)
    }

    fn lsm(&self) -> Walked {
        let [hook] = self.reader.offsets("security_hook_list", ["hook"])?;
        let mut found = Vec::new();
        if let Ok(heads) = self.reader.symbol("security_hook_heads") {
            let [list] = self.reader.offsets("security_hook_list", ["list"])?;
            for (name, offset) in &self.reader.structure("security_hook_heads")?.members {
                for node in self.list(self.word(heads, *offset)?, 0, 0, MOST_SHORT)? {
                    let at = node.wrapping_sub(list).wrapping_add(hook);
                    found.extend(self.own(HookKind::Lsm, *name, at)?);
                }
            }
            return Ok(found);
        }
        // Since Linux 6.12: as many static calls of each hook as there may be modules.
        let table = self.reader.symbol("static_calls_table")?;
        let [hl] = self.reader.offsets("lsm_static_call", ["hl"])?;
        let bytes = self.reader.structure("lsm_static_call")?.size.max(1);
        let calls = self.reader.structure("lsm_static_calls_table")?;
        let ends = calls.members.iter().skip(1).map(|(_, at)| *at).chain([calls.size]);
        for ((name, from), to) in calls.members.iter().zip(ends) {
            for at in (*from..to).step_by(bytes as usize).take(MOST_SHORT) {
                match self.word(table, at + hl)? {
                    0 => {}
                    at => found.extend(self.own(HookKind::Lsm, *name, at.wrapping_add(hook))?),
                }
            }
        }
        Ok(found)
    }

    /// Notifiers behind data that is named like a chain. The kind of its head is unknown, so each is tried: a chain that
    /// reaches a block which calls the module is no accident.
    fn notifiers(&self) -> Walked {
        let chains = self.data(|kind, name| {
            (!is_function(kind) && !name.starts_with(PREFIX) && is_chain(name)).then_some(name)
        });
        if chains.len() > MOST {
            let text = format!("more than {MOST} symbols are named as chains are");
            return Err(io::Error::other(text));
        }
        let heads = CHAINS.into_iter().filter_map(|of| self.reader.offsets(of, ["head"]).ok());
        let heads: BTreeSet<u64> = heads.map(|[offset]| offset).collect();
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        for (chain, name) in chains {
            // A block has such names, too, and begins with what it calls.
            if (self.read)(chain).is_ok_and(|first| self.names.starts(first)) {
                continue;
            }
            for head in &heads {
                let first = self.word(chain, *head).unwrap_or(0);
                let mut block = first;
                for passed in 0..MOST_SHORT {
                    // Where it is no chain, it often is a list, which is a circle.
                    if block < KERNEL || passed > 0 && block == first || found.len() >= MOST {
                        break;
                    }
                    // `notifier_call` and `next` are the first members of `struct notifier_block`.
                    let Ok(own) = self.own(HookKind::Notifier, name, block) else { break };
                    found.extend(own.filter(|_| seen.insert((name, block))));
                    block = self.word(block, 8).unwrap_or(0);
                }
            }
        }
        Ok(found)
    }

    fn system_calls(&self) -> Walked {
        let mut found = Vec::new();
        for name in SYSTEM_CALL_TABLES {
            let Ok(table) = self.reader.symbol(name) else { continue };
            for number in 0..SYSTEM_CALLS {
                let (place, at) = (format!("{name}[{number}]"), table.wrapping_add(8 * number));
                found.extend(self.own(HookKind::SystemCall, place, at)?);
            }
        }
        Ok(found)
    }
}

/// The hooks of all kinds, and what could not be read.
pub(super) fn collected<const N: usize>(kinds: [(&str, Walked); N]) -> (Vec<Found>, Vec<String>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for (what, walked) in kinds {
        match walked {
            Ok(hooks) => {
                if hooks.len() >= MOST {
                    unknown.push(format!("{what}: there are {MOST} or more, which may not be all"));
                }
                found.extend(hooks);
            }
            Err(error) => unknown.push(format!("{what}: {error}")),
        }
    }
    (found, unknown)
}

/// Addresses of [`SYMBOLS`].
fn symbols(kallsyms: &str) -> BTreeMap<String, u64> {
    let wanted = lines_of(kallsyms)
        .filter(|(_, _, name, module)| module.is_none() && SYMBOLS.contains(name));
    let known = wanted.filter_map(|(address, _, name, _)| {
        let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0)?;
        Some((name.to_owned(), address))
    });
    known.collect()
}

fn state(flags: u32) -> ProbeState {
    match flags {
        _ if flags & GONE != 0 => ProbeState::Gone,
        _ if flags & DISABLED != 0 => ProbeState::Disabled,
        _ if flags & OPTIMIZED != 0 => ProbeState::Optimized,
        _ if flags & FTRACE != 0 => ProbeState::Ftrace,
        _ => ProbeState::Breakpoint,
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::path::Path;

    use super::*;
    use profiler_tests::btf::Builder;

    /// A kernel with these symbols and made-up structures.
    pub(crate) fn reader(kallsyms: &str) -> Reader {
        let mut types = Builder::base();
        let kprobe = [
            ("hlist", 0),
            ("list", 16),
            ("nmissed", 32),
            ("addr", 40),
            ("pre_handler", 48),
            ("post_handler", 56),
            ("flags", 64),
        ];
        let kretprobe = [
            ("kp", 0),
            ("handler", 112),
            ("entry_handler", 120),
            ("maxactive", 128),
            ("nmissed", 132),
        ];
        types.layout("kprobe", 72, &kprobe);
        types.layout("kretprobe", 136, &kretprobe);
        types.layout("tracepoint", 8, &[("funcs", 0)]);
        types.layout(
            "ftrace_ops",
            32,
            &[("func", 0), ("next", 8), ("saved_func", 16), ("func_hash", 24)],
        );
        types.layout("ftrace_ops_hash", 8, &[("filter_hash", 0)]);
        types.layout("ftrace_hash", 16, &[("size_bits", 0), ("buckets", 8)]);
        types.layout("ftrace_func_entry", 24, &[("ip", 16)]);
        types.layout("net", 8, &[("nf", 0)]);
        types.layout("netns_nf", 8, &[("hooks_ipv4", 0)]);
        types.layout("nf_hook_entries", 8, &[("hooks", 8)]);
        types.layout("security_hook_list", 32, &[("list", 0), ("hook", 24)]);
        types.layout("security_hook_heads", 8, &[("bprm_check", 0)]);
        types.layout(CHAINS[0], 16, &[("head", 8)]);
        types.layout(CHAINS[2], 8, &[("head", 0)]);
        types.layout("bpf_prog", 64, &[("bpf_func", 48)]);
        types.layout("bpf_prog_array", 16, &[("items", 16)]);
        types.layout("bpf_prog_array_item", 16, &[("prog", 0)]);
        types.layout("trace_event_call", 40, &[("list", 0), ("class", 16), ("prog_array", 32)]);
        types.layout("trace_kprobe", 520, &[("rp", 8), ("tp", 512)]);
        types.layout("trace_probe", 8, &[("event", 0)]);
        types.layout("trace_probe_event", 56, &[("call", 16)]);
        types.layout("bpf_raw_tp_link", 32, &[("link", 24)]);
        types.layout("bpf_link", 8, &[("prog", 0)]);
        types.layout("bpf_trampoline", 96, &[("hlist", 0), ("func", 64), ("progs_hlist", 72)]);
        types.layout("btf_func_model", 0, &[]);
        types.layout("bpf_tramp_link", 16, &[("tramp_hlist", 0), ("link", 8)]);
        let types = Btf::parse(&types.bytes(), Path::new("types"), None).unwrap();
        Reader { symbols: symbols(kallsyms), types }
    }
}
