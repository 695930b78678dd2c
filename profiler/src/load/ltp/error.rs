//! Why LTP's tests cannot be run.

/// How to get LTP.
pub(super) const INSTALL: &str = "install LTP (https://github.com/linux-test-project/ltp: `make autotools && ./configure && \
     make && make install` puts it there), name its folder with --ltp-root or LTPROOT, or \
     use the built-in load with --builtin";

/// Why the tests cannot be run as asked, found before anything is measured. Each text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LtpError {
    /// LTP, or a list of its, is missing or damaged.
    #[error("{0}")]
    BadLtp(String),
    /// The choice of tests or user cannot be met.
    #[error("{0}")]
    BadChoice(String),
}

/// The name most like `wanted`, as a question.
pub(super) fn did_you_mean(
    names: impl Iterator<Item = String>,
    wanted: &str,
    option: &str,
) -> String {
    let likeness = |name: &String| strsim::jaro_winkler(name, wanted);
    let near = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    near.map_or_else(String::new, |near| format!(": did you mean {option}{near}?"))
}
