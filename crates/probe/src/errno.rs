//! What the system said, in words: also the number that the kernel keeps to itself.

use std::io;

use super::ProbeError;

/// Of `include/linux/errno.h`: not meant for user space, and no C library has words for it.
pub(super) const ENOTSUPP: i32 = 524;

/// An error of the system as a user reads it.
pub(super) fn in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP) => "the kernel does not support this here (ENOTSUPP)".to_owned(),
        _ => error.to_string(),
    }
}

/// Says what was tried where a call failed that belongs to no single handler.
pub(super) trait Doing<T> {
    fn doing(self, doing: &str) -> Result<T, ProbeError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: &str) -> Result<T, ProbeError> {
        self.map_err(|error| ProbeError::Other(format!("{doing}: {}", in_words(&error))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_the_kernels_own_has_words() {
        let words = |number| in_words(&io::Error::from_raw_os_error(number));
        assert_eq!(words(524), "the kernel does not support this here (ENOTSUPP)");
        assert!(words(22).contains("Invalid argument"), "{}", words(22));
    }
}
