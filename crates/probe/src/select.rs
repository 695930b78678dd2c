//! Which backend measures which handler, and why not a better one.
//!
//! A backend is used if this kernel takes its programs, which is tried and never guessed from a
//! version number, and if it can reach the function.

use std::{cell::OnceCell, collections::BTreeMap, fmt, path::Path, sync::Arc};

use super::{Options, feature};
use profiler_kernel::{
    btf::{BTF_FOLDER, Btf},
    target::{Function, Target},
};
use profiler_recording::Backend;

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
    /// The backend.
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
    functions: OnceCell<Option<Arc<Btf>>>,
    tried: BTreeMap<Backend, Option<String>>,
}

impl Features {
    /// Why the kernel does not take a backend's programs.
    pub fn refusal(&mut self, backend: Backend) -> Option<String> {
        let functions = self.functions.get_or_init(|| Btf::of(None, Path::new(BTF_FOLDER)).ok());
        let tried = self.tried.entry(backend).or_insert_with(|| {
            feature::try_backend(backend, functions.as_deref()).err().map(|refusal| refusal.what)
        });
        tried.clone()
    }
}

/// What decides which backends can measure a function.
pub trait Subject {
    /// Why a backend that names it by its id in BTF cannot measure it; `None` if it can.
    fn btf_obstacle(&self) -> Option<String>;

    /// Why a backend that takes its address, or else its name, cannot measure it; `None` if it can.
    fn address_obstacle(&self) -> Option<String> {
        None
    }

    /// Its prototype in C, from BTF.
    fn prototype(&self) -> Option<String>;

    /// Whether a module holds it: functions of the kernel are no handlers of kprobes.
    fn is_of_module(&self) -> bool;

    /// Whether a BPF program holds it.
    fn is_of_program(&self) -> bool {
        false
    }
}

/// The best backend for a function among those behind the last one of `obstacles`, and why none of those before
/// it, as `options` have it; `refusal` is why the kernel takes no programs of a backend.
pub fn select(
    subject: &impl Subject,
    options: Options,
    mut refusal: impl FnMut(Backend) -> Option<String>,
    mut obstacles: Vec<Obstacle>,
) -> Choice {
    let tried = obstacles.last().map(|obstacle| obstacle.backend);
    for backend in Backend::ALL.iter().copied().filter(|&backend| Some(backend) > tried) {
        let is_beside = subject.is_of_program() && !needs_btf(backend);
        if options.backend.map_or(is_beside, |wanted| wanted != backend) {
            continue;
        }
        let found = refusal(backend).or_else(|| match backend {
            Backend::Fsession | Backend::Fentry => subject.btf_obstacle(),
            _ if subject.is_of_program() => Some(PROGRAM.to_owned()),
            Backend::KprobeSession => subject.address_obstacle(),
            Backend::FunctionGraph => None,
            Backend::Kprobe if options.force => None,
            Backend::Kprobe => inside_kprobe(subject),
        });
        match found {
            None => return Choice { backend: Some(backend), obstacles },
            Some(reason) => obstacles.push(Obstacle { backend, reason }),
        }
    }
    Choice { backend: None, obstacles }
}

/// Why a kprobe would count nothing there, judged by the function's prototype: a handler of a
/// kprobe or kretprobe is called while that is being handled, and then the kernel skips every other
/// kprobe on the CPU (`kprobe_running()`; Documentation/trace/kprobes.rst). What such a handler calls in
/// turn does not show this way: there `Probes::drain` ends the run.
fn inside_kprobe(subject: &impl Subject) -> Option<String> {
    let Some(prototype) = subject.prototype() else {
        return subject.is_of_module().then(|| {
            "without BTF nothing tells whether it runs inside a kprobe, where the kernel skips every other \
             one: use function-graph (--force measures it all the same)"
                .to_owned()
        });
    };
    let kind = called_by_kprobes(&prototype)?;
    Some(format!(
        "it takes a `{kind}`, so it runs inside a kprobe, where the kernel skips every other kprobe: \
         this one would count nothing; use {} (--force measures it all the same)",
        if subject.btf_obstacle().is_none() { "fentry" } else { "function-graph" }
    ))
}

/// What a handler of a kprobe or kretprobe is given first, if a prototype is that of one.
fn called_by_kprobes(prototype: &str) -> Option<&'static str> {
    let first = prototype.split_once('(')?.1;
    ["struct kretprobe_instance *", "struct kprobe *"]
        .into_iter()
        .find(|kind| first.starts_with(kind))
}

/// Whether a backend names a function by its id in BTF.
pub fn needs_btf(backend: Backend) -> bool {
    matches!(backend, Backend::Fsession | Backend::Fentry)
}

impl Subject for Target {
    fn btf_obstacle(&self) -> Option<String> {
        if self.program.is_some() {
            return self.btf_id.is_none().then(|| NO_PROGRAM_BTF.to_owned());
        }
        if self.duplicate_index.is_some() {
            return Some(SAME_NAME.to_owned());
        }
        if self.btf_id.is_none() {
            return Some(match &self.module {
                Some(module) if !Path::new(BTF_FOLDER).join(module).exists() => {
                    no_module_btf(module)
                }
                _ => UNDESCRIBED.to_owned(),
            });
        }
        let taken = self.namesake.as_ref().filter(|namesake| namesake.taken_by_btf);
        taken.map(|namesake| by_name_alone(&namesake.place))
    }

    fn address_obstacle(&self) -> Option<String> {
        let namesake = self.namesake.as_ref().filter(|_| self.address == 0)?;
        Some(format!(
            "its address is hidden, and {} has this name, too: sysctl kernel.kptr_restrict=1",
            namesake.place
        ))
    }

    fn prototype(&self) -> Option<String> {
        Btf::of(self.module.as_deref(), Path::new(BTF_FOLDER)).ok()?.prototype(self.btf_id?)
    }

    fn is_of_module(&self) -> bool {
        self.module.is_some()
    }

    fn is_of_program(&self) -> bool {
        self.program.is_some()
    }
}

impl Subject for Function {
    fn btf_obstacle(&self) -> Option<String> {
        match &self.variant {
            Some(variant) => Some(format!(
                "a .{variant} variant made by the compiler, which BTF does not describe: mark \
                 {} `noinline __used`, or build it with -fno-ipa-sra -fno-ipa-cp",
                self.source_name()
            )),
            None if self.same_name > 1 => Some(SAME_NAME.to_owned()),
            None if self.btf => self.taken_for.as_deref().map(by_name_alone),
            None => Some(UNDESCRIBED.to_owned()),
        }
    }

    fn prototype(&self) -> Option<String> {
        self.prototype.clone()
    }

    fn is_of_module(&self) -> bool {
        self.module.is_some()
    }
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

    fn function(name: &str) -> Function {
        profiler_tests::function(name)
    }

    /// On a kernel that takes programs of these alone.
    fn on(takes: &[Backend], function: &Function, force: bool) -> Choice {
        let refusal = |backend| (!takes.contains(&backend)).then(|| "refused".to_owned());
        let options = Options { force, ..Options::default() };
        select(function, options, refusal, Vec::new())
    }

    /// Why the last backend is refused on one that takes programs of these alone, and no other takes the function.
    fn refused_on(takes: &[Backend], function: &Function) -> String {
        let mut choice = on(takes, function, false);
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
    }

    #[test]
    fn what_btf_does_not_lead_to_gets_the_next_backend_and_the_reason() {
        let undescribed = Function { btf: false, prototype: None, ..function("asm") };
        let variant = Function { variant: Some("isra".to_owned()), ..function("split.isra.0") };
        let twice = Function { same_name: 2, ..function("twice") };
        let taken =
            Function { taken_for: Some("a function of `other`".to_owned()), ..function("taken") };
        for (function, why) in [
            (undescribed, "mark it `noinline __used` and rebuild"),
            (variant, "mark split `noinline __used`, or build it with -fno-ipa-sra"),
            (twice, "several functions have this name"),
            (
                taken,
                "a function of `other` has this name, too, and this kernel would attach to that",
            ),
        ] {
            let choice = on(Backend::ALL, &function, false);
            assert_eq!(choice.backend, Some(Backend::KprobeSession), "{}", function.name);
            for obstacle in &choice.obstacles {
                assert!(obstacle.reason.contains(why), "{obstacle}");
            }
        }
    }

    #[test]
    fn a_kprobe_is_refused_where_it_would_count_nothing_unless_forced() {
        let kprobe = [Backend::Kprobe];
        let handler = Function {
            prototype: Some("int pre(struct kprobe *p, struct pt_regs *regs)".to_owned()),
            ..function("pre")
        };
        let unknown = Function { btf: false, prototype: None, ..function("unknown") };
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
        let of_the_kernel = Function { module: None, ..unknown };
        assert_eq!(on(&kprobe, &of_the_kernel, false).backend, Some(Backend::Kprobe));
    }

    #[test]
    fn a_bpf_program_is_reached_by_its_btf_alone() {
        let program = Target { program: Some(7), btf_id: Some(2), ..Target::default() };
        let without = Target { btf_id: None, ..program.clone() };
        let select = |target: &Target, backend| {
            let options = Options { backend, force: true, ..Options::default() };
            super::select(target, options, |_| None, Vec::new())
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
