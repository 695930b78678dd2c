//! What the system said, in words: also the numbers that the kernel keeps to itself.

use std::io;

use super::ProbeError;

/// Numbers of `include/linux/errno.h`, which are not meant for user space and get there all the same:
/// no C library has words for them.
const OF_THE_KERNEL: [(i32, &str, &str); 19] = [
    (512, "ERESTARTSYS", "interrupted by a signal"),
    (513, "ERESTARTNOINTR", "interrupted by a signal"),
    (514, "ERESTARTNOHAND", "interrupted by a signal"),
    (515, "ENOIOCTLCMD", "no such ioctl command"),
    (516, "ERESTART_RESTARTBLOCK", "interrupted by a signal"),
    (517, "EPROBE_DEFER", "a driver asks to try again later"),
    (518, "EOPENSTALE", "a stale directory entry"),
    (519, "ENOPARAM", "the parameter is not supported"),
    (521, "EBADHANDLE", "an illegal file handle"),
    (522, "ENOTSYNC", "an update out of step"),
    (523, "EBADCOOKIE", "a stale cookie"),
    (524, "ENOTSUPP", "the kernel does not support this here"),
    (525, "ETOOSMALL", "a buffer or request is too small"),
    (526, "ESERVERFAULT", "an error without a translation"),
    (527, "EBADTYPE", "a type that is not supported"),
    (528, "EJUKEBOX", "begun, and not done in time"),
    (529, "EIOCBQUEUED", "queued"),
    (530, "ERECALLCONFLICT", "conflicts with a recalled state"),
    (531, "ENOGRACE", "no grace period"),
];

/// `ENOTSUPP`
pub(super) const ENOTSUPP: i32 = 524;

/// An error of the system as a user reads it.
pub(super) fn in_words(error: &io::Error) -> String {
    let known = error.raw_os_error().and_then(|number| {
        OF_THE_KERNEL.iter().find(|(of_the_kernel, ..)| *of_the_kernel == number)
    });
    match known {
        Some((number, name, words)) => format!("{words} ({name}, error {number} of the kernel)"),
        None => error.to_string(),
    }
}

/// Says what was tried where a call failed that belongs to no single handler.
pub(super) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, ProbeError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, ProbeError> {
        self.map_err(|error| ProbeError::System { doing, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_the_kernels_own_have_words() {
        let words = |number| in_words(&io::Error::from_raw_os_error(number));
        assert_eq!(
            words(524),
            "the kernel does not support this here (ENOTSUPP, error 524 of the kernel)"
        );
        for number in (512..=531).filter(|number| *number != 520) {
            assert!(!words(number).contains("Unknown"), "{}", words(number));
        }
        assert!(words(22).contains("Invalid argument"), "{}", words(22));
    }
}
