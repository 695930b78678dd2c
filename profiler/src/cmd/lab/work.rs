//! What is measured, and under which load: of the arguments, or of a load profile.

use crate::cli::LabArgs;
use crate::error::{Failure, exit};
use crate::load::BuiltinKind;
use crate::load_profile::{Builtin, Hook, Library};

/// Handlers and the loads that call them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Work {
    /// Names or globs.
    pub(super) handlers: Vec<String>,
    /// Loads that run side by side.
    pub(super) builtin: Vec<BuiltinKind>,
    /// Parameters without which the hook is not there.
    pub(super) module_params: String,
}

impl Work {
    /// The work that the arguments ask for.
    ///
    /// # Errors
    /// If the load profile cannot be found or read, or has no built-in load of its own.
    pub(super) fn of(args: &LabArgs) -> Result<Self, Failure> {
        let Some(name) = &args.profile else {
            return Ok(Self {
                handlers: args.handlers.clone(),
                builtin: args.builtin.clone(),
                module_params: String::new(),
            });
        };
        let library = Library::of_user(&args.profile_folders);
        let profile = library.find(name)?;
        let usage = |text: String| Err(Failure::new(exit::USAGE, text));
        let Some(Hook { handlers, parameter, builtin, .. }) = profile.hook() else {
            let parts: Vec<String> =
                library.parts(&profile)?.into_iter().map(|part| part.name).collect();
            return usage(format!(
                "the load profile {name} is made of parts, and the lab runs one at a time: name one of {}",
                parts.join(", ")
            ));
        };
        let Some(Builtin { kind, .. }) = builtin else {
            return usage(format!(
                "the load profile {name} has no built-in load, and the lab has no other: say which of \
                 its handlers to measure with --handler, and under which load with --builtin"
            ));
        };
        let handlers = if args.handlers.is_empty() {
            handlers.iter().map(|handler| handler.name.clone()).collect()
        } else {
            args.handlers.clone()
        };
        let module_params = parameter.as_ref().map_or(String::new(), |name| format!("{name}=1"));
        Ok(Self { handlers, builtin: vec![*kind], module_params })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn work(line: &str) -> Result<Work, Failure> {
        let line = format!("profiler lab -m d.ko {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().command {
            Command::Lab(args) => Work::of(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_load_profile_names_handlers_and_load() {
        let of_profile = work("--profile connect").unwrap();
        assert_eq!(of_profile.builtin, [BuiltinKind::Connect]);
        let handlers = ["connect_syscall_handler", "connect_syscall_entry_handler"];
        assert_eq!(of_profile.handlers, handlers);
        let one = work("--profile connect -H connect_syscall_handler").unwrap();
        assert_eq!(one.handlers, ["connect_syscall_handler"]);
    }

    #[test]
    fn a_profile_of_parts_is_refused_with_its_parts() {
        let failure = work("--profile elkeid").unwrap_err();
        assert_eq!(failure.code, exit::USAGE);
        assert!(failure.message.contains("name one of") && failure.message.contains("connect"));
        assert!(work("--profile no-such-profile").is_err());
    }
}
