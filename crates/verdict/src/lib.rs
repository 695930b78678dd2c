//! What changed between a baseline and a candidate, and whether that is allowed: pure functions from
//! recordings to decisions, with a sentence on each.
//!
//! [`Sides`] are comparable runs, [`changes`] are their differences, and [`gate()`] judges these by a
//! [`Rule`].

mod budget;
mod change;
mod design;
mod finding;
mod gate;
mod hooks;
mod judge;
mod placement;
mod quantity;
mod rule;
mod sides;
mod statistic;
mod words;

pub use budget::Budget;
pub use change::{CONFIDENCE, changes, load_of, operation_of};
pub use design::{Design, DesignKind};
pub use finding::subject;
pub use finding::{Calls, ChangeRecord, Gate, Line, Outcome, Verdict};
pub use gate::{gate, open_parts};
pub use hooks::{HookReport, called};
pub use placement::{FIRST_PLACEMENTS, MOST_PLACEMENTS};
pub use quantity::{Amount, parse_share};
pub use rule::{HandlerRule, Limit, Limits, Measured, Rule};
pub use sides::{Part, Run, Side, Sides};
pub use statistic::{ITERATIONS_AN_INSTRUCTION, Observed, Statistic};
pub use words::{FEWER, design, figure, signed};
