//! `set_ftrace_filter`: exactly the handlers.
//!
//! Handlers are given to the kernel by their places in the list of traceable functions
//! (`available_filter_functions`, counted from 1; kernel commit f79b3f338564, Linux 5.1) and not by their
//! names, which others may share; and the kernel walks its whole list for each name. What it made of
//! them is read back.

use std::collections::HashMap;
use std::io;

use profiler_kernel::target::{KernelFiles, Target};

use super::journal::Journal;
use super::tracefs::Folder;
use crate::{ProbeError, errno::Doing as _};

const FILTER: &str = "set_ftrace_filter";
/// Functions that are traced with all that they call. There is one for all instances, and it takes names alone.
const GRAPH: &str = "set_graph_function";
const LIST: &str = "available_filter_functions";
/// The same with addresses, line by line (kernel commit 83f74441bcb1, Linux 6.5).
const LIST_WITH_ADDRESSES: &str = "available_filter_functions_addrs";

/// Most bytes between a function's symbol and its call of the tracer.
pub(super) const CALL_SITE: u64 = 16;

/// A module or the kernel image, and a name there.
pub(super) type Name<'a> = (Option<&'a str>, &'a str);

/// A function's place in the kernel's list, or why it cannot be traced.
type Place = Result<usize, &'static str>;

const HIDDEN: &str = "its address, by which its calls are known, is hidden: sysctl kernel.kptr_restrict=1, and run as root";
const UNKNOWN: &str =
    "it is marked notrace, or ftrace does not know it; measure the function that calls it";
const AMBIGUOUS: &str = "several functions have this name, and ftrace's list does not show which is which on this \
                         kernel: rename one, or measure the function that calls it";

/// Limits the tracer of `place` to the functions at these places in the kernel's list: the handlers, and nothing else.
///
/// # Errors
/// When the kernel does not take them.
pub(super) fn set(
    journal: &mut Journal,
    place: &Folder,
    targets: &[Target],
    places: &[usize],
) -> Result<(), ProbeError> {
    let places: Vec<String> = places.iter().map(usize::to_string).collect();
    let mut wanted: Vec<Name<'_>> = targets.iter().map(name_of).collect();
    wanted.sort_unstable();
    limit(journal, place, FILTER, &places.join("\n"), |mut is| {
        is.sort_unstable();
        is == wanted
    })
}

/// Limits the tracer to what runs within the handlers. Functions of the same name are traced, too; their addresses tell
/// them apart.
///
/// # Errors
/// When the kernel does not take them.
pub(super) fn within(
    journal: &mut Journal,
    top: &Folder,
    targets: &[Target],
) -> Result<(), ProbeError> {
    let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
    limit(journal, top, GRAPH, &names.join("\n"), |is| {
        targets.iter().all(|target| is.contains(&name_of(target)))
    })
}

/// Fills a list, which is empty, and checks what the kernel made of it: with an empty list the tracer traces everything, with
/// a wrong one other functions.
fn limit(
    journal: &mut Journal,
    folder: &Folder,
    list: &str,
    text: &str,
    is_right: impl FnOnce(Vec<Name<'_>>) -> bool,
) -> Result<(), ProbeError> {
    journal.set(folder.path(list), "", text)?;
    if is_right(folder.read(list)?.lines().filter_map(name).collect()) {
        return Ok(());
    }
    let what = "it is not what was set: was a module loaded or unloaded meanwhile?";
    Err(io::Error::other(what)).doing(&folder.doing("limiting the tracer by", list))
}

/// Places of the handlers in the kernel's list, counted from 1, or why one cannot be traced.
///
/// # Errors
/// When the list cannot be read.
pub(super) fn places(top: &Folder, targets: &[Target]) -> Result<Vec<Place>, ProbeError> {
    let with_addresses = || top.read_if_there(LIST_WITH_ADDRESSES);
    in_list(&top.read(LIST)?, &with_addresses, targets, &symbols)
}

/// Addresses of all functions that share a handler's name and place, ascending.
fn symbols(target: &Target) -> Vec<u64> {
    let found = KernelFiles::default()
        .functions(target.module.as_deref(), std::slice::from_ref(&target.name));
    let mut addresses: Vec<u64> = found
        .unwrap_or_default()
        .iter()
        .filter(|function| function.name == target.name && function.address != 0)
        .map(|function| function.address)
        .collect();
    addresses.sort_unstable();
    addresses
}

/// As [`places`]. The list with addresses is read if a name is there twice: the kernel takes longer for these lists than
/// for all else, as it begins at their start for each page.
fn in_list(
    list: &str,
    with_addresses: &dyn Fn() -> Result<Option<String>, ProbeError>,
    targets: &[Target],
    symbols: &dyn Fn(&Target) -> Vec<u64>,
) -> Result<Vec<Place>, ProbeError> {
    let mut places: HashMap<Name<'_>, Vec<usize>> =
        targets.iter().map(|target| (name_of(target), Vec::new())).collect();
    for (at, line) in list.lines().enumerate() {
        if let Some(places) = name(line).and_then(|name| places.get_mut(&name)) {
            places.push(at);
        }
    }
    let addresses: Vec<Option<u64>> = match places.values().any(|places| places.len() > 1) {
        true => with_addresses()?.unwrap_or_default().lines().map(address).collect(),
        false => Vec::new(),
    };
    let found = targets.iter().map(|target| match places[&name_of(target)].as_slice() {
        _ if target.address == 0 => Err(HIDDEN),
        [] => Err(UNKNOWN),
        [at] => Ok(at + 1),
        places => match one_of(target, places, &addresses, symbols) {
            Some(at) => Ok(at + 1),
            None => Err(AMBIGUOUS),
        },
    });
    Ok(found.collect())
}

/// Which of several functions of one name is the one at the handler's address.
fn one_of(
    target: &Target,
    places: &[usize],
    addresses: &[Option<u64>],
    symbols: &dyn Fn(&Target) -> Vec<u64>,
) -> Option<usize> {
    let there = places.iter().copied().find(|&at| {
        let address = addresses.get(at).copied().flatten();
        let after = address.and_then(|address| address.checked_sub(target.address));
        after.is_some_and(|after| after <= CALL_SITE)
    });
    if there.is_some() {
        return there;
    }
    // The kernel sorts its list by address, within the image and within each module. If all of one
    // name can be traced, the list has them as the symbols have.
    let symbols = symbols(target);
    if symbols.len() != places.len() {
        return None;
    }
    let which = symbols.iter().position(|address| *address == target.address)?;
    places.get(which).copied()
}

pub(super) fn name_of(target: &Target) -> Name<'_> {
    (target.module.as_deref(), &target.name)
}

/// `name [module]`, with more behind it in some lists.
pub(super) fn name(line: &str) -> Option<Name<'_>> {
    let mut words = line.split_whitespace();
    let name = words.next().filter(|word| !word.starts_with('#'))?;
    let module = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
    Some((module, name))
}

/// `ffffffff81002014 name [module]`
fn address(line: &str) -> Option<u64> {
    u64::from_str_radix(line.split_whitespace().next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str, module: Option<&str>, address: u64) -> Target {
        Target {
            name: name.into(),
            module: module.map(str::to_owned),
            address,
            ..Target::default()
        }
    }

    fn without() -> Result<Option<String>, ProbeError> {
        Ok(None)
    }

    const LIST: &str = "first\ntwice\nother\ntwice\ntwice [m]\nlast [m]";

    #[test]
    fn a_name_is_looked_up_in_its_module_alone() {
        let targets = [target("twice", Some("m"), 0x900), target("last", Some("m"), 0xa00)];
        let (unread, unasked) = (|| panic!("not ambiguous"), |_: &Target| panic!("not ambiguous"));
        let found = in_list(LIST, &unread, &targets, &unasked).unwrap();
        assert_eq!(found, [Ok(5), Ok(6)]);
    }

    #[test]
    fn of_two_with_one_name_the_address_tells_which() {
        let list = "f010 first\nf124 twice\nf200 other\nf304 twice\nf900 twice [m]\nfa00 last [m]";
        let with = || Ok(Some(list.to_owned()));
        let second = [target("twice", None, 0xf300)];
        let found = in_list(LIST, &with, &second, &|_| Vec::new()).unwrap();
        assert_eq!(found, [Ok(4)], "by the kernel's own addresses");
        let found = in_list(LIST, &without, &second, &|_| vec![0xf120, 0xf300]).unwrap();
        assert_eq!(found, [Ok(4)], "by their order");
        let first = [target("twice", None, 0xf120)];
        let found = in_list(LIST, &with, &first, &|_| Vec::new()).unwrap();
        assert_eq!(found, [Ok(2)]);
    }

    #[test]
    fn what_cannot_be_told_apart_is_refused() {
        let targets = [target("twice", None, 0xf300)];
        // A third of the name cannot be traced, and it is not known which.
        let found = in_list(LIST, &without, &targets, &|_| vec![0xf120, 0xf300, 0xf400]).unwrap();
        assert_eq!(found, [Err(AMBIGUOUS)]);
        let hidden = [target("twice", None, 0)];
        let found = in_list(LIST, &without, &hidden, &|_| vec![0xf120, 0xf300]).unwrap();
        assert_eq!(found, [Err(HIDDEN)]);
    }

    #[test]
    fn what_is_not_in_the_list_cannot_be_traced() {
        let targets = [target("last", None, 1), target("last", Some("m"), 2)];
        let found = in_list(LIST, &without, &targets, &|_| Vec::new()).unwrap();
        assert_eq!(found, [Err(UNKNOWN), Ok(6)], "the other is traced");
    }
}
