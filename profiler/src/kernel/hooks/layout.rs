//! Where the kernel's structures have what BPF programs are attached by.

use crate::kernel::btf::Btf;

/// Offsets of members in bytes; `None` where the kernel's types lack them.
#[derive(Debug, Clone, Default)]
pub(super) struct Bpf {
    /// Of `struct bpf_prog`: `bpf_func`.
    pub(super) function: Option<u64>,
    /// Of `struct bpf_prog_array`: items; of an item: prog, and its bytes.
    pub(super) array: Option<[u64; 3]>,
    /// Of `struct trace_event_call`: list, the union of name and tp, `prog_array`.
    pub(super) event: Option<[u64; 3]>,
    /// From the structure of a kprobe, back to `struct trace_kprobe`, and on to the pointer to `struct trace_probe_event`; of that:
    /// call.
    pub(super) kprobe: Option<[u64; 3]>,
    /// Of `struct bpf_raw_tp_link`: prog.
    pub(super) raw_link: Option<u64>,
    /// Of `struct bpf_trampoline`: hlist, the function's address, `progs_hlist`.
    pub(super) trampoline: Option<[u64; 3]>,
    /// From a trampoline's list to the pointer to the program.
    pub(super) in_list: Option<u64>,
}

impl Bpf {
    pub(super) fn of(btf: &Btf) -> Self {
        let one = |structure: &str, member: &str| btf.offsets(structure, [member]).map(|[at]| at);
        let event = btf.offsets("trace_event_call", ["list", "class", "prog_array"]);
        let kprobe = || {
            let [rp, tp] = btf.offsets("trace_kprobe", ["rp", "tp"])?;
            let back = rp + one("kretprobe", "kp")?;
            let call = one("trace_probe_event", "call")?;
            Some([back, tp + one("trace_probe", "event")?, call])
        };
        let trampoline = || {
            let [hlist, func, lists] =
                btf.offsets("bpf_trampoline", ["hlist", "func", "progs_hlist"])?;
            // Of a structure without a name: the model, and behind it the address.
            let model = btf.size("btf_func_model")?.next_multiple_of(8);
            Some([hlist, func + model, lists])
        };
        let program_of_link = one("bpf_link", "prog");
        // Links are in its lists since Linux 6.0 (commit f7e0beaf39d3); before, programs' `aux`.
        let in_list = || {
            let of_link = btf.offsets("bpf_tramp_link", ["tramp_hlist", "link"]);
            let of_link = of_link.zip(program_of_link).map(|([list, link], at)| [list, link + at]);
            let [list, program] =
                of_link.or_else(|| btf.offsets("bpf_prog_aux", ["tramp_hlist", "prog"]))?;
            Some(program.wrapping_sub(list))
        };
        Self {
            function: one("bpf_prog", "bpf_func"),
            array: one("bpf_prog_array", "items")
                .zip(one("bpf_prog_array_item", "prog"))
                .zip(btf.size("bpf_prog_array_item"))
                .map(|((items, program), bytes)| [items, program, bytes]),
            event: event.map(|[list, class, programs]| [list, class + 8, programs]),
            kprobe: kprobe(),
            raw_link: one("bpf_raw_tp_link", "link").zip(program_of_link).map(|(a, b)| a + b),
            trampoline: trampoline(),
            in_list: in_list(),
        }
    }
}

#[cfg(test)]
impl Bpf {
    /// Offsets for tests.
    pub(super) fn example() -> Self {
        Self {
            function: Some(48),
            array: Some([16, 0, 16]),
            event: Some([0, 24, 32]),
            kprobe: Some([8, 512, 16]),
            raw_link: Some(24),
            trampoline: Some([0, 64, 72]),
            in_list: Some(8),
        }
    }
}
