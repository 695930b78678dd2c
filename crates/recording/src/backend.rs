//! How handlers were measured: by which backend, in what, on which clock.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one nanosecond of a duration is.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::EnumString,
    strum::VariantNames,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Clock {
    /// Time as it passes.
    #[default]
    Wall,
    /// A guest's clock that advances by one nanosecond an instruction.
    Virtual,
}

/// What the figures of handlers are.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::Display,
    strum::EnumString,
    strum::VariantNames,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Meter {
    /// Durations between probes at entry and exit, in nanoseconds of the recording's clock.
    #[default]
    Probes,
    /// Instructions of each call, counted by the emulator that the kernel runs in. There are no probes.
    Exact,
}

impl Meter {
    /// The unit of its figures, in full.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Probes => "nanoseconds",
            Self::Exact => "instructions",
        }
    }

    /// Whether probes time each call; otherwise instructions are counted.
    pub fn is_probes(&self) -> bool {
        *self == Self::Probes
    }
}

/// How a handler's calls were observed, in order of preference.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    strum::VariantArray,
    strum::VariantNames,
    strum::IntoStaticStr,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = no_such_backend)]
pub enum Backend {
    /// One BPF program on the trampoline, for entry and exit, with a cookie between the two.
    Fsession,
    /// A BPF fentry and fexit program a handler.
    Fentry,
    /// One BPF program on a function probe (fprobe), for entry and exit, with a cookie.
    KprobeSession,
    /// The kernel's function_graph tracer, read through tracefs.
    FunctionGraph,
    /// A BPF program on a kprobe and one on a kretprobe.
    Kprobe,
}

impl Backend {
    /// All of them, best first.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Its name on the command line and in files.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the kernel may hold a module while a probe of this backend is on a function of it. A kprobe's end comes with its
    /// module's (`kprobes_module_callback`), and so does ftrace's list of functions.
    pub fn holds_module(self) -> bool {
        !matches!(self, Self::FunctionGraph | Self::Kprobe)
    }
}

fn no_such_backend(_: &str) -> String {
    let names = <Backend as strum::VariantNames>::VARIANTS.join(", ");
    format!("there is no such backend: {names}")
}
