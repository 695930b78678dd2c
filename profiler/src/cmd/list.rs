//! `profiler list`: the functions of a module, of the kernel image or of BPF programs, and whether each can be traced; the hooks
//! of a module's file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;

use profiler_base::error::{Failure, exit};
use profiler_base::progress::Progress;
use profiler_export::list::{self, BpfFunction};
use profiler_kernel::hooks::Hooks;
use profiler_kernel::target::KernelFiles;
use profiler_lab as lab;
use profiler_lab::agent::Agent;
use profiler_lab::subject::{Subject, agent_beside};
use profiler_probe::resolve_programs;
use profiler_run::args::AgentArgs;

use super::show;

const EXAMPLES: &str = "\
Examples:
  profiler list --module hids_driver '*_handler'
  # functions of the kernel itself, for a script
  profiler list --json 'tcp_v4_*'
  # what a driver registers when it is loaded: kprobes, tracepoints and other hooks; in a VM
  profiler list --module hids_driver.ko --kernel 6.1
  # where the BPF programs of an agent are attached
  profiler list --agent ./agent --kernel 6.1";

/// Arguments of `profiler list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Kernel module that holds the functions; without it those of the kernel image. Of a file ending in
    /// `.ko` the hooks are listed that it registers when it is loaded, in a VM; with --agent alone those of its BPF programs.
    #[arg(long, short)]
    pub module: Option<String>,
    /// Functions of the loaded BPF programs, as `profiler run --bpf-prog` names them.
    #[arg(long, conflicts_with_all = ["module", "kernel", "agent"])]
    pub bpf_prog: bool,
    /// Kernel to load the file on (repeatable) [default: the one that it was built for].
    #[arg(long, value_name = "VMLINUZ|FOLDER|VERSION")]
    pub kernel: Vec<String>,
    /// Parameters of the module, as insmod takes them.
    #[arg(long, value_name = "PARAMS", default_value = "", hide_default_value = true)]
    pub module_params: String,
    /// What uses the driver.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Names or globs; a name in the source also finds the compiler's variants of the function. Of hooks:
    /// of a handler or of the place.
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<glob::Pattern>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the functions that match.
///
/// # Errors
/// If the module is not loaded, a pattern matches nothing, or the output cannot be written.
pub fn run(args: &ListArgs) -> Result<(), Failure> {
    let file = args.module.as_ref().filter(|module| module.ends_with(".ko"));
    let agent = agent_beside(&args.agent, false)?;
    match (file, agent) {
        (Some(file), agent) => return hooks(args, Subject::Module(PathBuf::from(file)), agent),
        (None, Some(agent)) if args.module.is_none() => {
            return hooks(args, Subject::Command(agent), None);
        }
        _ => {}
    }
    if !args.kernel.is_empty() || !args.module_params.is_empty() || args.agent.agent.is_some() {
        let text = "--kernel, --module-params and --agent are for a driver that is loaded in a VM: name its .ko file with --module";
        return Err(Failure::new(exit::USAGE, text));
    }
    let patterns: Vec<String> = args.patterns.iter().map(ToString::to_string).collect();
    if args.bpf_prog {
        return programs(args, &patterns);
    }
    super::restore_tracefs();
    let functions = KernelFiles::default().functions(args.module.as_deref(), &patterns)?;
    show(args.json, &functions, |width| list::functions(&functions).text(width))
}

/// Prints the functions of BPF programs.
fn programs(args: &ListArgs, patterns: &[String]) -> Result<(), Failure> {
    let all = ["*".to_owned()];
    let patterns = if patterns.is_empty() { &all[..] } else { patterns };
    let found = resolve_programs(patterns)?.targets;
    let functions: Vec<BpfFunction> = found.iter().map(BpfFunction::of).collect();
    show(args.json, &functions, |width| list::programs(&functions).text(width))
}

/// Prints what a subject registers, with the agent that a driver needs.
fn hooks(args: &ListArgs, subject: Subject, agent: Option<Agent>) -> Result<(), Failure> {
    subject.check_parameters(&args.module_params)?;
    let mut progress = Progress::new(false);
    let params = &args.module_params;
    let mut found = lab::hooks::of_subject(subject, &args.kernel, params, agent, &mut progress)?;
    for (_, hooks) in &mut found {
        let patterns = &args.patterns;
        hooks.list.retain(|hook| patterns.is_empty() || patterns.iter().any(|it| hook.matches(it)));
    }
    let by_release: BTreeMap<&String, &Hooks> =
        found.iter().map(|(release, hooks)| (release, hooks)).collect();
    show(args.json, &by_release, |width| {
        let texts = found
            .iter()
            .map(|(release, hooks)| format!("Linux {release}\n{}", list::hooks(hooks).text(width)));
        texts.collect::<Vec<_>>().join("\n")
    })
}
