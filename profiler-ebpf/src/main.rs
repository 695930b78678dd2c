//! The BPF programs that time the calls of handlers and count them in the kernel.
//!
//! Every handler has its own instance of its backend's programs and its own slots, records and
//! constants, so no program looks anything up by handler. The fast path is short on purpose: what an
//! entry program does before it reads the clock is added to no call's time, and neither is what an
//! exit program does after it read it.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(unreachable_pub, reason = "the attributes of programs make functions of their own")]

mod hashed;
mod memory;
mod pairing;
mod place;
mod record;
mod registers;
mod session;
mod shared;
mod state;
mod trampoline;

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 4] = *b"GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
