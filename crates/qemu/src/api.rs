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
    if find(c"qemu_plugin_scoreboard_new").is_ok() {
        qemu_plugin_version.store(2, Ordering::Relaxed);
    }
}

/// A function of QEMU, or why the plugin cannot count.
fn find(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the default handle (0) searches the process, and the name ends with a NUL.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    if found.is_null() {
        return Err(format!("this QEMU has no {}", name.to_string_lossy()));
    }
    Ok(found)
}

/// Whether the access reported to a callback is a write. QEMU 7.2 does not keep to what was asked for.
pub(crate) fn is_store(info: u32) -> bool {
    // SAFETY: the function reads the number alone.
    unsafe { qemu_plugin_mem_is_store(info) }
}

/// A number that the translated code itself adds to, without a call.
#[derive(Clone, Copy)]
pub(crate) struct Sum(Place);

#[derive(Clone, Copy)]
enum Place {
    /// Before version 2: anywhere in memory.
    Here(*mut u64),
    /// Since version 2: in a scoreboard, and QEMU's function that finds it there.
    Scoreboard(PerVcpu, extern "C" fn(*mut c_void, c_uint) -> *mut c_void),
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

impl Api {
    /// `info` is what QEMU gave to `qemu_plugin_install`. An error says why the plugin cannot count.
    ///
    /// # Safety
    /// `info` points to QEMU's description of itself.
    pub(crate) unsafe fn new(id: Id, info: *const Info) -> Result<Self, String> {
        // SAFETY: as the caller promises.
        let info = unsafe { &*info };
        if !info.system || info.vcpus != 1 {
            return Err(format!("counts one vCPU of a whole machine, and this has {}", info.vcpus));
        }
        // SAFETY: QEMU's name for what it emulates, which ends with a NUL.
        let target = unsafe { CStr::from_ptr(info.target) }.to_string_lossy();
        let arch = Arch::of(&target)
            .ok_or_else(|| format!("does not know the instructions of {target}"))?;
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
            insn_sum: find(insn)?,
            memory_sum: find(memory)?,
        })
    }

    /// A new sum.
    pub(crate) fn sum(&self) -> Result<Sum, String> {
        if qemu_plugin_version.load(Ordering::Relaxed) < 2 {
            return Ok(Sum(Place::Here(Box::into_raw(Box::new(0)))));
        }
        type New = extern "C" fn(usize) -> *mut c_void;
        type Find = extern "C" fn(*mut c_void, c_uint) -> *mut c_void;
        // SAFETY: the forms of these functions since version 2.
        let (make, at) = unsafe {
            let make =
                std::mem::transmute::<*mut c_void, New>(find(c"qemu_plugin_scoreboard_new")?);
            (make, std::mem::transmute::<*mut c_void, Find>(find(c"qemu_plugin_scoreboard_find")?))
        };
        Ok(Sum(Place::Scoreboard(PerVcpu { scoreboard: make(8), offset: 0 }, at)))
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

    fn insn(&self, index: usize) -> *mut Insn {
        // SAFETY: see above.
        unsafe { qemu_plugin_tb_get_insn(self.tb, index) }
    }

    /// The instruction's bytes, at most 16, into `bytes`; returns their number.
    pub(crate) fn bytes(&self, index: usize, bytes: &mut [u8; 16]) -> usize {
        // SAFETY: see above, and `index` is below `len`. Before version 3 the function returns where the
        // bytes are, and since then it copies them to where the caller says.
        unsafe {
            let insn = self.insn(index);
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
    pub(crate) fn on_start(&self, callback: OnExecution, data: *mut c_void) {
        // SAFETY: see above; `data` is not read through by QEMU.
        unsafe { qemu_plugin_register_vcpu_tb_exec_cb(self.tb, callback, NO_REGISTERS, data) }
    }

    /// Calls `callback` with `data` before the instruction.
    pub(crate) fn on_instruction(&self, index: usize, callback: OnExecution, data: usize) {
        let (insn, data) = (self.insn(index), data as *mut c_void);
        // SAFETY: see above.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(insn, callback, NO_REGISTERS, data) }
    }

    /// Calls `callback` for the instruction's accesses to memory.
    pub(crate) fn on_access(&self, index: usize, access: Access, callback: OnAccess) {
        let (insn, access, data) = (self.insn(index), access as c_int, std::ptr::null_mut());
        // SAFETY: see above.
        unsafe { qemu_plugin_register_vcpu_mem_cb(insn, callback, NO_REGISTERS, access, data) }
    }

    /// Adds 1 to `sum` when the instruction is executed.
    pub(crate) fn count(&self, index: usize, sum: Sum) {
        // SAFETY: see above; the function has the form of the version that `Api::new` and `Api::sum` took.
        unsafe {
            match sum.0 {
                Place::Here(at) => {
                    let add: extern "C" fn(*mut Insn, c_int, *mut u64, u64) =
                        std::mem::transmute(self.api.insn_sum);
                    add(self.insn(index), ADD, at, 1);
                }
                Place::Scoreboard(entry, _) => {
                    let add: extern "C" fn(*mut Insn, c_int, PerVcpu, u64) =
                        std::mem::transmute(self.api.insn_sum);
                    add(self.insn(index), ADD, entry, 1);
                }
            }
        }
    }

    /// Adds `weight` to `sum` for each access of the instruction to memory.
    pub(crate) fn count_accesses(&self, index: usize, access: Access, sum: Sum, weight: u64) {
        // SAFETY: as for `count`.
        unsafe {
            match sum.0 {
                Place::Here(at) => {
                    let add: extern "C" fn(*mut Insn, c_int, c_int, *mut u64, u64) =
                        std::mem::transmute(self.api.memory_sum);
                    add(self.insn(index), access as c_int, ADD, at, weight);
                }
                Place::Scoreboard(entry, _) => {
                    let add: extern "C" fn(*mut Insn, c_int, c_int, PerVcpu, u64) =
                        std::mem::transmute(self.api.memory_sum);
                    add(self.insn(index), access as c_int, ADD, entry, weight);
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
            match self.0 {
                Place::Here(at) => at.read_volatile(),
                Place::Scoreboard(entry, at) => {
                    at(entry.scoreboard, 0).cast::<u64>().read_volatile()
                }
            }
        }
    }
}
