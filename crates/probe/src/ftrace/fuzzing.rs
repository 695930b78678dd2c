//! A part of `profiler-probe` for the fuzzer alone.
#![allow(clippy::expect_used)] // A panic is a finding.

use std::sync::LazyLock;

use super::calls::Calls;
use super::format::Layout;
use super::page;
use super::pairing::Pairing;
use super::stream::{Look, Sink as _};
use crate::{Precision, ProbeError};

/// What [`Layout::read`] asks for, by kernel.
const FILES: [&str; 3] = ["header_page", "funcgraph_entry", "funcgraph_exit"];

macro_rules! text {
    ($file:literal) => {
        include_str!(concat!("samples/", $file))
    };
}

const TEXTS: [[&str; 3]; 2] = [
    [text!("5.10/header_page"), text!("5.10/funcgraph_entry"), text!("5.10/funcgraph_exit")],
    [text!("6.1/header_page"), text!("6.1/funcgraph_entry"), text!("6.1/funcgraph_exit")],
];

fn read(texts: [&str; 3]) -> Result<Layout, ProbeError> {
    Layout::read(&|file| {
        let name = file.trim_start_matches("ftrace/").trim_end_matches("/format");
        let found = FILES.iter().zip(texts).find(|(known, _)| **known == name);
        Ok(found.map(|(_, text)| text.to_owned()).unwrap_or_default())
    })
}

static LAYOUTS: LazyLock<[Layout; 2]> =
    LazyLock::new(|| TEXTS.map(|texts| read(texts).expect("a kernel's own description")));

/// Pages of the ring buffer, each of at most 4096 bytes: as durations, and as a call tree.
pub fn page(bytes: &[u8]) {
    let Some((first, pages)) = bytes.split_first() else { return };
    through(&LAYOUTS[usize::from(*first & 1)], pages, first & 2 != 0);
}

/// The kernel's description of its pages; one of the three files is another one.
pub fn layout(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let mut texts = TEXTS[1];
    texts[usize::from(*first % 3)] = text;
    if let Ok(layout) = read(texts) {
        through(&layout, include_bytes!("samples/6.1/cpu0.page"), true);
    }
}

fn through(layout: &Layout, pages: &[u8], coherent: bool) {
    // Addresses of the captured pages.
    let handlers = [0xffff_ffff_c013_2330, 0xffff_ffff_c035_33a0, 1 << 40];
    let mut pairing = Pairing::new(&handlers, 2, Precision::Two, coherent);
    let mut calls = Calls::new(handlers[1], Precision::Two);
    for (number, page) in pages.chunks(4096).enumerate() {
        page::parse(layout, page, |event| {
            pairing.add(number % 2, event);
            calls.add(number % 2, event);
        });
        pairing.end_round(Some(u64::MAX));
        calls.end_round(Some(u64::MAX));
    }
    pairing.lossy(|task| task % 2 == 0);
    pairing.end_round(None);
    calls.end_round(None);
    calls.look(Look { lost: 1, from: 0, to: u64::MAX });
    for drained in pairing.take(3) {
        let books = drained.books;
        assert_eq!(books.entries, drained.durations.len() + books.in_flight + books.lost);
    }
    let _ = calls.take(1);
}
