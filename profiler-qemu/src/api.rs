//! QEMU's plugin interface, as `include/qemu/qemu-plugin.h` of QEMU 7.2 (version 1) and 9.0 to 10.0
//! (versions 2 to 4) declare it.
//!
//! Functions that only some versions have, or that changed their form, are looked up when the plugin is
//! loaded; the others are bound by the loader. Nothing else here calls QEMU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::arch::Arch;

/// A block of the guest's code while it is translated.
#[repr(C)]
pub(crate) struct Tb {
    _opaque: [u8; 0],
}

/// An instruction of such a block.
#[repr(C)]
pub(crate) struct Insn {
    _opaque: [u8; 0],
}

/// QEMU's name for this plugin.
pub(crate) type Id = u64;

/// `qemu_info_t`: what QEMU says of itself.
#[repr(C)]
pub(crate) struct Info {
    target: *const c_char,
    minimum: c_int,
    current: c_int,
    system: bool,
    vcpus: c_int,
    vcpus_at_most: c_int,
}

/// `qemu_plugin_u64`: one number of each vCPU.
#[repr(C)]
#[derive(Clone, Copy)]
struct PerVcpu {
    scoreboard: *mut c_void,
    offset: usize,
}

/// Memory accesses that are reported: `QEMU_PLUGIN_MEM_*`.
#[derive(Clone, Copy)]
pub(crate) enum Access {
    Write = 2,
    Any = 3,
}

const NO_REGISTERS: c_int = 0;
const ADD: c_int = 0;

type OnTranslation = extern "C" fn(Id, *mut Tb);
type OnExecution = extern "C" fn(c_uint, *mut c_void);
type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);
type OnId = extern "C" fn(Id);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: OnTranslation);
    fn qemu_plugin_tb_n_insns(tb: *const Tb) -> usize;
    fn qemu_plugin_tb_vaddr(tb: *const Tb) -> u64;
    fn qemu_plugin_tb_get_insn(tb: *const Tb, index: usize) -> *mut Insn;
    fn qemu_plugin_insn_size(insn: *const Insn) -> usize;
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Tb,
        callback: OnExecution,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Insn,
        callback: OnExecution,
        flags: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Insn,
        callback: OnAccess,
        flags: c_int,
        access: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_mem_is_store(info: u32) -> bool;
    fn qemu_plugin_reset(id: Id, callback: OnId);
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The version that this plugin was made for, which QEMU reads after it has loaded it.
#[unsafe(no_mangle)]
static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// Run by the loader before QEMU reads [`qemu_plugin_version`]: QEMU 9.0 and newer refuse version 1, 8.2 and
/// older do not know version 2, which came with scoreboards.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE_VERSION: extern "C" fn() = choose_version;

extern "C" fn choose_version() {
    if find(c"qemu_plugin_scoreboard_new").is_some() {
        qemu_plugin_version.store(2, Ordering::Relaxed);
    }
}

/// A function of QEMU, if this version has it.
fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the default handle (0) searches the process, and the name ends with a NUL.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Whether the access reported to a callback is a write. QEMU 7.2 does not keep to what was asked for.
pub(crate) fn is_store(info: u32) -> bool {
    // SAFETY: the function reads the number alone.
    unsafe { qemu_plugin_mem_is_store(info) }
}

/// A number that the translated code itself adds to, without a call.
#[derive(Clone, Copy)]
pub(crate) enum Sum {
    /// Before version 2: anywhere in memory.
    Here(*mut u64),
    /// Since version 2: in a scoreboard.
    OfVcpu(PerVcpuSum),
}

#[derive(Clone, Copy)]
pub(crate) struct PerVcpuSum {
    entry: PerVcpu,
    at: extern "C" fn(*mut c_void, c_uint) -> *mut c_void,
}

/// What depends on the version of QEMU.
pub(crate) struct Api {
    id: Id,
    /// Of the guest.
    pub(crate) arch: &'static Arch,
    version: c_int,
    insn_sum: *mut c_void,
    memory_sum: *mut c_void,
}

/// What keeps the plugin from counting.
pub(crate) enum Unfit {
    /// Not a system emulation of one vCPU.
    Vcpus(c_int),
    /// An architecture that is not known here.
    Target(String),
    /// A function that the interface had is gone.
    Missing(&'static CStr),
}

impl Api {
    /// `info` is what QEMU gave to `qemu_plugin_install`.
    ///
    /// # Safety
    /// `info` points to QEMU's description of itself.
    pub(crate) unsafe fn new(id: Id, info: *const Info) -> Result<Self, Unfit> {
        // SAFETY: as the caller promises.
        let info = unsafe { &*info };
        if !info.system || info.vcpus != 1 {
            return Err(Unfit::Vcpus(info.vcpus));
        }
        // SAFETY: QEMU's name for what it emulates, which ends with a NUL.
        let target = unsafe { CStr::from_ptr(info.target) }.to_string_lossy();
        let arch = Arch::of(&target).ok_or_else(|| Unfit::Target(target.into_owned()))?;
        let (insn, memory) = if qemu_plugin_version.load(Ordering::Relaxed) < 2 {
            (c"qemu_plugin_register_vcpu_insn_exec_inline", c"qemu_plugin_register_vcpu_mem_inline")
        } else {
            (
                c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu",
                c"qemu_plugin_register_vcpu_mem_inline_per_vcpu",
            )
        };
        Ok(Self {
            id,
            arch,
            version: info.current,
            insn_sum: find(insn).ok_or(Unfit::Missing(insn))?,
            memory_sum: find(memory).ok_or(Unfit::Missing(memory))?,
        })
    }

    /// A new sum.
    pub(crate) fn sum(&self) -> Result<Sum, Unfit> {
        if qemu_plugin_version.load(Ordering::Relaxed) < 2 {
            return Ok(Sum::Here(Box::into_raw(Box::new(0))));
        }
        let (new, at) = (c"qemu_plugin_scoreboard_new", c"qemu_plugin_scoreboard_find");
        let make = find(new).ok_or(Unfit::Missing(new))?;
        let look = find(at).ok_or(Unfit::Missing(at))?;
        type New = extern "C" fn(usize) -> *mut c_void;
        type Find = extern "C" fn(*mut c_void, c_uint) -> *mut c_void;
        // SAFETY: the forms of these functions since version 2.
        let (make, at) = unsafe {
            let make = std::mem::transmute::<*mut c_void, New>(make);
            (make, std::mem::transmute::<*mut c_void, Find>(look))
        };
        Ok(Sum::OfVcpu(PerVcpuSum { entry: PerVcpu { scoreboard: make(8), offset: 0 }, at }))
    }

    /// Calls `callback` for each block that is translated.
    pub(crate) fn on_translation(&self, callback: OnTranslation) {
        // SAFETY: the id is ours.
        unsafe { qemu_plugin_register_vcpu_tb_trans_cb(self.id, callback) }
    }

    /// Has all code translated anew, with the callbacks that `then` registers.
    pub(crate) fn translate_anew(&self, then: OnId) {
        // SAFETY: the id is ours.
        unsafe { qemu_plugin_reset(self.id, then) }
    }

    /// The block, for the time of the callback that was given `tb`.
    ///
    /// # Safety
    /// `tb` is the argument of a translation's callback that has not returned.
    pub(crate) unsafe fn block(&self, tb: *mut Tb) -> Translation<'_> {
        Translation { api: self, tb }
    }
}

/// A block that is translated.
pub(crate) struct Translation<'a> {
    api: &'a Api,
    tb: *mut Tb,
}

impl Translation<'_> {
    pub(crate) fn address(&self) -> u64 {
        // SAFETY: of a callback that has not returned, here and below.
        unsafe { qemu_plugin_tb_vaddr(self.tb) }
    }

    pub(crate) fn len(&self) -> usize {
        // SAFETY: see above.
        unsafe { qemu_plugin_tb_n_insns(self.tb) }
    }

    /// The instruction's bytes, at most 16, into `bytes`; returns their number.
    pub(crate) fn bytes(&self, index: usize, bytes: &mut [u8; 16]) -> usize {
        // SAFETY: see above, and `index` is below `len`. Before version 3 the function returns where the
        // bytes are, and since then it copies them to where the caller says.
        unsafe {
            let insn = qemu_plugin_tb_get_insn(self.tb, index);
            let size = qemu_plugin_insn_size(insn).min(16);
            *bytes = [0; 16];
            if self.api.version >= 3 {
                let copy: unsafe extern "C" fn(*const Insn, *mut c_void, usize) -> usize =
                    std::mem::transmute(qemu_plugin_insn_data as unsafe extern "C" fn());
                copy(insn, bytes.as_mut_ptr().cast(), size);
            } else {
                let data: unsafe extern "C" fn(*const Insn) -> *const u8 =
                    std::mem::transmute(qemu_plugin_insn_data as unsafe extern "C" fn());
                std::ptr::copy_nonoverlapping(data(insn), bytes.as_mut_ptr(), size);
            }
            size
        }
    }

    /// Calls `callback` with `data` when the block begins.
    pub(crate) fn on_start(&self, callback: OnExecution, data: usize) {
        // SAFETY: see above; `data` is not read through by QEMU.
        unsafe {
            qemu_plugin_register_vcpu_tb_exec_cb(
                self.tb,
                callback,
                NO_REGISTERS,
                data as *mut c_void,
            )
        }
    }

    /// Calls `callback` with `data` before the instruction.
    pub(crate) fn on_instruction(&self, index: usize, callback: OnExecution, data: usize) {
        // SAFETY: see above.
        unsafe {
            let insn = qemu_plugin_tb_get_insn(self.tb, index);
            qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                callback,
                NO_REGISTERS,
                data as *mut c_void,
            );
        }
    }

    /// Calls `callback` for the instruction's accesses to memory.
    pub(crate) fn on_access(&self, index: usize, access: Access, callback: OnAccess) {
        // SAFETY: see above.
        unsafe {
            let insn = qemu_plugin_tb_get_insn(self.tb, index);
            qemu_plugin_register_vcpu_mem_cb(
                insn,
                callback,
                NO_REGISTERS,
                access as c_int,
                std::ptr::null_mut(),
            );
        }
    }

    /// Adds 1 to `sum` when the instruction is executed.
    pub(crate) fn count(&self, index: usize, sum: Sum) {
        // SAFETY: see above; the function has the form of the version that `Api::new` and `Api::sum` took.
        unsafe {
            let insn = qemu_plugin_tb_get_insn(self.tb, index);
            match sum {
                Sum::Here(at) => {
                    let add: extern "C" fn(*mut Insn, c_int, *mut u64, u64) =
                        std::mem::transmute(self.api.insn_sum);
                    add(insn, ADD, at, 1);
                }
                Sum::OfVcpu(sum) => {
                    let add: extern "C" fn(*mut Insn, c_int, PerVcpu, u64) =
                        std::mem::transmute(self.api.insn_sum);
                    add(insn, ADD, sum.entry, 1);
                }
            }
        }
    }

    /// Adds `weight` to `sum` for each access of the instruction to memory.
    pub(crate) fn count_accesses(&self, index: usize, access: Access, sum: Sum, weight: u64) {
        // SAFETY: as for `count`.
        unsafe {
            let insn = qemu_plugin_tb_get_insn(self.tb, index);
            match sum {
                Sum::Here(at) => {
                    let add: extern "C" fn(*mut Insn, c_int, c_int, *mut u64, u64) =
                        std::mem::transmute(self.api.memory_sum);
                    add(insn, access as c_int, ADD, at, weight);
                }
                Sum::OfVcpu(sum) => {
                    let add: extern "C" fn(*mut Insn, c_int, c_int, PerVcpu, u64) =
                        std::mem::transmute(self.api.memory_sum);
                    add(insn, access as c_int, ADD, sum.entry, weight);
                }
            }
        }
    }
}

unsafe extern "C" {
    /// Its form depends on the version, see [`Translation::bytes`].
    fn qemu_plugin_insn_data();
}

impl Sum {
    /// The sum so far.
    #[inline]
    pub(crate) fn get(self) -> u64 {
        // SAFETY: the memory is never freed; only the one vCPU's code, which waits for this callback, writes to it.
        unsafe {
            match self {
                Self::Here(at) => at.read_volatile(),
                Self::OfVcpu(sum) => {
                    (sum.at)(sum.entry.scoreboard, 0).cast::<u64>().read_volatile()
                }
            }
        }
    }
}
