//! The kernel's lists of what modules have registered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::layout::Bpf;
use super::{BPF, Hook, HookKind, ProbeState, Read};
use crate::kernel::btf::Btf;
use crate::kernel::names::{Names, is_function, lines_of};

/// Entries of a list that are looked at, at most: it may change while it is read, and a guest may make a circle.
pub(super) const MOST: usize = 1 << 12;

/// The same of a chain of notifiers and of the functions of a tracepoint, of which there are thousands.
pub(super) const MOST_SHORT: usize = 256;

/// `KPROBE_TABLE_SIZE` of kernel/kprobes.c.
const BUCKETS: u64 = 64;

/// Entries of a table of system calls that are looked at: more than there are.
const SYSTEM_CALLS: u64 = 512;

/// Bytes of `struct tracepoint_func` and of `struct nf_hook_entry`, since Linux 4.4 and 4.14.
const TRACEPOINT_FUNC: u64 = 24;
const NF_HOOK_ENTRY: u64 = 16;

/// Flags of `struct kprobe`: `KPROBE_FLAG_GONE` and so on.
const GONE: u32 = 1;
const DISABLED: u32 = 2;
const OPTIMIZED: u32 = 4;
const FTRACE: u32 = 8;

/// The lowest address of the kernel's half, with page tables of four levels, on arm64; x86-64 has none below its middle. A pointer
/// below it is none.
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

/// Symbols of data that are needed by name.
const DATA: [&str; 11] = [
    "kprobe_table",
    "ftrace_events",
    "trampoline_table",
    "ftrace_ops_list",
    "ftrace_list_end",
    "init_net",
    "security_hook_heads",
    "static_calls_table",
    "sys_call_table",
    "ia32_sys_call_table",
    // Through which arm64's memory is read.
    crate::kernel::hooks::PAGE_TABLES,
];

/// Functions that are needed by name.
const FUNCTIONS: [&str; 4] =
    ["aggr_pre_handler", "pre_handler_kretprobe", "kprobe_dispatcher", "kretprobe_dispatcher"];

/// Whether a symbol is needed. Since Linux 7.0 data may have the kind of a function.
pub(super) fn is_needed(kind: &str, name: &str) -> bool {
    DATA.contains(&name)
        || name.starts_with(PREFIX)
        || FUNCTIONS.contains(&name)
        || !is_function(kind) && is_chain(name)
}

/// Whether data may be the head of a chain of notifiers, by its name. That it is one shows by what is in it.
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

/// Most functions of all tracepoints together: a guest says where they are, and may say anything.
const MOST_ON_TRACEPOINTS: usize = 1 << 16;

impl Found {
    pub(super) fn named(kind: HookKind, place: impl Into<String>, call: u64, address: u64) -> Self {
        let hook = Hook { address, ..Hook::new(kind, place, Vec::new()) };
        Self { hook, at: None, calls: vec![call] }
    }
}

/// Where the kernel has its lists, and offsets of members in bytes.
#[derive(Debug, Clone, Default)]
pub struct Reader {
    /// Addresses of [`DATA`] and [`FUNCTIONS`].
    symbols: BTreeMap<String, u64>,
    /// Of `struct kprobe`: hlist, list, nmissed, addr, `pre_handler`, `post_handler`, flags.
    kprobe: Option<[u64; 7]>,
    /// Of `struct kretprobe`: kp, handler, `entry_handler`, maxactive, nmissed.
    kretprobe: Option<[u64; 5]>,
    /// Of `struct tracepoint`: funcs.
    tracepoint: Option<u64>,
    /// Of `struct ftrace_ops`: func, next, `saved_func`, `func_hash`; the hash: `filter_hash`, `size_bits`, buckets; the entry: ip.
    ftrace: Option<[u64; 8]>,
    /// Of the members of [`NETFILTER`] in `struct net`, and hooks in `struct nf_hook_entries`.
    netfilter: Option<([Option<u64>; 4], u64)>,
    /// Of `struct security_hook_list`: list and hook, or hook twice where there is no list.
    lsm: Option<[u64; 2]>,
    /// Of `struct lsm_static_call`: hl; and bytes of one.
    lsm_call: Option<[u64; 2]>,
    /// Lists of LSM hooks by name, with their offset.
    lsm_lists: Vec<(String, u64)>,
    /// Offsets that the head of a chain may have in its structure.
    heads: BTreeSet<u64>,
    /// Of what BPF programs are attached by.
    pub(super) bpf: Bpf,
}

/// The hooks of one kind; `None` where the kernel's types or symbols lack them.
/// A tracepoint's name, the address of its `struct tracepoint_func`, and the function.
type OnTracepoint<'a> = (&'a str, u64, u64);
pub(super) type Walked = io::Result<Option<Vec<Found>>>;
/// Whether an address is in the module's code.
type IsOwn<'a> = &'a dyn Fn(u64) -> bool;
pub(super) type Walk<'a> = (&'static str, &'a dyn Fn() -> Walked);

impl Reader {
    /// Of the kernel with these types and symbols; `kallsyms` has all that are [`needed`](super::needed), or more.
    ///
    /// # Errors
    /// Why nothing can be read, in words: the symbols are hidden, or the types do not describe kprobes.
    pub fn new(btf: &Btf, kallsyms: &str) -> Result<Self, String> {
        let symbols = symbols(kallsyms);
        let kprobe = ["hlist", "list", "nmissed", "addr", "pre_handler", "post_handler", "flags"];
        let kretprobe = ["kp", "handler", "entry_handler", "maxactive", "nmissed"];
        let one = |structure: &str, member: &str| btf.offsets(structure, [member]).map(|[at]| at);
        let lists = ["security_hook_heads", "lsm_static_calls_table"];
        let heads = ["atomic", "blocking", "raw", "srcu"];
        let head = |kind: &&str| one(&format!("{kind}_notifier_head"), "head");
        let layout = Self {
            symbols,
            kprobe: btf.offsets("kprobe", kprobe),
            kretprobe: btf.offsets("kretprobe", kretprobe),
            tracepoint: one("tracepoint", "funcs"),
            ftrace: ftrace(btf),
            netfilter: one("net", "nf").zip(one("nf_hook_entries", "hooks")).map(|(nf, hooks)| {
                let of = |(member, ..): (&str, &str, _)| Some(nf + one("netns_nf", member)?);
                (NETFILTER.map(of), hooks)
            }),
            lsm: btf
                .offsets("security_hook_list", ["list", "hook"])
                .or_else(|| btf.offsets("security_hook_list", ["hook", "hook"])),
            lsm_call: one("lsm_static_call", "hl").zip(btf.size("lsm_static_call")).map(Into::into),
            lsm_lists: lists.iter().find_map(|list| btf.members(list)).unwrap_or_default(),
            heads: heads.iter().filter_map(head).collect(),
            bpf: Bpf::of(btf),
        };
        if layout.kprobe.is_none() || layout.kretprobe.is_none() {
            return Err("the kernel's BTF does not describe its kprobes".to_owned());
        }
        match layout.symbols.contains_key(DATA[0]) {
            true => Ok(layout),
            false => Err("/proc/kallsyms does not show where they are".to_owned()),
        }
    }

    /// All hooks that may be of `module`, and in words what could not be read; `kallsyms` has tracepoints and chains.
    pub(super) fn walk(
        &self,
        module: &str,
        names: &Names<'_>,
        kallsyms: &str,
        read: Read<'_>,
    ) -> (Vec<Found>, Vec<String>) {
        let named = Named::of(kallsyms);
        if module == BPF {
            return self.walk_bpf(names, &named.tracepoints, read);
        }
        let is_own = &|address: u64| names.is_in(module, address);
        let walks: [Walk<'_>; 7] = [
            ("kprobes", &|| self.kprobes(read)),
            ("tracepoints", &|| self.tracepoints(&named, is_own, read)),
            ("ftrace", &|| self.ftrace(is_own, read)),
            ("netfilter", &|| self.netfilter(is_own, read)),
            ("LSM hooks", &|| self.lsm(is_own, read)),
            ("notifiers", &|| self.notifiers(&named, names, is_own, read)),
            ("system calls", &|| self.system_calls(is_own, read)),
        ];
        all(&walks)
    }

    pub(super) fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.get(name).copied()
    }

    pub(super) fn kprobes(&self, read: Read<'_>) -> Walked {
        let (Some([hlist, list, .., flags]), Some(table)) = (self.kprobe, self.symbol(DATA[0]))
        else {
            return Ok(None);
        };
        let [.., pre_handler, _, _] = self.kprobe.unwrap_or_default();
        let aggregate = self.symbol(FUNCTIONS[0]);
        let flags_of = |probe: u64| Ok::<_, io::Error>(read(probe.wrapping_add(flags))? as u32);
        let mut found = Vec::new();
        // A driver may make a circle of nodes without members.
        let mut nodes = 0;
        for bucket in 0..BUCKETS {
            // Both kinds of node begin with the pointer to the next.
            let mut node = read(table + 8 * bucket)?;
            while node != 0 && found.len() < MOST && nodes < MOST {
                nodes += 1;
                let probe = node.wrapping_sub(hlist);
                let first = flags_of(probe)?;
                if aggregate == Some(read(probe.wrapping_add(pre_handler))?) {
                    let head = probe.wrapping_add(list);
                    let mut member = read(head)?;
                    while member != head && found.len() < MOST {
                        let probe = member.wrapping_sub(list);
                        // How it is hit is known of the first alone: `report_probe()`.
                        let state = state(flags_of(probe)? & (GONE | DISABLED) | first);
                        found.push(self.kprobe(probe, state, read)?);
                        member = read(member)?;
                    }
                } else {
                    found.push(self.kprobe(probe, state(first), read)?);
                }
                node = read(node)?;
            }
        }
        Ok(Some(found))
    }

    fn kprobe(&self, address: u64, state: ProbeState, read: Read<'_>) -> io::Result<Found> {
        let [_, _, _, addr, pre_handler, post_handler, _] = self.kprobe.unwrap_or_default();
        let of_kprobe = |offset: u64| read(address.wrapping_add(offset));
        let call = of_kprobe(pre_handler)?;
        let mut found = Found::named(HookKind::Kprobe, "", call, address);
        found.at = Some(of_kprobe(addr)?);
        found.hook.state = Some(state);
        if self.symbol(FUNCTIONS[1]) == Some(call) {
            let [kp, handler, entry_handler, maxactive, _] = self.kretprobe.unwrap_or_default();
            let of = |offset: u64| read(address.wrapping_sub(kp).wrapping_add(offset));
            found.hook.kind = HookKind::Kretprobe;
            // `int`; machines are little endian.
            found.hook.maxactive = Some(of(maxactive)? as u32);
            found.calls = vec![of(entry_handler)?, of(handler)?];
        } else {
            found.calls.push(of_kprobe(post_handler)?);
        }
        let hook = &mut found.hook;
        [hook.missed, hook.beyond_maxactive] = self.misses(hook.kind, address, read)?;
        Ok(found)
    }

    /// Hits that the kprobe, or kretprobe, at `address` has missed, and those beyond `maxactive`.
    pub(super) fn misses(
        &self,
        kind: HookKind,
        address: u64,
        read: Read<'_>,
    ) -> io::Result<[u64; 2]> {
        let [_, _, nmissed, ..] = self.kprobe.unwrap_or_default();
        let missed = read(address.wrapping_add(nmissed))?;
        let [kp, .., beyond] = self.kretprobe.unwrap_or_default();
        let beyond = match kind {
            HookKind::Kretprobe => read(address.wrapping_sub(kp).wrapping_add(beyond))? as u32,
            _ => 0,
        };
        Ok([missed, u64::from(beyond)])
    }

    fn tracepoints(&self, named: &Named<'_>, is_own: IsOwn<'_>, read: Read<'_>) -> Walked {
        let Some(functions) = self.on_tracepoints(&named.tracepoints, read)? else {
            return Ok(None);
        };
        let own = functions.into_iter().filter(|(.., call)| is_own(*call));
        let found = own.map(|(name, at, call)| Found::named(HookKind::Tracepoint, name, call, at));
        Ok(Some(found.collect()))
    }

    /// What tracepoints call: a tracepoint's name, the address of its `struct tracepoint_func`, and the function.
    pub(super) fn on_tracepoints<'a>(
        &self,
        tracepoints: &[(u64, &'a str)],
        read: Read<'_>,
    ) -> io::Result<Option<Vec<OnTracepoint<'a>>>> {
        let Some(funcs) = self.tracepoint else { return Ok(None) };
        let mut found = Vec::new();
        for (tracepoint, name) in tracepoints {
            let first = read(tracepoint.wrapping_add(funcs))?;
            if first == 0 {
                continue;
            }
            for number in 0..MOST_SHORT as u64 {
                let at = first.wrapping_add(TRACEPOINT_FUNC * number);
                match read(at)? {
                    0 => break,
                    call if found.len() < MOST_ON_TRACEPOINTS => found.push((*name, at, call)),
                    _ => return Err(io::Error::other("too many functions of tracepoints")),
                }
            }
        }
        Ok(Some(found))
    }

    fn ftrace(&self, is_own: IsOwn<'_>, read: Read<'_>) -> Walked {
        let (Some([func, next, saved, ..]), Some(list)) =
            (self.ftrace, self.symbol("ftrace_ops_list"))
        else {
            return Ok(None);
        };
        let end = self.symbol("ftrace_list_end");
        let mut found = Vec::new();
        let mut ops = read(list)?;
        for _ in 0..MOST_SHORT {
            if ops == 0 || Some(ops) == end {
                break;
            }
            let calls = [func, saved].map(|member| read(ops.wrapping_add(member)));
            for call in calls {
                let call = call?;
                if is_own(call) {
                    self.functions_of(ops, call, read, &mut found)?;
                    break;
                }
            }
            ops = read(ops.wrapping_add(next))?;
        }
        Ok(Some(found))
    }

    /// A hook for each function that `ops` are called in.
    fn functions_of(
        &self,
        ops: u64,
        call: u64,
        read: Read<'_>,
        found: &mut Vec<Found>,
    ) -> io::Result<()> {
        let [.., func_hash, filter_hash, size_bits, buckets, ip] = self.ftrace.unwrap_or_default();
        let hash = read(read(ops.wrapping_add(func_hash))?.wrapping_add(filter_hash))?;
        let all = Found::named(HookKind::Ftrace, "every function", call, ops);
        if hash == 0 {
            found.push(all);
            return Ok(());
        }
        let before = found.len();
        let table = read(hash.wrapping_add(buckets))?;
        let bits = (read(hash.wrapping_add(size_bits))? & 0xff).min(16);
        for bucket in 0..1_u64 << bits {
            let mut entry = read(table.wrapping_add(8 * bucket))?;
            while entry != 0 && found.len() < MOST {
                let at = Some(read(entry.wrapping_add(ip))?);
                found.push(Found { at, ..all.clone() });
                entry = read(entry)?;
            }
        }
        if found.len() == before {
            found.push(all);
        }
        Ok(())
    }

    fn netfilter(&self, is_own: IsOwn<'_>, read: Read<'_>) -> Walked {
        let (Some((members, hooks)), Some(net)) = (self.netfilter, self.symbol("init_net")) else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for (member, (_, family, names)) in members.into_iter().zip(NETFILTER) {
            let Some(member) = member else { continue };
            for (number, name) in (0..).zip(names) {
                let entries = read(net.wrapping_add(member).wrapping_add(8 * number))?;
                if entries == 0 {
                    continue;
                }
                for entry in 0..read(entries)? & 0xffff {
                    let at = entries.wrapping_add(hooks).wrapping_add(NF_HOOK_ENTRY * entry);
                    let call = read(at)?;
                    if is_own(call) {
                        let place = format!("{family} {name}");
                        found.push(Found::named(HookKind::Netfilter, place, call, at));
                    }
                }
            }
        }
        Ok(Some(found))
    }

    fn lsm(&self, is_own: IsOwn<'_>, read: Read<'_>) -> Walked {
        let Some([list, hook]) = self.lsm else { return Ok(None) };
        let mut found = Vec::new();
        let mut add = |name: &str, of: u64| {
            let call = read(of.wrapping_add(hook))?;
            if is_own(call) {
                found.push(Found::named(HookKind::Lsm, name, call, of));
            }
            Ok::<_, io::Error>(())
        };
        if let Some(heads) = self.symbol("security_hook_heads") {
            for (name, offset) in &self.lsm_lists {
                let mut node = read(heads.wrapping_add(*offset))?;
                for _ in 0..MOST_SHORT {
                    if node == 0 {
                        break;
                    }
                    add(name, node.wrapping_sub(list))?;
                    node = read(node)?;
                }
            }
        } else if let (Some(table), Some([hl, size])) =
            (self.symbol("static_calls_table"), self.lsm_call.filter(|[_, size]| *size > 0))
        {
            // As many calls of each as there may be modules; those of the last are not counted.
            for pair in self.lsm_lists.windows(2) {
                let [(name, from), (_, to)] = pair else { continue };
                for at in (*from..*to).step_by(size as usize).take(MOST_SHORT) {
                    match read(table.wrapping_add(at).wrapping_add(hl))? {
                        0 => {}
                        of => add(name, of)?,
                    }
                }
            }
        } else {
            return Ok(None);
        }
        Ok(Some(found))
    }

    /// What is behind data whose name is that of a chain. Which kind of head it has is not known, and need not be: that a chain
    /// reaches a block that calls the module is no accident.
    fn notifiers(
        &self,
        named: &Named<'_>,
        names: &Names<'_>,
        is_own: IsOwn<'_>,
        read: Read<'_>,
    ) -> Walked {
        if named.chains.len() > MOST {
            let text = format!("more than {MOST} symbols are named as chains are");
            return Err(io::Error::other(text));
        }
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        // A block has such names, too, and begins with what it calls.
        let is_block = |at: u64| read(at).is_ok_and(|first| names.starts(first));
        for (chain, name) in named.chains.iter().filter(|(at, _)| !is_block(*at)) {
            for head in &self.heads {
                let first = read(chain.wrapping_add(*head)).unwrap_or(0);
                let mut block = first;
                for passed in 0..MOST_SHORT {
                    // Where it is no chain, it often is a list, which is a circle.
                    if block < KERNEL || passed > 0 && block == first || found.len() >= MOST {
                        break;
                    }
                    // `notifier_call` and `next` are the first members of `struct notifier_block`.
                    let Ok(call) = read(block) else { break };
                    if is_own(call) && seen.insert((*name, block)) {
                        found.push(Found::named(HookKind::Notifier, *name, call, block));
                    }
                    block = read(block.wrapping_add(8)).unwrap_or(0);
                }
            }
        }
        Ok(Some(found))
    }

    fn system_calls(&self, is_own: IsOwn<'_>, read: Read<'_>) -> Walked {
        let mut found = Vec::new();
        for name in &DATA[8..] {
            let Some(table) = self.symbol(name) else { continue };
            for number in 0..SYSTEM_CALLS {
                let at = table.wrapping_add(8 * number);
                let call = read(at)?;
                if is_own(call) {
                    let place = format!("{name}[{number}]");
                    found.push(Found::named(HookKind::SystemCall, place, call, at));
                }
            }
        }
        Ok(Some(found))
    }
}

/// What all walks find, and in words what could not be read.
pub(super) fn all(walks: &[Walk<'_>]) -> (Vec<Found>, Vec<String>) {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    for (what, walk) in walks {
        match walk() {
            Ok(Some(hooks)) => {
                if hooks.len() >= MOST {
                    unknown.push(format!("{what}: there are {MOST} or more, which may not be all"));
                }
                found.extend(hooks);
            }
            Ok(None) => unknown.push(format!("{what}: the kernel's types or symbols lack them")),
            Err(error) => unknown.push(format!("{what}: {error}")),
        }
    }
    (found, unknown)
}

/// Addresses of [`DATA`] and [`FUNCTIONS`].
fn symbols(kallsyms: &str) -> BTreeMap<String, u64> {
    let mut symbols = BTreeMap::new();
    for (address, _, name, module) in lines_of(kallsyms) {
        let is_wanted = FUNCTIONS.contains(&name) || DATA.contains(&name);
        let address = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0);
        if let (None, Some(address), true) = (module, address, is_wanted) {
            symbols.insert(name.to_owned(), address);
        }
    }
    symbols
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

fn ftrace(btf: &Btf) -> Option<[u64; 8]> {
    let [func, next, saved, hash] =
        btf.offsets("ftrace_ops", ["func", "next", "saved_func", "func_hash"])?;
    let [filter] = btf.offsets("ftrace_ops_hash", ["filter_hash"])?;
    let [bits, buckets] = btf.offsets("ftrace_hash", ["size_bits", "buckets"])?;
    let [ip] = btf.offsets("ftrace_func_entry", ["ip"])?;
    Some([func, next, saved, hash, filter, bits, buckets, ip])
}

/// Data that is known by its name alone.
#[derive(Default)]
struct Named<'a> {
    tracepoints: Vec<(u64, &'a str)>,
    chains: Vec<(u64, &'a str)>,
}

impl<'a> Named<'a> {
    fn of(kallsyms: &'a str) -> Self {
        let mut named = Self::default();
        for (address, kind, name, _) in lines_of(kallsyms) {
            let address =
                u64::from_str_radix(address, 16).ok().filter(|address| *address >= KERNEL);
            let Some(address) = address else { continue };
            let tracepoint = name.strip_prefix(PREFIX).filter(|name| !name.starts_with(PARTS));
            if let Some(name) = tracepoint {
                named.tracepoints.push((address, name));
            } else if !is_function(kind) && is_chain(name) {
                named.chains.push((address, name));
            }
        }
        named
    }
}

/// Offsets for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(crate) fn reader(kallsyms: &str) -> Reader {
        Reader {
            symbols: symbols(kallsyms),
            kprobe: Some([0, 16, 32, 40, 48, 56, 64]),
            kretprobe: Some([0, 112, 120, 128, 132]),
            tracepoint: Some(0),
            ftrace: Some([0, 8, 16, 24, 0, 0, 8, 16]),
            netfilter: Some(([Some(0), None, None, None], 8)),
            lsm: Some([0, 24]),
            lsm_call: None,
            lsm_lists: vec![("bprm_check".to_owned(), 0)],
            heads: [0, 8].into(),
            bpf: Bpf::example(),
        }
    }
}
