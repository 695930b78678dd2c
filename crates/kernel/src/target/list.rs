//! Functions as the kernel lists them, with what is known of each.

use serde::Serialize;

use super::{KernelFiles, Scope, Target, glob, is_glob, no_match, unprobeable};
use profiler_base::error::Failure;

/// A function as the kernel lists it, whether it can be probed or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// As it would be measured.
    #[serde(flatten)]
    pub target: Target,
    /// Whether ftrace can trace it; `None` where tracefs cannot be read.
    pub traceable: Option<bool>,
    /// Whether BTF describes it, as fentry needs.
    pub btf: bool,
    /// The compiler's suffix, such as `isra`, `constprop`, `part` or `cold`.
    pub variant: Option<String>,
    /// Number of functions of this name in the same module.
    pub same_name: usize,
    /// The other symbol of this name to which a program attached by BTF would attach instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_for: Option<String>,
}

impl Function {
    /// Why it cannot be probed; `None` if it can.
    pub fn obstacle(&self) -> Option<&'static str> {
        unprobeable(&self.target.name, self.traceable)
    }
}

impl KernelFiles {
    /// Functions whose name, with or without the compiler's suffix, one of the patterns matches:
    /// all without a pattern. Sorted by name and address. Without BTF or tracefs the fields that they
    /// fill are `None`.
    ///
    /// # Errors
    /// When the module is not loaded, the symbols cannot be read, or a pattern is no glob or
    /// matches nothing.
    pub fn functions(
        &self,
        module: Option<&str>,
        patterns: &[String],
    ) -> Result<Vec<Function>, Failure> {
        let scope = self.scope(module, None)?;
        let globs = patterns.iter().map(|pattern| glob(pattern)).collect::<Result<Vec<_>, _>>()?;
        let mut matched = vec![false; globs.len()];
        let mut functions: Vec<Function> = Vec::new();
        for (name, addresses) in &scope.symbols {
            let (source_name, _) = parts_of(name);
            let mut wanted = globs.is_empty();
            for (glob, matched) in globs.iter().zip(&mut matched) {
                if glob.matches(name) || glob.matches(source_name) {
                    (wanted, *matched) = (true, true);
                }
            }
            if wanted {
                functions.extend(scope.functions_named(name, addresses));
            }
        }
        scope.find_namesakes(functions.iter_mut().map(|function| &mut function.target).collect());
        for function in &mut functions {
            function.taken_for = function.target.taken_for().map(str::to_owned);
        }
        match patterns.iter().zip(matched).find(|(_, matched)| !matched) {
            Some((pattern, _)) if is_glob(pattern) => {
                Err(no_match(pattern, scope.module.as_deref(), 0))
            }
            Some((name, _)) => Err(scope.no_such_handler(name)),
            None => Ok(functions),
        }
    }
}

/// The name in the source, and the compiler's suffixes.
pub(super) fn parts_of(name: &str) -> (&str, Option<&str>) {
    match name.split_once('.') {
        Some((source_name, suffix)) if !source_name.is_empty() => (source_name, Some(suffix)),
        _ => (name, None),
    }
}

impl Scope<'_> {
    /// All functions of one name.
    fn functions_named(&self, name: &str, addresses: &[u64]) -> impl Iterator<Item = Function> {
        (0..addresses.len()).map(move |at| {
            let target = self.target(name, addresses, at);
            Function {
                traceable: self.known_traceable(name),
                btf: !self.ids(name).is_empty(),
                variant: target.variant(),
                same_name: self.count(name, addresses),
                taken_for: None,
                target,
            }
        })
    }
}

/// `isra.0.cold` and the like: the kinds, without the compiler's numbers.
pub(super) fn variant(suffix: &str) -> String {
    let kinds: Vec<&str> = suffix
        .split('.')
        .filter(|part| !part.is_empty() && !part.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    if kinds.is_empty() { suffix.to_owned() } else { kinds.join(".") }
}
