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

/// Two programs that do the same with 2 significant digits and with 3.
macro_rules! with_digits {
    ($kind:ident, $two:ident, $three:ident, $body:ident($context:ty) -> $result:ty) => {
        #[doc = concat!("[`", stringify!($body), "`] with 2 significant digits.")]
        #[$kind]
        pub fn $two(ctx: $context) -> $result {
            use profiler_common::bucket::{COUNTERS_2, MAGNITUDE_2};
            $body::<MAGNITUDE_2, COUNTERS_2>(&ctx);
            0
        }

        #[doc = concat!("[`", stringify!($body), "`] with 3 significant digits.")]
        #[$kind]
        pub fn $three(ctx: $context) -> $result {
            use profiler_common::bucket::{COUNTERS_3, MAGNITUDE_3};
            $body::<MAGNITUDE_3, COUNTERS_3>(&ctx);
            0
        }
    };
}

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
