//! Functions as the kernel lists them, with what is known of each.

use profiler_base::error::Failure;

use super::{KernelFiles, Target, glob, is_glob, no_match};

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
    ) -> Result<Vec<Target>, Failure> {
        let scope = self.scope(module, None)?;
        let globs = patterns.iter().map(|pattern| glob(pattern)).collect::<Result<Vec<_>, _>>()?;
        let mut matched = vec![false; globs.len()];
        let mut functions: Vec<Target> = Vec::new();
        for (name, addresses) in &scope.symbols {
            let source_name = name.split('.').next().unwrap_or(name);
            let mut wanted = globs.is_empty();
            for (glob, matched) in globs.iter().zip(&mut matched) {
                if glob.matches(name) || glob.matches(source_name) {
                    (wanted, *matched) = (true, true);
                }
            }
            if wanted {
                functions.extend((0..addresses.len()).map(|at| {
                    let traceable = scope.known_traceable(name);
                    Target { traceable, ..scope.target(name, addresses, at) }
                }));
            }
        }
        scope.find_namesakes(functions.iter_mut().collect());
        match patterns.iter().zip(matched).find(|(_, matched)| !matched) {
            Some((pattern, _)) if is_glob(pattern) => {
                Err(no_match(pattern, scope.module.as_deref(), 0))
            }
            Some((name, _)) => Err(scope.no_such_handler(name)),
            None => Ok(functions),
        }
    }
}
