//! The rule that a gate judges by.

use crate::cli::gate::GateArgs;
use crate::error::{Failure, exit};
use crate::verdict::Rule;

/// The rule of the file, overridden by the command line.
pub(super) fn rule(args: &GateArgs) -> Result<Rule, Failure> {
    let mut rule = match &args.config {
        Some(path) => {
            Rule::read(path).map_err(|error| Failure::new(exit::BAD_INPUT, error.to_string()))?
        }
        None => Rule::default(),
    };
    if let Some(limits) = &args.max_regression {
        rule.limits = Some(limits.clone());
    }
    if let Some(share) = args.max_loss {
        rule.max_loss = share;
    }
    if let Some(floor) = args.floor {
        rule.floor = Some(floor);
    }
    if let Some(alpha) = args.alpha {
        rule.alpha = alpha;
    }
    rule.allow_vanished |= args.allow_vanished;
    rule.accept_new.extend(args.accept_new.iter().cloned());
    rule.require_reached |= args.require_reached;
    rule.budgets.extend(args.budget.iter().cloned());
    Ok(rule)
}
