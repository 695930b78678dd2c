//! Pages as kernels wrote them, and pages made up: parsed and paired.

use std::path::Path;

use proptest::prelude::*;

use super::calls::Calls;
use super::format::Layout;
use super::page::{Event, Exit, parse};
use super::pairing::Pairing;
use super::stream::{Look, Sink as _};
use crate::{Drained, Precision, ProbeError};
use profiler_kernel::target::KernelFiles;

fn captured(kernel: &str, name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ftrace/samples").join(kernel);
    std::fs::read(folder.join(name)).unwrap()
}

/// The layout of a captured kernel, its texts changed by `change`.
fn layout_with(
    kernel: &str,
    change: impl Fn(&str, String) -> String,
) -> Result<Layout, ProbeError> {
    Layout::read(&|file| {
        let name = file.trim_start_matches("ftrace/").trim_end_matches("/format");
        Ok(change(name, String::from_utf8(captured(kernel, name)).unwrap()))
    })
}

fn layout(kernel: &str) -> Layout {
    layout_with(kernel, |_, text| text).unwrap()
}

fn events(layout: &Layout, page: &[u8]) -> (Vec<Event>, u64) {
    let mut events = Vec::new();
    let count = parse(layout, page, |event| events.push(event));
    (events, count)
}

/// Kernel, addresses of `testbed_recurse` and `testbed_irq_victim`, and the durations in nanoseconds of
/// the two innermost calls, which the kernel's own text of the same trace gives in microseconds.
const CAPTURED: [(&str, [u64; 2], [u64; 2]); 3] = [
    ("5.10", [0xffff_ffff_c013_2330, 0], [35_032, 171_355]),
    ("6.1", [0xffff_ffff_c035_33a0, 0], [35_673, 146_718]),
    ("6.12", [0xffff_ffff_c032_38d0, 0], [6_119, 22_884]),
];

#[test]
fn a_captured_page_gives_what_the_kernels_own_text_gives() {
    for (kernel, [recurse, _], innermost) in CAPTURED {
        let layout = layout(kernel);
        let (events, count) = events(&layout, &captured(kernel, "cpu0.page"));
        // 32 levels of recursion, and 3 calls that an interrupt enters again.
        assert_eq!(count, 76, "{kernel}");
        assert_eq!(events.len(), 76);
        assert!(events.is_sorted_by_key(|event| event.time), "{kernel}");
        let exits: Vec<Exit> = events.iter().filter_map(|event| event.exit).collect();
        assert_eq!(exits.len(), 38, "{kernel}");
        for (exit, duration) in exits.iter().zip(innermost) {
            let (call, ret) = exit.times.unwrap();
            assert_eq!((ret - call) / 1000, duration / 1000, "{kernel}");
        }
        let deepest = events.iter().map(|event| event.depth).max();
        assert_eq!(deepest, Some(31), "{kernel}");

        let irq = events.last().unwrap().func;
        for coherent in [true, false] {
            let mut pairing = Pairing::new(&[irq, recurse], 1, Precision::Three, coherent);
            events.iter().for_each(|event| pairing.add(0, *event));
            pairing.end_round(None);
            let [irq, recurse] = &pairing.take(0)[..] else { panic!() };
            assert_whole(irq, 6);
            assert_whole(recurse, 32);
            assert_eq!(recurse.durations.min_ns().map(|min| min / 1000), Some(innermost[0] / 1000));
            assert_eq!(recurse.books.displaced, 31, "{kernel}");
            assert_eq!(irq.books.displaced, 3, "{kernel}");
        }
    }
}

/// The same page as a call tree: 32 calls, each within the one before.
#[test]
fn a_captured_recursion_is_one_branch() {
    for (kernel, [recurse, _], _) in CAPTURED {
        let (events, _) = events(&layout(kernel), &captured(kernel, "cpu0.page"));
        let mut calls = Calls::new(recurse, Precision::Three);
        events.iter().for_each(|event| calls.add(0, *event));
        calls.end_round(None);
        calls.look(Look { lost: 0, from: u64::MAX, to: 0 });
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let symbol = format!("{recurse:x} t testbed_recurse\t[hids_testbed]\n");
        std::fs::write(root.path().join("proc/kallsyms"), symbol).unwrap();
        let tree = calls.traced(&KernelFiles::below(root.path())).unwrap().tree;
        assert_eq!((tree.functions.len(), tree.nodes.len()), (1, 32), "{kernel}");
        let parents: Vec<Option<u32>> = tree.nodes.iter().map(|node| node.parent).collect();
        assert_eq!(parents[..3], [None, Some(0), Some(1)]);
        let drained = calls.take(0).remove(0);
        assert_whole(&drained, 1);
        let own: u64 = tree.nodes.iter().map(|node| node.own).sum();
        assert_eq!(own, drained.durations.sum_ns(), "{kernel}");
    }
}

fn assert_whole(drained: &Drained, calls: u64) {
    assert_eq!(drained.durations.len(), calls, "{:?}", drained.books);
    assert_eq!(drained.books.entries, calls);
    let books = drained.books;
    assert_eq!((books.lost, books.in_flight, books.unpaired_exits, books.overrun), (0, 0, 0, 0));
}

/// A page of made-up events, written as the layout of 6.1 has it.
struct Page {
    bytes: Vec<u8>,
}

impl Page {
    fn new(time: u64) -> Self {
        let mut bytes = time.to_ne_bytes().to_vec();
        bytes.extend([0; 8]);
        Self { bytes }
    }

    fn head(&mut self, kind: u32, delta: u32) -> &mut Self {
        let word = kind | delta << 5;
        self.words(&[word])
    }

    fn words(&mut self, words: &[u32]) -> &mut Self {
        for word in words {
            self.bytes.extend(word.to_ne_bytes());
        }
        self
    }

    fn common(&mut self, kind: u16) -> &mut Self {
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend([0, 1]);
        self.words(&[42])
    }

    /// `funcgraph_entry` of task 42.
    fn entry(&mut self, delta: u32, func: u64, depth: u32) -> &mut Self {
        self.head(5, delta).common(11);
        self.bytes.extend(func.to_ne_bytes());
        self.words(&[depth])
    }

    /// `funcgraph_exit` of task 42, with a length of its own.
    fn exit(&mut self, delta: u32, func: u64, depth: u32, call: u64, ret: u64) -> &mut Self {
        self.head(0, delta).words(&[44]).common(10);
        self.bytes.extend(func.to_ne_bytes());
        self.words(&[depth, 0]);
        for time in [call, ret] {
            self.bytes.extend(time.to_ne_bytes());
        }
        self
    }

    /// Length and flags, and what follows the events.
    fn end(&mut self, flags: u64, rest: &[u8]) -> Vec<u8> {
        let length = (self.bytes.len() - 16) as u64;
        self.bytes[8..16].copy_from_slice(&(length | flags).to_ne_bytes());
        self.bytes.extend(rest);
        self.bytes.resize(4096, 0);
        self.bytes.clone()
    }
}

const MISSED: u64 = 1 << 31;
const STORED: u64 = 1 << 30;

#[test]
fn times_add_up_and_absolute_ones_keep_the_high_bits() {
    let layout = layout("6.1");
    let start = (0b10101 << 59) | 1_000;
    let mut page = Page::new(start);
    page.entry(5, 0x100, 0);
    // 2^27 does not fit beside the type.
    page.head(30, 7).words(&[3]).entry(1, 0x100, 1);
    let absolute = 1 << 40;
    page.head(31, absolute as u32 & ((1 << 27) - 1)).words(&[(absolute >> 27) as u32]);
    page.exit(2, 0x100, 1, 10, 25);
    let (events, count) = events(&layout, &page.end(0, &[]));
    assert_eq!(count, 3);
    let times: Vec<u64> = events.iter().map(|event| event.time).collect();
    let second = start + 5 + (3 << 27) + 7 + 1;
    assert_eq!(times, [start + 5, second, (0b10101 << 59) + absolute + 2]);
    assert_eq!(events[2].exit, Some(Exit { too_deep: 0, times: Some((10, 25)) }));
    assert_eq!((events[2].func, events[2].pid, events[2].depth), (0x100, 42, 1));
}

#[test]
fn padding_is_skipped_or_ends_the_page() {
    let layout = layout("6.1");
    let mut page = Page::new(0);
    page.entry(1, 1, 0);
    // A discarded event of 12 bytes with its length.
    page.head(29, 1).words(&[8, 0xdead]);
    page.entry(1, 2, 0).head(29, 0).words(&[100]).entry(1, 3, 0);
    let (events, count) = events(&layout, &page.end(0, &[]));
    assert_eq!(events.iter().map(|event| event.func).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(count, 2);
}

#[test]
fn flags_are_no_part_of_the_length() {
    let layout = layout("6.1");
    let page = |flags, rest: &[u8]| Page::new(0).entry(1, 1, 0).end(flags, rest);
    for flags in [0, MISSED, MISSED | STORED] {
        assert_eq!(events(&layout, &page(flags, &77u64.to_ne_bytes())).1, 1);
    }
}

#[test]
fn events_of_others_are_counted_and_skipped() {
    let layout = layout("6.1");
    let mut page = Page::new(0);
    page.entry(1, 1, 0).head(3, 1).common(999).words(&[0]).entry(1, 2, 0);
    let (events, count) = events(&layout, &page.end(0, &[]));
    assert_eq!(events.len(), 2);
    assert_eq!(count, 3);
}

#[test]
fn a_page_that_is_cut_anywhere_gives_what_is_whole() {
    for kernel in ["5.10", "6.1", "6.12"] {
        let layout = layout(kernel);
        let whole = captured(kernel, "cpu0.page");
        let all = events(&layout, &whole).0;
        for length in 0..whole.len() {
            let (some, count) = events(&layout, &whole[..length]);
            assert_eq!(some, all[..some.len()], "{kernel}, {length} bytes");
            assert_eq!(count, some.len() as u64, "{kernel}, {length} bytes: the rest is lost");
        }
    }
}

/// The kernel counts more events as read than were found: the difference is lost.
#[test]
fn an_event_that_is_cut_is_not_counted() {
    let layout = layout("6.1");
    let mut page = Page::new(0);
    page.entry(1, 1, 0).head(5, 1).words(&[0]);
    assert_eq!(events(&layout, &page.end(0, &[])).1, 1, "data ends within it");
    let mut page = Page::new(0);
    page.head(1, 1).words(&[11]);
    assert_eq!(events(&layout, &page.end(0, &[])).1, 0, "too short for its fields");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_it_panic(
        mut page in proptest::collection::vec(any::<u8>(), 0..600),
        length in proptest::option::of(0u64..700),
    ) {
        if let (Some(length), Some(commit)) = (length, page.get_mut(8..16)) {
            commit.copy_from_slice(&length.to_ne_bytes());
        }
        for kernel in ["5.10", "6.1"] {
            let layout = layout(kernel);
            let mut pairing = Pairing::new(&[0, 1 << 40], 1, Precision::Two, true);
            parse(&layout, &page, |event| pairing.add(0, event));
            pairing.end_round(Some(u64::MAX));
            pairing.lossy(|_| false);
            pairing.end_round(None);
            for drained in pairing.take(3) {
                let books = drained.books;
                let known = drained.durations.len() + books.in_flight + books.lost;
                prop_assert_eq!(books.entries, known);
            }
        }
    }

    /// One bit of a real page is another one.
    #[test]
    fn no_flipped_bit_makes_it_panic(byte in 0usize..4096, bit in 0u32..8) {
        let mut page = captured("6.1", "cpu0.page");
        page[byte] ^= 1 << bit;
        events(&layout("6.1"), &page);
    }
}

#[test]
fn a_description_that_lacks_something_says_what() {
    let without = |file: &'static str, word: &'static str| {
        let change = move |name: &str, text: String| {
            if name == file { text.replace(word, " gone;") } else { text }
        };
        layout_with("6.1", change).unwrap_err().to_string()
    };
    let text = without("funcgraph_entry", " func;");
    assert!(text.contains("ftrace/funcgraph_entry/format") && text.contains("`func`"), "{text}");
    assert!(without("funcgraph_exit", "ID:").contains("an ID"));
    assert!(without("header_page", " data;").contains("events/header_page"));
    assert!(without("funcgraph_exit", "offset:8;").contains("`func`"));
}

const F: u64 = 0x1000;

fn event(time: u64, pid: u32, depth: u32, times: Option<(u64, u64)>) -> Event {
    let exit = times.map(|times| Exit { too_deep: 0, times: Some(times).filter(|t| t.1 > 0) });
    Event { time, func: F + 4, pid, depth, exit }
}

/// An exit of a kernel that does not write the times of the call.
const UNTIMED: Option<(u64, u64)> = Some((0, 0));

fn pairing(cpus: usize, coherent: bool) -> Pairing {
    Pairing::new(&[F], cpus, Precision::Three, coherent)
}

fn only(pairing: &mut Pairing, lost: u64) -> Drained {
    pairing.take(lost).remove(0)
}

/// A task that changes its CPU in each of two calls, so that one CPU has the first entry and the second
/// exit, next to each other.
#[test]
fn calls_that_change_the_cpu_are_paired_whatever_is_read_first() {
    for timed in [true, false] {
        let exit = |call, ret| if timed { Some((call, ret)) } else { UNTIMED };
        for order in [[0, 1], [1, 0]] {
            let mut pairing = pairing(2, true);
            let cpus = [
                [event(100, 7, 0, None), event(900, 7, 0, exit(299, 899))],
                [event(200, 7, 0, exit(99, 199)), event(300, 7, 0, None)],
            ];
            for cpu in order {
                cpus[cpu].iter().for_each(|event| pairing.add(cpu, *event));
            }
            pairing.end_round(Some(u64::MAX));
            assert_eq!(only(&mut pairing, 0).books.entries, 0, "another CPU may have more");
            pairing.end_round(Some(u64::MAX));
            let drained = only(&mut pairing, 0);
            assert_whole(&drained, 2);
            assert_eq!(drained.books.migrated, 2);
            assert_eq!(
                (drained.durations.min_ns(), drained.durations.max_ns()),
                (Some(100), Some(600)),
                "{order:?}"
            );
        }
    }
}

#[test]
fn a_call_that_changed_the_cpu_is_timed_by_a_clock_of_both() {
    let mut pairing = pairing(2, false);
    pairing.add(0, event(1_000, 7, 0, None));
    // The second CPU's own clock is far ahead.
    pairing.add(1, event(1_500, 7, 0, Some((990, 90_000))));
    pairing.end_round(None);
    let drained = only(&mut pairing, 0);
    assert_whole(&drained, 1);
    assert_eq!(drained.durations.sum_ns(), 500);
}

#[test]
fn an_exit_waits_for_what_a_busy_cpu_has_not_given_yet() {
    let mut pairing = pairing(2, true);
    pairing.add(1, event(500, 7, 0, UNTIMED));
    // Of the first CPU no more than this was read.
    pairing.end_round(Some(300));
    pairing.end_round(Some(300));
    assert_eq!(only(&mut pairing, 0).books.unpaired_exits, 0);
    pairing.add(0, event(400, 7, 0, None));
    pairing.end_round(Some(u64::MAX));
    assert_whole(&only(&mut pairing, 0), 1);
}

#[test]
fn idle_tasks_of_two_cpus_are_two() {
    let mut pairing = pairing(2, true);
    pairing.add(0, event(100, 0, 0, None));
    pairing.add(1, event(150, 0, 0, None));
    pairing.add(0, event(250, 0, 0, UNTIMED));
    pairing.add(1, event(200, 0, 0, UNTIMED));
    pairing.end_round(None);
    let drained = only(&mut pairing, 0);
    assert_whole(&drained, 2);
    assert_eq!((drained.durations.min_ns(), drained.durations.max_ns()), (Some(50), Some(150)));
}

#[test]
fn what_was_dropped_is_lost_or_was_never_seen() {
    let mut pairing = pairing(1, true);
    pairing.lossy(|_| true);
    // The first call's exit was dropped, and so was all of two others.
    pairing.add(0, event(100, 7, 0, None));
    pairing.add(0, event(200, 7, 0, None));
    pairing.add(0, event(300, 7, 0, Some((199, 299))));
    pairing.add(0, event(400, 8, 0, None));
    pairing.end_round(None);
    let drained = only(&mut pairing, 3);
    let books = drained.books;
    assert_eq!((books.entries, books.lost, books.in_flight, books.overrun), (3, 1, 1, 2));
    assert_eq!(drained.durations.len(), 1);
    // The other task has ended, and with it the call.
    pairing.lossy(|task| task != 8);
    let books = only(&mut pairing, 3).books;
    assert_eq!((books.lost, books.in_flight, books.overrun), (2, 0, 1));
}

#[test]
fn what_an_ended_call_had_called_has_ended() {
    let mut pairing = pairing(1, true);
    pairing.lossy(|_| true);
    for depth in 0..3 {
        pairing.add(0, event(100 + u64::from(depth), 7, depth, None));
    }
    pairing.add(0, event(300, 7, 0, Some((99, 299))));
    pairing.end_round(None);
    let drained = only(&mut pairing, 2);
    assert_eq!(drained.durations.len(), 1);
    assert_eq!((drained.books.lost, drained.books.in_flight, drained.books.overrun), (2, 0, 0));
}

#[test]
fn an_exit_without_entry_counts_if_it_tells_all() {
    let mut pairing = pairing(1, true);
    pairing.add(0, event(300, 7, 0, Some((100, 290))));
    pairing.add(0, event(400, 7, 0, UNTIMED));
    pairing.end_round(None);
    let drained = only(&mut pairing, 0);
    assert_eq!((drained.durations.len(), drained.durations.sum_ns()), (1, 190));
    assert_eq!((drained.books.entries, drained.books.unpaired_exits), (1, 1));
    assert_eq!(drained.books.in_flight, 0);
}

#[test]
fn a_drain_has_only_what_came_since() {
    let mut pairing = pairing(1, true);
    let call = |pairing: &mut Pairing, at: u64| {
        pairing.add(0, event(at, 7, 0, None));
        pairing.add(0, event(at + 50, 7, 0, Some((at - 1, at + 39))));
    };
    call(&mut pairing, 100);
    assert_whole(&only(&mut pairing, 0), 1);
    call(&mut pairing, 200);
    call(&mut pairing, 300);
    let drained = only(&mut pairing, 0);
    assert_eq!(
        (drained.durations.len(), drained.durations.sum_ns(), drained.books.entries),
        (2, 80, 3)
    );
    assert_eq!(only(&mut pairing, 0).durations.min_ns(), None);
}

#[test]
fn calls_too_deep_to_be_traced_are_missing() {
    let mut pairing = pairing(1, true);
    pairing.add(0, event(100, 7, 0, None));
    let mut exit = event(200, 7, 0, Some((99, 199)));
    exit.exit = exit.exit.map(|exit| Exit { too_deep: 4, ..exit });
    pairing.add(0, exit);
    assert_eq!(only(&mut pairing, 0).books.overrun, 4);
}
