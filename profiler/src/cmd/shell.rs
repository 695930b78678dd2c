//! `profiler completions` and `profiler man`, generated from the command line's definition.

use std::path::Path;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use super::to_stdout;
use crate::atomic_file::OutputFile;
use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::error::{Failure, exit};

/// Prints the completions for a shell.
///
/// # Errors
/// If standard output cannot be written.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "profiler", &mut bytes);
    to_stdout(&String::from_utf8_lossy(&bytes))
}

/// Prints a man page, or writes all of them to a folder.
///
/// # Errors
/// If there is no such subcommand, or the output cannot be written.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let pages = pages()?;
    if let Some(dir) = &args.dir {
        for (name, page) in &pages {
            let path = dir.join(Path::new(name).with_extension("1"));
            OutputFile::open(&path)?.commit(page)?;
        }
        return Ok(());
    }
    let wanted = match &args.command {
        Some(command) => format!("profiler-{command}"),
        None => "profiler".to_owned(),
    };
    match pages.iter().find(|(name, _)| *name == wanted) {
        Some((_, page)) => to_stdout(&String::from_utf8_lossy(page)),
        None => {
            let known: Vec<&str> =
                pages.iter().filter_map(|(name, _)| name.strip_prefix("profiler-")).collect();
            let message = format!("`{wanted}` has no man page: choose one of {}", known.join(", "));
            Err(Failure::new(exit::USAGE, message))
        }
    }
}

/// All pages with their names.
fn pages() -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, "profiler", &mut pages)?;
    Ok(pages)
}

fn collect(
    command: &Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    let mut page = Vec::new();
    Man::new(command.clone())
        .render(&mut page)
        .map_err(|error| Failure::new(exit::INTERNAL, format!("the page of {name}: {error}")))?;
    pages.push((name.to_owned(), page));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        collect(sub, &format!("{name}-{}", sub.get_name()), pages)?;
    }
    Ok(())
}
