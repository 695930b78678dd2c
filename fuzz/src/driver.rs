//! What a driver's file and the kernel's BTF say.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use profiler_kernel::btf::Btf;
use profiler_lab::changed::Changed;
use profiler_lab::counts::{Code, Counts, Function, Node};
use profiler_lab::exact;
use profiler_lab::lines::Lines;
use profiler_lab::prepare;
use profiler_lab::registered::Registered;
use profiler_lab::symbols::Symbols;

use crate::lab_counts::BARE;

/// Two blobs: the first two bytes are the length of the kernel's.
pub fn btf(bytes: &[u8]) {
    let Some((length, blobs)) = bytes.split_first_chunk() else { return };
    let Some((base, own)) = blobs.split_at_checked(u16::from_le_bytes(*length).into()) else {
        return;
    };
    let path = Path::new("fuzz");
    let Ok(base) = Btf::parse(base, path, None) else { return };
    let Ok(btf) = Btf::parse(own, path, Some(base)) else { return };
    assert!(btf.count() <= own.len());
    btf.ids("connect");
    btf.has_member("sock", "sk");
    for id in 0..64 {
        let _ = btf.first_argument(id);
    }
}

/// In memory, as these are read by path.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/profiler-fuzz-{}.ko", std::process::id())));

pub fn driver(bytes: &[u8]) {
    fs::write(&*FILE, bytes).expect("/dev/shm can be written to");
    profiler_lab::fuzzing::driver(bytes);
    let _ = prepare::inspect(&FILE);
    let _ = prepare::defaults(bytes);
    let _ = Registered::read(&FILE);
    let _ = Changed::between([(FILE.as_path(), FILE.as_path())]);
    let Ok(lines) = Lines::read(&FILE) else { return };
    // A function of this name, of which a few instructions ran.
    let function = Function { address: 0, name: "hook".to_owned(), module: Some("m".to_owned()) };
    let counts = Counts {
        functions: HashMap::from([(0, function)]),
        nodes: vec![Node { parent: None, function: 0, sums: [1, 8, 0] }],
        code: vec![Code { node: 0, times: 1, address: 0, sizes: vec![1; 8] }],
        ..Counts::default()
    };
    let symbols = Symbols::parse("0000000000000000 t hook\t[m]");
    let _ = exact::fill(&mut BARE.clone(), &counts, Vec::new(), &lines, &symbols);
}
