//! Where the memory of arm64's kernel lies: QEMU reads a stopped guest's memory as its CPU may, and that runs a process.

use profiler_kernel::hooks::PAGE_TABLES;
use profiler_kernel::names::address_of;

/// Where QEMU puts a kernel that says nothing else: two MiB into its memory (`load_aarch64_image` of QEMU's hw/arm/boot.c).
const IMAGE: u64 = 0x4020_0000;

/// Bits of an address within a page of 4 KiB, and of an index of a table: Arm's manual of the architecture, chapter D8.
const PAGE_BITS: u32 = 12;
const INDEX_BITS: u32 = 9;

/// The address in an entry of a table.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// The kernel's page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pages {
    root: u64,
    levels: u32,
}

impl Pages {
    /// Those of a kernel with pages of 4 KiB at the place that it was built for, by lines of `/proc/kallsyms`.
    pub(super) fn of(symbols: &str) -> Option<Self> {
        let first = address_of(symbols, "_text")?;
        let root = address_of(symbols, PAGE_TABLES)?.checked_sub(first)?;
        // The upper half of the addresses is the kernel's, and its image begins in the middle of that.
        let bits = 65_u32.checked_sub(first.leading_ones())?;
        Some(Self {
            root: IMAGE.checked_add(root)?,
            levels: bits.checked_sub(PAGE_BITS)?.div_ceil(INDEX_BITS).min(4),
        })
    }

    /// The place of an address in memory, by entries that `read` gives; `None` if nothing is there.
    pub(super) fn physical<E>(
        self,
        address: u64,
        mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
    ) -> Result<Option<u64>, E> {
        let mut table = self.root;
        for below in (0..self.levels).rev() {
            let shift = PAGE_BITS + INDEX_BITS * below;
            let index = (address >> shift) & ((1 << INDEX_BITS) - 1);
            let entry = read(table + index * 8)?;
            let entry = entry.try_into().map_or(0, u64::from_le_bytes);
            table = entry & ADDRESS;
            match (entry & 3, below) {
                (3, 0) | (1, 1..) => {
                    let within = (1 << shift) - 1;
                    return Ok(Some((table & !within) | (address & within)));
                }
                (3, _) => {}
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str =
        "ffff800008000000 T _text\nffff800008010000 T _stext\nffff80000a000000 D swapper_pg_dir\n";

    #[test]
    fn an_address_is_looked_up_in_the_kernels_tables() {
        let pages = Pages::of(SYMBOLS).unwrap();
        assert_eq!(pages, Pages { root: IMAGE + 0x200_0000, levels: 4 });
        assert_eq!(Pages::of("ffff800008000000 T _text\n"), None);
        let tables = |at: u64| -> Result<Vec<u8>, ()> {
            let entry: u64 = match at - at % 4096 {
                0x4220_0000 => 0x5000_0003,
                // A block of 2 MiB, and a table.
                0x5000_0000 => 0x5100_0003,
                0x5100_0000 if at % 4096 == 8 => 0x0068_0000_4400_0701,
                0x5100_0000 => 0x5200_0003,
                0x5200_0000 if at.is_multiple_of(4096) => 0x0068_0000_4500_0703,
                _ => 0,
            };
            Ok(entry.to_le_bytes().to_vec())
        };
        let of = |address| pages.physical(address, tables).unwrap();
        assert_eq!(of(0xffff_8000_0020_1234), Some(0x4400_1234));
        assert_eq!(of(0xffff_8000_0000_0234), Some(0x4500_0234));
        assert_eq!(of(0xffff_8000_0000_1234), None);
    }
}
