//! The running kernel's memory, by `/proc/kcore`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use profiler_base::bytes::array;

use crate::target::KernelFiles;

/// The kernel's memory: an ELF core file with a segment for each range of addresses.
pub(super) struct Kcore {
    file: File,
    /// First address, length, and place in the file.
    segments: Vec<[u64; 3]>,
}

impl Kcore {
    pub(super) fn open(files: &KernelFiles) -> io::Result<Self> {
        let file = File::open(files.path("proc/kcore"))?;
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0)?;
        let start = array(&header, 32).map_or(0, u64::from_ne_bytes);
        let [length, count]: [u64; 2] =
            [54, 56].map(|at| array(&header, at).map_or(0, u16::from_ne_bytes).into());
        let mut segments = Vec::new();
        for at in 0..count {
            let mut segment = [0; 56];
            file.read_exact_at(&mut segment, start.saturating_add(at * length))?;
            segments.push([16, 40, 8].map(|at| array(&segment, at).map_or(0, u64::from_ne_bytes)));
        }
        Ok(Self { file, segments })
    }

    pub(super) fn word(&self, address: u64) -> io::Result<u64> {
        let found = self.segments.iter().find(|[first, length, _]| {
            address.checked_sub(*first).is_some_and(|offset| offset.saturating_add(8) <= *length)
        });
        let [first, _, place] = found
            .ok_or_else(|| io::Error::other(format!("it does not have address {address:#x}")))?;
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, place.wrapping_add(address - first))?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
