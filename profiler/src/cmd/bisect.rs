//! `profiler bisect`: the first commit of a driver that made a handler slower.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use clap::Args;

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_export::cell::clean;
use profiler_load::dying_with_parent;
use profiler_run::args::{AgentArgs, GuestArgs};
use profiler_verdict::Limits;

use super::to_stdout;

const EXAMPLES: &str = "\
Exit codes: 0 one commit was found, 11 it lies among commits that cannot be measured, or the bad revision is not slower.

Examples:
  # which commit made connect slower
  profiler bisect --good v1.2 --bad HEAD --build 'make -C driver' --handler 'connect_*'
  # after a stop, the same command goes on; this forgets what an earlier one has found
  profiler bisect --good v1.2 --bad HEAD --build 'make -C driver' --handler 'connect_*' --start-over";

/// Arguments of `profiler bisect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BisectArgs {
    /// A revision of the driver that is fast enough.
    #[arg(long, value_name = "REV")]
    pub good: String,
    /// A later revision that is slower.
    #[arg(long, value_name = "REV")]
    pub bad: String,
    /// Command for sh that builds the module, in the root of a checkout with nothing but a revision in it.
    #[arg(long, value_name = "COMMAND")]
    pub build: String,
    /// The module's file in the checkout [default: the only .ko that the build makes].
    #[arg(long, value_name = "FILE")]
    pub module: Option<PathBuf>,
    /// A folder of the driver's git repository.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub repository: PathBuf,
    /// Forget what an earlier bisection of this repository has found.
    #[arg(long)]
    pub start_over: bool,
    /// Handler to judge, by name or glob (repeatable) [default: as for `profiler gate`].
    #[arg(long = "handler", short = 'H', value_name = "NAME|GLOB")]
    pub handlers: Vec<glob::Pattern>,
    /// How much slower makes a revision bad, as for `profiler gate`, such as 'avg=1%' or 'tp50=+5'.
    #[arg(long, value_name = "LIMITS", value_parser = limits)]
    pub max_regression: Option<String>,
    /// Kernel to boot, as for `profiler lab` [default: the version that the driver was built for].
    #[arg(long, value_name = "FILE|FOLDER|VERSION")]
    pub kernel: Option<String>,
    /// Further parameters of the driver, as insmod takes them.
    #[arg(long, value_name = "NAME=VALUE ...", default_value = "")]
    pub module_params: String,
    /// What runs in the guests beside that, and what is kept and said of them.
    #[command(flatten)]
    pub guests: GuestArgs,
}

/// The text of limits, for the gate.
fn limits(text: &str) -> Result<String, String> {
    text.parse::<Limits>().map(|_| text.to_owned())
}

/// `git bisect run`, with what surrounds it.
const SCRIPT: &str = include_str!("bisect/bisect.sh");
/// Builds and judges what is checked out.
const STEP: &str = include_str!("bisect/step.sh");

/// See the [command line](BisectArgs).
///
/// # Errors
/// If the revisions cannot be built and measured, or no single commit is found.
pub fn run(args: &BisectArgs) -> Result<(), Failure> {
    let steps = Progress::new(args.guests.quiet);
    run_script(script(args, &gate(args)), &mut |line| steps.say(&clean(line)), to_stdout)
}

fn script(args: &BisectArgs, gate: &[OsString]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "sh", STEP]).arg(&args.repository);
    command.args([&args.good, &args.bad, &args.build]);
    command.arg(args.module.as_deref().unwrap_or("".as_ref()));
    command.args([args.start_over.to_string(), std::process::id().to_string()]).args(gate);
    dying_with_parent(&mut command);
    command
}

/// Passes on the script's lines of progress; `error: ` begins its failure. The script deletes its state once its result is printed.
fn run_script(
    mut command: Command,
    say: &mut dyn FnMut(&str),
    print: impl FnOnce(&str) -> Result<(), Failure> + Send,
) -> Result<(), Failure> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot_run)?;
    let (word, result, steps) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut failure: Vec<String> = Vec::new();
    let printed = thread::scope(|scope| {
        let printed = scope.spawn(|| print_result(result, word, print));
        for line in steps.map(BufReader::new).into_iter().flat_map(|steps| steps.split(b'\n')) {
            let line = line.map_err(cannot_run)?;
            let line = String::from_utf8_lossy(&line);
            match line.strip_prefix("error: ") {
                Some(text) => failure = vec![text.to_owned()],
                None if failure.is_empty() => say(&line),
                None => failure.push(line.into_owned()),
            }
        }
        printed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let status = child.wait().map_err(cannot_run)?;
    printed?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let message = match failure.join("\n") {
        empty if empty.is_empty() => format!("the script of bisect failed: {status}"),
        text => text,
    };
    match code {
        Some(exit::OK) => Ok(()),
        code => Err(Failure::new(code.unwrap_or(exit::CANNOT_MEASURE), message)),
    }
}

fn cannot_run(error: io::Error) -> Failure {
    Failure::new(exit::CANNOT_MEASURE, format!("cannot run the script of bisect: {error}"))
}

/// Prints the script's standard output, if there is any, and tells it so.
fn print_result(
    result: Option<impl Read>,
    word: Option<impl Write>,
    print: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (Some(mut result), Some(mut word)) = (result, word) else { return Ok(()) };
    let mut text = Vec::new();
    // After a read error the result is incomplete, so the script keeps its state.
    if result.read_to_end(&mut text).is_err() || text.is_empty() {
        return Ok(());
    }
    print(&String::from_utf8_lossy(&text))?;
    // One that was killed keeps its result.
    let _ = word.write_all(b"printed\n");
    Ok(())
}

/// The gate of two builds, without these.
fn gate(args: &BisectArgs) -> Vec<OsString> {
    // This program, even if its file has been replaced: a shell starts it.
    let program = format!("/proc/{}/exe", std::process::id());
    let params = format!("--module-params={}", args.module_params);
    let mut words: Vec<OsString> = [&program, "gate", "--quiet", &params].map(Into::into).into();
    words.extend(args.handlers.iter().map(|glob| format!("--handler={glob}").into()));
    words.extend(args.max_regression.iter().map(|text| format!("--max-regression={text}").into()));
    words.extend(args.kernel.iter().map(|kernel| format!("--kernel={kernel}").into()));
    let GuestArgs { agent: AgentArgs { agent, agent_file }, logs, .. } = &args.guests;
    words.extend(agent.iter().map(|command| format!("--agent={command}").into()));
    words.extend(agent_file.iter().flat_map(|file| ["--agent-file".into(), file.into()]));
    words.extend(logs.iter().flat_map(|folder| ["--logs".into(), folder.into()]));
    words
}

#[cfg(test)]
mod tests;
