//! A function to measure, resolved to what the kernel knows it by.

/// A resolved function: one symbol of one module (or of the kernel itself).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Symbol name, as in `/proc/kallsyms`.
    pub name: String,
    /// Module that holds it; `None` is the kernel image.
    pub module: Option<String>,
    /// Address at this boot; 0 where the kernel hides it (`kptr_restrict`).
    pub address: u64,
    /// Type id of the function in the BTF of its module (or of vmlinux).
    pub btf_id: u32,
}
