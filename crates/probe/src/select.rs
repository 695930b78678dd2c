//! Which backend measures which handler, and why not a better one.
//!
//! A backend is used if this kernel takes its programs, which is tried and never guessed from a
//! version number, and if it can reach the function.

use std::{collections::BTreeMap, fmt, path::Path};

use profiler_kernel::{
    btf::{BTF_FOLDER, Btf},
    target::Target,
};
use profiler_recording::Backend;

use super::{Options, feature};

/// The backend that will measure a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The backend; `None` if none can.
    pub backend: Option<Backend>,
    /// Why no better one: in order of preference.
    pub obstacles: Vec<Obstacle>,
}

/// Why a backend cannot measure a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    pub backend: Backend,
    /// The reason, with the remedy if there is one.
    pub reason: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

/// What this kernel can do: each backend is tried once, when first asked for.
#[derive(Default)]
pub struct Features {
    tried: BTreeMap<Backend, Option<String>>,
}

impl Features {
    /// Why the kernel does not take a backend's programs.
    pub fn refusal(&mut self, backend: Backend) -> Option<String> {
        let tried = self.tried.entry(backend).or_insert_with(|| {
            let functions = Btf::of(None, Path::new(BTF_FOLDER)).ok();
            feature::try_backend(backend, functions.as_deref()).err().map(|refusal| refusal.what)
        });
        tried.clone()
    }
}

/// The best backend for a function, and why none of those before it, as `options` have it; `refusal` is why the kernel
/// takes no programs of a backend.
pub fn select(
    target: &Target,
    options: Options,
    mut refusal: impl FnMut(Backend) -> Option<String>,
) -> Choice {
    let mut obstacles = Vec::new();
    for &backend in
        Backend::ALL.iter().filter(|&&backend| comes_into_question(target, backend, options))
    {
        match refusal(backend).or_else(|| obstacle(target, backend, options)) {
            None => return Choice { backend: Some(backend), obstacles },
            Some(reason) => obstacles.push(Obstacle { backend, reason }),
        }
    }
    Choice { backend: None, obstacles }
}

/// Whether a backend is the one wanted, or without one, whether it may reach a function of this kind.
pub(super) fn comes_into_question(target: &Target, backend: Backend, options: Options) -> bool {
    let may_reach = needs_btf(backend) || target.program.is_none();
    options.backend.map_or(may_reach, |wanted| wanted == backend)
}

/// Why a backend cannot measure a function on a kernel that takes its programs.
pub(super) fn obstacle(target: &Target, backend: Backend, options: Options) -> Option<String> {
    match backend {
        Backend::Fsession | Backend::Fentry => btf_obstacle(target),
        _ if target.program.is_some() => Some(PROGRAM.to_owned()),
        Backend::KprobeSession => address_obstacle(target),
        Backend::FunctionGraph => None,
        Backend::Kprobe if options.force => None,
        Backend::Kprobe => inside_kprobe(target),
    }
}

/// Why a kprobe would count nothing there, judged by the function's first argument: a handler of a kprobe or kretprobe is
/// called while that is being handled, and then the kernel skips every other kprobe on the CPU (`kprobe_running()`;
/// Documentation/trace/kprobes.rst). What such a handler calls in turn does not show this way: there `Probes::drain` ends
/// the run.
fn inside_kprobe(target: &Target) -> Option<String> {
    if target.btf_id.is_none() {
        // Functions of the kernel are no handlers of kprobes.
        return target.module.is_some().then(|| {
            "without BTF nothing tells whether it runs inside a kprobe, where the kernel skips every other \
             one: use function-graph (--force measures it all the same)"
                .to_owned()
        });
    }
    let argument = target.argument.as_deref();
    let kind = argument.filter(|name| ["kprobe", "kretprobe_instance"].contains(name))?;
    Some(format!(
        "it takes a `struct {kind} *`, so it runs inside a kprobe, where the kernel skips every other kprobe: \
         this one would count nothing; use {} (--force measures it all the same)",
        if btf_obstacle(target).is_none() { "fentry" } else { "function-graph" }
    ))
}

/// Whether a backend names a function by its id in BTF.
pub fn needs_btf(backend: Backend) -> bool {
    matches!(backend, Backend::Fsession | Backend::Fentry)
}

/// Why a backend that names a function by its id in BTF cannot measure it; `None` if it can.
fn btf_obstacle(target: &Target) -> Option<String> {
    if target.program.is_some() {
        return target.btf_id.is_none().then(|| NO_PROGRAM_BTF.to_owned());
    }
    if let Some(variant) = target.variant()
        && target.btf_id.is_none()
        && target.has_btf
    {
        return Some(format!(
            "a .{variant} variant made by the compiler, which BTF does not describe: mark \
             {} `noinline __used`, or build it with -fno-ipa-sra -fno-ipa-cp",
            target.source_name()
        ));
    }
    if target.duplicate_index.is_some() {
        return Some(SAME_NAME.to_owned());
    }
    match &target.module {
        _ if target.btf_id.is_some() => target.taken_for.as_deref().map(by_name_alone),
        Some(module) if !target.has_btf => Some(no_module_btf(module)),
        _ => Some(UNDESCRIBED.to_owned()),
    }
}

/// Why a backend that takes its address, or else its name, cannot measure it; `None` if it can.
fn address_obstacle(target: &Target) -> Option<String> {
    let other = match &target.namesake {
        _ if target.duplicate_index.is_some() => "another function",
        namesake => namesake.as_deref()?,
    };
    (target.address == 0).then(|| {
        format!(
            "its address is hidden, and {other} has this name, too: sysctl kernel.kptr_restrict=1"
        )
    })
}

const SAME_NAME: &str = "several functions have this name, and BTF cannot tell them apart";

const UNDESCRIBED: &str = "BTF does not describe it: pahole leaves out functions whose arguments the compiler \
                           changed, and those written in assembly; mark it `noinline __used` and rebuild";

const PROGRAM: &str =
    "it is a BPF program, which only programs on the trampoline reach (fsession, fentry)";

const NO_PROGRAM_BTF: &str = "the BPF program was loaded without BTF: compile it with `clang -g`, and load it by a \
                              library that hands its BTF to the kernel, such as libbpf";

/// Why BTF does not lead to a function whose name `namesake` has, too.
fn by_name_alone(namesake: &str) -> String {
    format!(
        "{namesake} has this name, too, and this kernel would attach to that: before Linux 6.4 it looks \
         for the name alone"
    )
}

fn no_module_btf(module: &str) -> String {
    format!(
        "module `{module}` has no BTF: add it with `profiler prepare {module}.ko`, or in the \
         file itself with `LLVM_OBJCOPY=objcopy pahole -J --btf_base /sys/kernel/btf/vmlinux \
         {module}.ko`, and load the module anew (a kernel without CONFIG_DEBUG_INFO_BTF_MODULES, \
         before 5.11, cannot use it)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Target {
        profiler_tests::function(name)
    }

    /// On a kernel that takes programs of these alone.
    fn on(takes: &[Backend], target: &Target, force: bool) -> Choice {
        let refusal = |backend| (!takes.contains(&backend)).then(|| "refused".to_owned());
        select(target, Options { force, ..Options::default() }, refusal)
    }

    /// Why the last backend is refused on one that takes programs of these alone, and no other takes the function.
    fn refused_on(takes: &[Backend], target: &Target) -> String {
        let mut choice = on(takes, target, false);
        assert_eq!(choice.backend, None);
        choice.obstacles.remove(choice.obstacles.len() - 1).reason
    }

    #[test]
    fn the_best_that_the_kernel_takes_and_that_reaches_the_function() {
        let plain = function("f");
        assert_eq!(on(Backend::ALL, &plain, false).backend, Some(Backend::Fsession));
        let choice = on(&Backend::ALL[3..], &plain, false);
        assert_eq!(choice.backend, Some(Backend::FunctionGraph));
        let refused: Vec<Backend> = choice.obstacles.iter().map(|found| found.backend).collect();
        assert_eq!(refused, Backend::ALL[..3]);
        assert_eq!(refused_on(&[], &plain), "refused");
        let described = on(Backend::ALL, &function("split.isra.0"), false);
        assert_eq!(described.backend, Some(Backend::Fsession));
    }

    #[test]
    fn what_btf_does_not_lead_to_gets_the_next_backend_and_the_reason() {
        let undescribed = Target { btf_id: None, argument: None, ..function("asm") };
        let variant = Target { name: "split.isra.0".to_owned(), ..undescribed.clone() };
        let twice = Target { duplicate_index: Some(2), ..function("twice") };
        let taken_for = Some("a function of `other`".to_owned());
        let taken = Target { taken_for, ..function("taken") };
        let without = Target { has_btf: false, ..variant.clone() };
        for (target, why) in [
            (undescribed, "mark it `noinline __used` and rebuild"),
            (variant, "mark split `noinline __used`, or build it with -fno-ipa-sra"),
            (without, "module `driver` has no BTF"),
            (twice, "several functions have this name"),
            (
                taken,
                "a function of `other` has this name, too, and this kernel would attach to that",
            ),
        ] {
            let choice = on(Backend::ALL, &target, false);
            assert_eq!(choice.backend, Some(Backend::KprobeSession), "{}", target.name);
            for obstacle in &choice.obstacles {
                assert!(obstacle.reason.contains(why), "{obstacle}");
            }
        }
    }

    #[test]
    fn a_kprobe_is_refused_where_it_would_count_nothing_unless_forced() {
        let kprobe = [Backend::Kprobe];
        let handler = Target { argument: Some("kprobe".to_owned()), ..function("pre") };
        let unknown = Target { btf_id: None, argument: None, ..function("unknown") };
        assert_eq!(on(&kprobe, &function("f"), false).backend, Some(Backend::Kprobe));
        let refused = refused_on(&kprobe, &handler);
        assert!(
            refused.contains("it takes a `struct kprobe *`") && refused.contains("use fentry"),
            "{refused}"
        );
        let refused = refused_on(&kprobe, &unknown);
        assert!(
            refused.contains("without BTF nothing tells") && refused.contains("use function-graph"),
            "{refused}"
        );
        assert_eq!(on(&kprobe, &handler, true).backend, Some(Backend::Kprobe));
        let of_the_kernel = Target { module: None, ..unknown };
        assert_eq!(on(&kprobe, &of_the_kernel, false).backend, Some(Backend::Kprobe));
    }

    #[test]
    fn a_bpf_program_is_reached_by_its_btf_alone() {
        let program = Target { program: Some(7), btf_id: Some(2), ..Target::default() };
        let without = Target { btf_id: None, ..program.clone() };
        let select = |target: &Target, backend| {
            let options = Options { backend, force: true, ..Options::default() };
            super::select(target, options, |_| None)
        };
        assert_eq!(select(&program, None).backend, Some(Backend::Fsession));
        let Choice { backend, obstacles } = select(&without, None);
        assert_eq!(backend, None);
        let tried: Vec<Backend> = obstacles.iter().map(|found| found.backend).collect();
        assert_eq!(tried, [Backend::Fsession, Backend::Fentry]);
        assert!(obstacles[0].reason.contains("loaded without BTF"), "{obstacles:?}");
        let refused = select(&program, Some(Backend::Kprobe)).obstacles;
        assert!(refused[0].reason.starts_with("it is a BPF program"), "{refused:?}");
    }
}
