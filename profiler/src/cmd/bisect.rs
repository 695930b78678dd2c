//! `profiler bisect`: the first commit of a driver that made a handler slower.

use std::ffi::OsString;

use super::to_stdout;
use crate::bisect::{self, Options};
use crate::cli::AgentArgs;
use crate::cli::bisect::BisectArgs;
use crate::error::{Failure, exit};
use crate::export::cell::clean;
use crate::progress::Progress;

/// See the [command line](BisectArgs).
///
/// # Errors
/// If the revisions cannot be built and measured, or no single commit is found.
pub fn run(args: &BisectArgs) -> Result<(), Failure> {
    let options = Options {
        repository: args.repository.clone(),
        good: args.good.clone(),
        bad: args.bad.clone(),
        build: args.build.clone(),
        module: args.module.clone(),
        start_over: args.start_over,
        gate: gate(args),
    };
    let steps = Progress::new(args.quiet);
    let found = bisect::run(&options, &mut |line| steps.say(&clean(line)))?;
    to_stdout(&found.text())?;
    match found.first.len() {
        1 => Ok(()),
        several => {
            let text =
                format!("the first slower commit is one of {several}: not all can be measured");
            Err(Failure::new(exit::INCONCLUSIVE, text))
        }
    }
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
    let AgentArgs { agent, agent_file } = &args.agent;
    words.extend(agent.iter().map(|command| format!("--agent={command}").into()));
    words.extend(agent_file.iter().flat_map(|file| ["--agent-file".into(), file.into()]));
    words.extend(args.logs.iter().flat_map(|folder| ["--logs".into(), folder.into()]));
    words
}
