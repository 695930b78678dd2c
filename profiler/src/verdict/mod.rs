//! What changed between a baseline and a candidate, and whether it may be: pure functions of
//! profiles.
//!
//! [`Sides`] are runs that may be compared, [`changes`] are what [`Sides`] differ in, and [`gate()`]
//! judges these by a [`Rule`].

mod budget;
mod change;
mod design;
mod gate;
mod judge;
mod quantity;
mod report;
mod rule;
mod rule_file;
mod sides;
mod statistic;

pub use budget::{Budget, BudgetError};
pub use change::{ChangeRecord, changes};
pub use design::{Design, DesignKind};
pub use gate::gate;
pub use quantity::{QuantityError, parse_ns, parse_share};
pub use report::{
    COMPARE_SCHEMA, CompareReport, GATE_SCHEMA, GateReport, Line, Outcome, PartRecord,
    REPORT_VERSION, SideRecord, Verdict,
};
pub use rule::{HandlerRule, Limit, Limits, LimitsError, Rule};
pub use rule_file::RuleFileError;
pub use sides::{Part, Refusal, Run, Sides, Unfit, Unlike};
pub use statistic::{Observed, Statistic};

/// Quantities in words.
pub(crate) mod words {
    pub(crate) use super::judge::ns;
}
