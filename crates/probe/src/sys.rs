//! The few bpf(2) commands that aya 0.14 has no way to make.
//!
//! aya loads tracing programs for functions of the kernel image alone: it never sets
//! `attach_btf_obj_fd`, without which a function of a module cannot be named. So programs are
//! loaded and attached here, and maps whose size is known only at run time are read here.
//! Structs are those that aya-obj generates of the kernel's include/uapi/linux/bpf.h. An older kernel takes what it does
//! not know as long as it is zero.

use std::{
    collections::HashSet,
    ffi::{CStr, CString, c_int, c_long, c_void},
    io,
    os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{
    BPF_F_MMAPABLE, bpf_attr, bpf_btf_info, bpf_cmd, bpf_insn, bpf_link_info, bpf_link_type,
    bpf_map_type, bpf_prog_info, bpf_prog_type, perf_event_attr,
};

pub(super) mod mapped;
pub(super) mod perf;

/// What a program will be attached to, as `enum bpf_attach_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachType {
    /// A kprobe or kretprobe, by a perf event: no attach type.
    Kprobe = 0,
    /// `BPF_TRACE_FENTRY` (kernel 5.5, commit fec56f5890d9)
    Fentry = 24,
    /// `BPF_TRACE_FEXIT` (as above)
    Fexit = 25,
    /// `BPF_TRACE_KPROBE_SESSION` (kernel 6.10, commit 535a3692ba72)
    KprobeSession = 56,
    /// `BPF_TRACE_FSESSION` (kernel 7.0, commit 2d419c44658f)
    Fsession = 58,
}

impl AttachType {
    /// Whether programs of it are attached by a trampoline, to the function that they were loaded for.
    pub(super) const fn is_tracing(self) -> bool {
        matches!(self, Self::Fentry | Self::Fexit | Self::Fsession)
    }
}

/// Why the kernel refused a program, with the verifier's words.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", super::errno::in_words(error), if log.is_empty() { String::new() } else { format!("; the verifier said:\n{log}") })]
pub(super) struct LoadRefused {
    /// What the call returned.
    pub(super) error: io::Error,
    /// The verifier's log; empty when it had nothing to say.
    pub(super) log: String,
}

impl LoadRefused {
    /// The same in a line.
    pub(super) fn short(&self) -> String {
        let words = super::errno::in_words(&self.error);
        let mut log = self.log.lines().map(str::trim);
        match log.rfind(|line| !line.is_empty() && !line.starts_with("processed ")) {
            None => words,
            // `bpf_check_attach_target()` in kernel/bpf/verifier.c
            Some(last @ "Cannot recursively attach") => format!(
                "{words}: {last} (it is a tracing program, and before Linux 6.8, commit 19bfcdf9498a, no other \
                 attaches to one)"
            ),
            Some(last) => format!("{words}: {last}"),
        }
    }
}

/// Length of `struct bpf_link_info` once links report misses: its longest part, that of kprobes by perf events, has
/// grown by its own count in the kernel version before that of `kprobe_multi` (both 6.7, commits 3acf8ace6823 and
/// e2b2cd592adb).
const LINK_INFO_WITH_MISSED: usize = 56;

/// Offset behind `recursion_misses` in `struct bpf_prog_info` (kernel 5.12, commit 9ed9e9ba2337).
const RECURSION_MISSES_END: usize = std::mem::offset_of!(bpf_prog_info, recursion_misses) + 8;

/// A link of any process on this machine.
pub(super) struct Link {
    pub(super) id: u32,
    pub(super) prog_id: u32,
    /// Of a tracing link: id of the BTF object that holds the function, and the function's id in it.
    pub(super) function: Option<[u32; 2]>,
}

/// A struct of the kernel's interface, empty.
fn zeroed<T: Plain>() -> T {
    // SAFETY: all zeroes are one, as `Plain` promises.
    unsafe { std::mem::zeroed() }
}

/// # Safety
/// All zeroes are a value of the type, and any bytes that the kernel writes are.
unsafe trait Plain {}
// SAFETY: integers, and structs and unions of integers.
unsafe impl Plain for bpf_attr {}
// SAFETY: as above.
unsafe impl Plain for bpf_prog_info {}
// SAFETY: as above.
unsafe impl Plain for bpf_link_info {}
// SAFETY: as above.
unsafe impl Plain for bpf_btf_info {}
// SAFETY: as above.
unsafe impl Plain for perf_event_attr {}

/// One bpf(2) call.
fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<c_long> {
    // SAFETY: `attr` is live and of the size passed; all callers are in this file and put in it only addresses of buffers
    // that outlive the call, with their true lengths.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as c_int,
            std::ptr::from_mut(attr).cast::<c_void>(),
            size_of::<bpf_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A call that returns a file descriptor.
fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    let fd = c_int::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    // SAFETY: the kernel has just made this descriptor for this call, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn fd_number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().unsigned_abs()
}

fn address<T: ?Sized>(reference: &T) -> u64 {
    std::ptr::from_ref(reference).cast::<u8>() as u64
}

fn address_mut<T: ?Sized>(reference: &mut T) -> u64 {
    std::ptr::from_mut(reference).cast::<u8>() as u64
}

/// What to load.
pub(super) struct Program<'a> {
    pub(super) name: &'a str,
    pub(super) instructions: &'a [bpf_insn],
    pub(super) attach_type: AttachType,
    /// For tracing programs the id of the function in the BTF that holds it.
    pub(super) btf_id: u32,
    /// The BTF object of the module, or the BPF program; `None` is vmlinux, or no BTF.
    pub(super) traced: Option<BorrowedFd<'a>>,
}

/// Loads a program: `BPF_PROG_LOAD`, for tracing programs with `attach_btf_obj_fd` or `attach_prog_fd`, which are one field.
///
/// # Errors
/// What the kernel said, with the verifier's log where it wrote one.
pub(super) fn load_program(program: &Program<'_>) -> Result<OwnedFd, LoadRefused> {
    // Without a log first: writing one makes loading several times slower.
    let first = bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attributes_with_log(program, &mut []));
    first.or_else(|error| {
        let mut log = vec![0; 1 << 20];
        let again = bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attributes_with_log(program, &mut log));
        again.map_err(|_| {
            let log = CStr::from_bytes_until_nul(&log)
                .map(|text| text.to_string_lossy().trim().to_owned())
                .unwrap_or_default();
            LoadRefused { error, log }
        })
    })
}

/// Those for loading a program; the verifier writes to `log`, if that is not empty.
fn attributes_with_log(program: &Program<'_>, log: &mut [u8]) -> bpf_attr {
    let kind = match program.attach_type.is_tracing() {
        true => bpf_prog_type::BPF_PROG_TYPE_TRACING,
        false => bpf_prog_type::BPF_PROG_TYPE_KPROBE,
    };
    let mut attr = program_attributes(kind, program.instructions);
    // SAFETY: all parts of the union are integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.log_level = u32::from(!log.is_empty());
    load.log_size = u32::try_from(log.len()).unwrap_or(0);
    load.log_buf = if log.is_empty() { 0 } else { address_mut(log) };
    // The last byte ends it.
    for (to, from) in load.prog_name[..15].iter_mut().zip(program.name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    load.expected_attach_type = program.attach_type as u32;
    if program.attach_type.is_tracing() {
        load.attach_btf_id = program.btf_id;
        load.__bindgen_anon_1.attach_btf_obj_fd = program.traced.map_or(0, fd_number);
    }
    attr
}

fn program_attributes(kind: bpf_prog_type, instructions: &[bpf_insn]) -> bpf_attr {
    let mut attr: bpf_attr = zeroed();
    // SAFETY: all parts of the union are integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = kind as u32;
    load.insn_cnt = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
    load.insns = address(instructions);
    load.license = c"GPL".as_ptr() as u64;
    attr
}

/// Attaches a tracing program to the function it was loaded for: the probe runs until the
/// returned link is closed.
///
/// # Errors
/// What the kernel said.
pub(super) fn attach_tracing(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr: bpf_attr = zeroed();
    attr.raw_tracepoint.prog_fd = fd_number(program);
    bpf_fd(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr)
}

/// Has the kernel run a program, or on behalf of a loaded fentry program its test functions; what that returns.
///
/// # Errors
/// What the kernel said.
pub(super) fn test_run(program: BorrowedFd<'_>) -> io::Result<u32> {
    let mut attr: bpf_attr = zeroed();
    attr.test.prog_fd = fd_number(program);
    bpf(bpf_cmd::BPF_PROG_TEST_RUN, &mut attr)?;
    // SAFETY: all parts of the union are integers.
    Ok(unsafe { attr.test.retval })
}

/// The number of this process outside of all PID namespaces, as BPF programs see it: what one says that
/// is run once, here and now (`BPF_PROG_TEST_RUN` of raw tracepoints: kernel 5.10, commit 1b4d60ec162f).
///
/// # Errors
/// What the kernel said.
pub(super) fn pid_outside() -> io::Result<u32> {
    const GET_CURRENT_PID_TGID: i32 = 14;
    let instructions = [
        instruction(0x85, 0, 0, 0, GET_CURRENT_PID_TGID), // r0 = bpf_get_current_pid_tgid()
        instruction(0x77, 0, 0, 0, 32),                   // r0 >>= 32
        instruction(0x95, 0, 0, 0, 0),                    // exit
    ];
    test_run(load_plain(bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT, &instructions)?.as_fd())
}

fn load_plain(kind: bpf_prog_type, instructions: &[bpf_insn]) -> io::Result<OwnedFd> {
    bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut program_attributes(kind, instructions))
}

pub(super) fn instruction(code: u8, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
    let (_bitfield_align_1, _bitfield_1) = ([], bpf_insn::new_bitfield_1(to, from));
    bpf_insn { code, _bitfield_align_1, _bitfield_1, off, imm }
}

/// Attaches a program to a function probe (fprobe) of one function, for entry and exit: the probe runs until the returned
/// link is closed. The function is known by its address, or if that is 0, by its name, which is that of one function alone.
///
/// # Errors
/// What the kernel said.
pub(super) fn attach_session(
    program: BorrowedFd<'_>,
    function: &str,
    address_of: u64,
) -> io::Result<OwnedFd> {
    let name = CString::new(function)?;
    // The kernel takes an array of addresses or one of names: here each of one element.
    let names = [name.as_ptr() as u64];
    let mut attr: bpf_attr = zeroed();
    attr.link_create.__bindgen_anon_1.prog_fd = fd_number(program);
    attr.link_create.attach_type = AttachType::KprobeSession as u32;
    attr.link_create.__bindgen_anon_3.kprobe_multi.cnt = 1;
    match address_of {
        0 => attr.link_create.__bindgen_anon_3.kprobe_multi.syms = address(&names),
        _ => attr.link_create.__bindgen_anon_3.kprobe_multi.addrs = address(&address_of),
    }
    bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
}

/// Whether programs may use atomic compare and exchange (kernel 5.12, commit 5ffa25502b5a): tries to
/// load one that does.
pub(super) fn has_exchange() -> bool {
    const R0: u8 = 0;
    const R10: u8 = 10;
    let instructions = [
        instruction(0xb7, R0, 0, 0, 0),       // r0 = 0
        instruction(0x7b, R10, R0, -8, 0),    // *(u64 *)(r10 - 8) = r0
        instruction(0xdb, R10, R0, -8, 0xf1), // r0 = cmpxchg_64(r10 - 8, r0, r0)
        instruction(0x95, 0, 0, 0, 0),        // exit
    ];
    load_plain(bpf_prog_type::BPF_PROG_TYPE_SOCKET_FILTER, &instructions).is_ok()
}

/// Writes the first element; `value` must be as long as the map's values.
///
/// # Errors
/// What the kernel said.
pub(super) fn map_update(map: BorrowedFd<'_>, value: &[u8]) -> io::Result<()> {
    let key = 0_u32;
    let mut attr: bpf_attr = zeroed();
    attr.__bindgen_anon_2.map_fd = fd_number(map);
    attr.__bindgen_anon_2.key = address(&key);
    attr.__bindgen_anon_2.__bindgen_anon_1.value = address(value);
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
}

/// Makes a map unwritable for user space, so that the verifier takes its values for constants.
///
/// # Errors
/// What the kernel said.
pub(super) fn map_freeze(map: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr: bpf_attr = zeroed();
    attr.__bindgen_anon_2.map_fd = fd_number(map);
    bpf(bpf_cmd::BPF_MAP_FREEZE, &mut attr).map(drop)
}

/// Flag of an array that may be mapped (kernel 5.5, commit fc9702273e2e).
pub(super) const MAPPABLE: u32 = BPF_F_MMAPABLE;

/// Whether the kernel takes an array whose value has so many bytes. Other refusals say nothing about the size.
pub(super) fn takes_value(bytes: usize) -> bool {
    let Ok(value_size) = u32::try_from(bytes) else { return false };
    let made = create_map(bpf_map_type::BPF_MAP_TYPE_ARRAY, value_size, MAPPABLE, 0);
    made.err().and_then(|error| error.raw_os_error()) != Some(libc::E2BIG)
}

/// Makes a map of one element.
fn create_map(
    kind: bpf_map_type,
    value_size: u32,
    map_flags: u32,
    inner_map_fd: u32,
) -> io::Result<OwnedFd> {
    let mut attr: bpf_attr = zeroed();
    // SAFETY: all parts of the union are integers.
    let create = unsafe { &mut attr.__bindgen_anon_1 };
    (create.map_type, create.max_entries) = (kind as u32, 1);
    (create.key_size, create.value_size) = (4, value_size);
    (create.map_flags, create.inner_map_fd) = (map_flags, inner_map_fd);
    bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)
}

/// All objects of one kind, by its `GET_NEXT_ID` and `GET_FD_BY_ID` commands.
fn objects(next: bpf_cmd, by_id: bpf_cmd) -> impl Iterator<Item = io::Result<OwnedFd>> {
    let mut id = 0;
    std::iter::from_fn(move || {
        loop {
            let mut attr: bpf_attr = zeroed();
            attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
            match bpf(next, &mut attr) {
                // SAFETY: all parts of the union are integers.
                Ok(_) => id = unsafe { attr.__bindgen_anon_6.next_id },
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return None,
                Err(error) => return Some(Err(error)),
            }
            match object(by_id, id) {
                // Gone since it was listed, or a link that is not complete yet.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => {
                }
                opened => return Some(opened),
            }
        }
    })
}

/// The object of this id, by the `GET_FD_BY_ID` command of its kind.
fn object(by_id: bpf_cmd, id: u32) -> io::Result<OwnedFd> {
    let mut attr: bpf_attr = zeroed();
    attr.__bindgen_anon_6.__bindgen_anon_1.prog_id = id;
    bpf_fd(by_id, &mut attr)
}

/// The loaded program of this id.
///
/// # Errors
/// What the kernel said: `ENOENT` if it is not loaded any more.
pub(super) fn program(id: u32) -> io::Result<OwnedFd> {
    object(bpf_cmd::BPF_PROG_GET_FD_BY_ID, id)
}

/// Fills `info` with the kernel's description of an object; returns how many bytes the kernel wrote.
fn info<T: Plain>(fd: BorrowedFd<'_>, info: &mut T) -> io::Result<usize> {
    let mut attr: bpf_attr = zeroed();
    attr.info.bpf_fd = fd_number(fd);
    attr.info.info_len = u32::try_from(size_of::<T>()).unwrap_or(0);
    attr.info.info = address_mut(info);
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    // SAFETY: all parts of the union are integers.
    Ok(unsafe { attr.info.info_len } as usize)
}

/// The BTF object of a loaded module (or `vmlinux`), with its id.
///
/// # Errors
/// What the kernel said; `Ok(None)` when there is no such object.
pub(super) fn kernel_btf(name: &str) -> io::Result<Option<(u32, OwnedFd)>> {
    for fd in objects(bpf_cmd::BPF_BTF_GET_NEXT_ID, bpf_cmd::BPF_BTF_GET_FD_BY_ID) {
        let fd = fd?;
        let mut text = [0u8; 64];
        let mut found: bpf_btf_info = zeroed();
        found.name = address_mut(&mut text);
        found.name_len = size_of_val(&text) as u32;
        info(fd.as_fd(), &mut found)?;
        let matches =
            CStr::from_bytes_until_nul(&text).is_ok_and(|text| text.to_bytes() == name.as_bytes());
        if found.kernel_btf != 0 && matches {
            return Ok(Some((found.id, fd)));
        }
    }
    Ok(None)
}

/// What the kernel says of a link.
///
/// # Errors
/// What the kernel said.
pub(super) fn link(fd: BorrowedFd<'_>) -> io::Result<Link> {
    let mut raw: bpf_link_info = zeroed();
    info(fd, &mut raw)?;
    // SAFETY: all parts of the union are integers.
    let tracing = unsafe { raw.__bindgen_anon_1.tracing };
    let function = [tracing.target_obj_id, tracing.target_btf_id];
    let is_tracing = raw.type_ == bpf_link_type::BPF_LINK_TYPE_TRACING as u32;
    Ok(Link { id: raw.id, prog_id: raw.prog_id, function: is_tracing.then_some(function) })
}

/// Every link on the machine, whoever made it.
///
/// # Errors
/// What the kernel said.
pub(super) fn links() -> io::Result<Vec<Link>> {
    let links = objects(bpf_cmd::BPF_LINK_GET_NEXT_ID, bpf_cmd::BPF_LINK_GET_FD_BY_ID);
    links.map(|fd| link(fd?.as_fd())).collect()
}

/// Ids of the programs that a link keeps attached. Attachments without a link, such as by netlink or an `ioctl`, are not known.
///
/// # Errors
/// What the kernel said.
pub(super) fn linked_programs() -> io::Result<HashSet<u32>> {
    Ok(links()?.iter().map(|link| link.prog_id).collect())
}

/// A BPF program of any process on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedProgram {
    /// Its id, which no later one has.
    pub id: u32,
    /// Its name, cut to 15 characters by the kernel.
    pub name: String,
    /// Addresses of its own code and of its subprograms', in order; none if it is interpreted.
    pub functions: Vec<u64>,
    /// Id of its BTF; 0 without.
    pub btf: u32,
    /// Type ids of these functions in it; none without.
    pub types: Vec<u32>,
    /// The machine code of each of these.
    pub images: Vec<Vec<u8>>,
    /// Its source lines, in the order of its instructions; none if it was compiled without.
    pub lines: Vec<JitedLine>,
}

/// From which address on the instructions of a program are of a source line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JitedLine {
    pub address: u64,
    /// Offset of the file's name in the strings of the program's BTF.
    pub file: u32,
    /// Offset of the line's text there.
    pub text: u32,
    /// The line's number, from 1.
    pub number: u32,
}

/// A `struct bpf_line_info`: an instruction's index, offsets of the file's name and of the line's text, line and column.
type LineInfo = [u32; 4];

/// A `struct bpf_func_info`: the index of a function's first instruction, and its type.
type FunctionInfo = [u32; 2];

/// Bits of the column in a `line_col` (`BPF_LINE_INFO_LINE_NUM` of include/uapi/linux/bpf.h).
const COLUMN_BITS: u32 = 10;

/// All programs that are loaded, the oldest first.
///
/// # Errors
/// What the kernel said.
pub fn loaded_programs() -> io::Result<Vec<LoadedProgram>> {
    let programs = objects(bpf_cmd::BPF_PROG_GET_NEXT_ID, bpf_cmd::BPF_PROG_GET_FD_BY_ID);
    programs.map(|fd| loaded_program(fd?.as_fd())).collect()
}

fn loaded_program(fd: BorrowedFd<'_>) -> io::Result<LoadedProgram> {
    // How many there are, first.
    let mut sizes: bpf_prog_info = zeroed();
    info(fd, &mut sizes)?;
    let line_count = sizes.nr_line_info.min(sizes.nr_jited_line_info);
    let mut functions = vec![0_u64; sizes.nr_jited_ksyms as usize];
    let mut lengths = vec![0_u32; sizes.nr_jited_func_lens as usize];
    let mut code = vec![0_u8; sizes.jited_prog_len as usize];
    let mut types = vec![FunctionInfo::default(); sizes.nr_func_info as usize];
    let mut addresses = vec![0_u64; line_count as usize];
    let mut lines = vec![LineInfo::default(); line_count as usize];
    // Not by a literal, which leaves the bytes behind the last field as they are: an older kernel wants zeros there.
    let mut raw: bpf_prog_info = zeroed();
    raw.nr_jited_ksyms = sizes.nr_jited_ksyms;
    raw.jited_ksyms = address_mut(functions.as_mut_slice());
    raw.nr_jited_func_lens = sizes.nr_jited_func_lens;
    raw.jited_func_lens = address_mut(lengths.as_mut_slice());
    raw.jited_prog_len = sizes.jited_prog_len;
    raw.jited_prog_insns = address_mut(code.as_mut_slice());
    // The kernel refuses sizes of records that are not its own, and one that does not know these wants zeros.
    if !types.is_empty() {
        raw.nr_func_info = sizes.nr_func_info;
        raw.func_info_rec_size = size_of::<FunctionInfo>() as u32;
        raw.func_info = address_mut(types.as_mut_slice());
    }
    if line_count > 0 {
        (raw.nr_line_info, raw.nr_jited_line_info) = (line_count, line_count);
        raw.line_info_rec_size = size_of::<LineInfo>() as u32;
        raw.line_info = address_mut(lines.as_mut_slice());
        raw.jited_line_info_rec_size = size_of::<u64>() as u32;
        raw.jited_line_info = address_mut(addresses.as_mut_slice());
    }
    info(fd, &mut raw)?;
    types.truncate(raw.nr_func_info as usize);
    functions.truncate(raw.nr_jited_ksyms as usize);
    let name = raw.name.iter().map(|byte| byte.to_ne_bytes()[0]).take_while(|byte| *byte != 0);
    let name = String::from_utf8_lossy(&name.collect::<Vec<_>>()).into_owned();
    let mut rest = code.as_slice();
    let images = lengths.into_iter().map(|length| {
        let (image, behind) = rest.split_at(rest.len().min(length as usize));
        rest = behind;
        image.to_vec()
    });
    let images = images.collect();
    let lines = addresses.into_iter().zip(lines);
    let lines = lines.map(|(address, [_, file, text, place])| {
        let number = place >> COLUMN_BITS;
        JitedLine { address, file, text, number }
    });
    let lines = lines.collect();
    let types = types.into_iter().map(|[_, id]| id).collect();
    Ok(LoadedProgram { id: raw.id, name, functions, btf: raw.btf_id, types, images, lines })
}

/// Runs of a program while they were counted, and the nanoseconds that they took.
///
/// # Errors
/// What the kernel said.
pub(super) fn run_stats(program: BorrowedFd<'_>) -> io::Result<[u64; 2]> {
    let mut raw: bpf_prog_info = zeroed();
    info(program, &mut raw)?;
    Ok([raw.run_cnt, raw.run_time_ns])
}

/// The bytes of a BTF object.
///
/// # Errors
/// What the kernel said.
pub fn btf_bytes(id: u32) -> io::Result<Vec<u8>> {
    let object = object(bpf_cmd::BPF_BTF_GET_FD_BY_ID, id)?;
    let mut found: bpf_btf_info = zeroed();
    info(object.as_fd(), &mut found)?;
    let mut bytes = vec![0; found.btf_size as usize];
    // What the kernel wrote of other fields it would take for buffers.
    found = bpf_btf_info {
        btf_size: found.btf_size,
        btf: address_mut(bytes.as_mut_slice()),
        ..zeroed()
    };
    info(object.as_fd(), &mut found)?;
    Ok(bytes)
}

/// How often the kernel did not run a program because it, or for kprobes another one, was running on
/// that CPU already; `None` on kernels that do not report it.
///
/// # Errors
/// What the kernel said.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut raw: bpf_prog_info = zeroed();
    let known = info(program, &mut raw)?;
    Ok((known >= RECURSION_MISSES_END).then_some(raw.recursion_misses))
}

/// Calls for which the kernel had no room to follow them to their exit, of a link made by
/// many functions; `None` on kernels that do not report it.
///
/// # Errors
/// What the kernel said.
pub(super) fn multi_misses(link: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let mut raw: bpf_link_info = zeroed();
    let known = info(link, &mut raw)?;
    // SAFETY: all parts of the union are integers.
    let missed = unsafe { raw.__bindgen_anon_1.kprobe_multi.missed };
    Ok((known >= LINK_INFO_WITH_MISSED).then_some(missed))
}

/// A way to wait until no CPU runs a program that began before the call.
///
/// BPF tracing programs run inside RCU read sections, also while their task is off its CPU. An update of
/// an array of maps from user space waits for all of them, for then the map that it replaced may be gone
/// (`maybe_wait_bpf_programs` in kernel/bpf/syscall.c; commit 1ae80cf31938).
pub(super) struct GracePeriod {
    array: OwnedFd,
    /// What the array is given each time.
    map: OwnedFd,
}

impl GracePeriod {
    /// Makes the maps, which are older (kernel 4.12, commit 56f668dfe00d) than those that can be mapped.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn new() -> io::Result<Self> {
        use bpf_map_type::{BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_ARRAY_OF_MAPS};
        let map = create_map(BPF_MAP_TYPE_ARRAY, 4, 0, 0)?;
        let array = create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 0, fd_number(map.as_fd()))?;
        Ok(Self { array, map })
    }

    /// Waits; where the kernel has no memory for that, longer than a program takes that is not preempted.
    pub(super) fn wait(&self) {
        let map = fd_number(self.map.as_fd()).to_ne_bytes();
        if map_update(self.array.as_fd(), &map).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
