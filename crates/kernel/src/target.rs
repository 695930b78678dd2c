//! Resolves the names and globs that a user gives to functions of the kernel.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashMap},
    fs, iter,
    path::PathBuf,
    sync::Arc,
};

use foldhash::HashSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_base::error::{Failure, exit};

use crate::btf::Btf;
use crate::names::{self, Names, is_function, lines_of};

mod list;

/// A resolved function: one symbol of one module (or of the kernel itself).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Target {
    /// Symbol name, as in `/proc/kallsyms`.
    pub name: String,
    /// Module that holds it; `None` is the kernel image.
    pub module: Option<String>,
    /// Address at this boot; 0, and `null` in JSON, where the kernel hides it (`kptr_restrict`).
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// 1-based index among the functions of this name in the same module, by address; `None` if the name is unique.
    /// With an index, only the address identifies the function.
    #[serde(rename = "twin", skip_serializing_if = "Option::is_none")]
    pub duplicate_index: Option<usize>,
    /// Type id of the function in the BTF of its module (or of vmlinux), which backends on the trampoline need; `None`
    /// without BTF or if that does not describe the function alone.
    #[serde(rename = "btf", serialize_with = "is_some")]
    pub btf_id: Option<u32>,
    /// Whether there is BTF of its module (or of vmlinux), which may not describe the function.
    #[serde(skip)]
    pub has_btf: bool,
    /// Name of the struct that its first argument points to, from BTF.
    #[serde(skip)]
    pub argument: Option<String>,
    /// Whether ftrace can trace it; `None` where tracefs cannot be read, or nobody asked.
    pub traceable: Option<bool>,
    /// Where another symbol of this name is, in the kernel image or another module.
    #[serde(skip)]
    pub namesake: Option<String>,
    /// The same if a program attached by BTF would attach to that symbol instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_for: Option<String>,
    /// Matched by a glob, not given by name: left out if it cannot be measured.
    #[serde(skip)]
    pub by_glob: bool,
    /// Id of the loaded BPF program whose function it is, and whose BTF `btf_id` is of.
    #[serde(skip)]
    pub program: Option<u32>,
}

/// The functions that names and globs resolve to.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    /// The functions to measure, in the order given, each once.
    pub targets: Vec<Target>,
    /// Functions that a glob matches and that cannot be probed.
    pub left_out: Vec<LeftOut>,
}

/// A function that a glob matches and that is not measured.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Its name, as a handler's would be.
    pub name: String,
    /// Module that holds it; `null` is the kernel image.
    pub module: Option<String>,
    /// Why: the same words for all that have the same reason.
    pub reason: String,
}

impl Resolved {
    /// All of these, each once.
    ///
    /// # Errors
    /// If they are too many.
    pub fn merged(all: Vec<Self>) -> Result<Self, Failure> {
        let Self { mut targets, mut left_out } = Self::default();
        // Indices of targets, by label.
        let mut seen: HashMap<String, usize> = HashMap::new();
        for found in all {
            left_out.extend(found.left_out);
            for target in found.targets {
                match seen.get(&target.label()).and_then(|&at| targets.get_mut(at)) {
                    Some(known) => known.by_glob &= target.by_glob,
                    None => {
                        seen.insert(target.label(), targets.len());
                        targets.push(target);
                    }
                }
            }
        }
        left_out.sort();
        left_out.dedup();
        if targets.len() > MAX_HANDLERS {
            return Err(wrong(format!(
                "{} functions match, and {MAX_HANDLERS} is the most that one run measures (each takes \
                 kernel memory on every CPU): use narrower patterns",
                targets.len()
            )));
        }
        Ok(Self { targets, left_out })
    }
}

impl Target {
    /// Its name in recordings: `NAME#2` for the second of several functions of one name. Unlike an address, it is the
    /// same on each boot.
    pub fn label(&self) -> String {
        match self.duplicate_index {
            Some(number) => format!("{}#{number}", self.name),
            None => self.name.clone(),
        }
    }

    /// The name in the source, without the compiler's suffixes.
    pub fn source_name(&self) -> &str {
        self.name.split('.').next().unwrap_or(&self.name)
    }

    /// The compiler's suffix, such as `isra.0` or `cold`.
    pub fn variant(&self) -> Option<&str> {
        self.name.split_once('.').map(|(_, suffix)| suffix)
    }

    /// Why it cannot be probed; `None` if it can.
    pub fn obstacle(&self) -> Option<&'static str> {
        unprobeable(&self.name, self.traceable)
    }
}

fn is_some<S: serde::Serializer>(id: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bool(id.is_some())
}

fn hexadecimal<S: serde::Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        0 => serializer.serialize_none(),
        _ => serializer.collect_str(&format_args!("{address:#018x}")),
    }
}

/// Most handlers that one run measures: each takes kernel memory on every CPU.
pub const MAX_HANDLERS: usize = 512;

/// Names offered when one is not found.
const SUGGESTIONS: usize = 3;

/// The machine lacks something.
fn lacking(text: String) -> Failure {
    Failure::new(exit::CANNOT_MEASURE, text)
}

/// Something is wrong with a name, or with the module's.
fn wrong(text: String) -> Failure {
    Failure::new(exit::NO_TARGET, text)
}

/// ftrace cannot trace a function.
pub fn not_traceable(handler: &str, module: Option<&str>) -> Failure {
    wrong(format!(
        "`{handler}` in {} cannot be traced: it is marked notrace (or lies in a section or file built \
         without tracing), so no probe can be placed at its entry; measure the function that calls it",
        place(module)
    ))
}

/// A pattern matches no function that can be measured; `not_traceable` match and cannot be traced.
fn no_match(pattern: &str, module: Option<&str>, not_traceable: usize) -> Failure {
    let reasons = match not_traceable {
        0 => ": see /proc/kallsyms for the names there are".to_owned(),
        count => format!(" ({count} that match cannot be traced by ftrace)"),
    };
    wrong(format!(
        "pattern `{pattern}` matches no function of {} that can be probed{reasons}",
        place(module)
    ))
}

fn place(module: Option<&str>) -> String {
    module.map_or_else(|| "the kernel image".to_owned(), |module| format!("module {module}"))
}

/// The names that may have been meant, for the end of an error.
pub fn also(nearest: &[String]) -> String {
    if nearest.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", nearest.join(" or "))
    }
}

/// How to name each of several functions of one name.
fn choices(handler: &str, addresses: &[u64]) -> String {
    let all = (1..).zip(addresses).map(|(number, address)| match address {
        0 => format!("`{handler}#{number}`"),
        _ => format!("`{handler}#{number}` at {address:#x}"),
    });
    let all: Vec<String> = all.collect();
    format!("{} {}", if all.len() == 1 { "is" } else { "are" }, all.join(" and "))
}

/// The kernel's pseudo files; below another root in tests.
#[derive(Debug, Clone)]
pub struct KernelFiles {
    root: PathBuf,
    /// The text of `/proc/kallsyms`, once read, for as long as this lives: the kernel formats 10 MB at each reading.
    kallsyms: OnceCell<String>,
}

impl Default for KernelFiles {
    fn default() -> Self {
        Self::below("/")
    }
}

/// A function's name and module; without one it is of the kernel image.
pub type Named = (String, Option<String>);

/// Function symbols of one module or of the kernel image: name to addresses, ascending.
type Symbols = BTreeMap<String, Vec<u64>>;

/// What the kernel says of the functions of one module, or of its image.
struct Scope<'a> {
    files: &'a KernelFiles,
    /// Named as the kernel does; `None` is the image.
    module: Option<String>,
    /// The text of `/proc/kallsyms`.
    kallsyms: &'a str,
    /// The functions that were asked for.
    symbols: Symbols,
    /// `None` if the kernel has none.
    btf: Option<Arc<Btf>>,
    /// Names that ftrace can trace; `None` if tracefs cannot be read: then the kernel decides. Read on first use: the kernel
    /// takes long to produce the list.
    traceable: OnceCell<Option<HashSet<String>>>,
}

impl KernelFiles {
    /// Files below `root` instead of `/`.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), kallsyms: OnceCell::new() }
    }

    /// Resolves names and globs to functions, in the order given, each once.
    ///
    /// # Errors
    /// The first name that cannot be measured, and why; a glob that matches nothing that can.
    pub fn resolve(&self, module: Option<&str>, patterns: &[String]) -> Result<Resolved, Failure> {
        self.find(module, patterns.iter().map(|pattern| (pattern.as_str(), false)), false)
    }

    /// The same, but names and globs of which nothing can be measured are left out, as they were given.
    ///
    /// # Errors
    /// If the module is not loaded, the kernel's files cannot be read, or too many functions match.
    pub fn resolve_present(
        &self,
        module: Option<&str>,
        patterns: &[String],
    ) -> Result<Resolved, Failure> {
        self.find(module, patterns.iter().map(|pattern| (pattern.as_str(), false)), true)
    }

    /// The same functions in the module as loaded now. Functions that a glob matched are left out if they cannot be measured
    /// in this build.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve) for functions given by name; also if none is left.
    pub fn resolve_again(&self, targets: &[Target]) -> Result<Resolved, Failure> {
        let module = targets.first().and_then(|target| target.module.as_deref());
        let labels: Vec<String> = targets.iter().map(Target::label).collect();
        let by_glob = targets.iter().map(|target| target.by_glob);
        // Symbols that were read before are those of the module as it was.
        let now = Self::below(&self.root);
        let found = now.find(module, labels.iter().map(String::as_str).zip(by_glob), false)?;
        match found.targets.is_empty() {
            // Its error names the first.
            true => now.resolve(module, &labels),
            false => Ok(found),
        }
    }

    /// Resolves patterns; `true` with a name means that a glob matched it before: it is left out if it cannot be measured.
    /// If `lenient`, so are all others.
    fn find<'a>(
        &self,
        module: Option<&str>,
        patterns: impl Iterator<Item = (&'a str, bool)> + Clone,
        lenient: bool,
    ) -> Result<Resolved, Failure> {
        let scope = self.scope(module, few(patterns.clone().map(|(pattern, _)| pattern)))?;
        let found = patterns.map(|(pattern, by_glob)| {
            let found = match is_glob(pattern) {
                true => scope.matching(pattern),
                false => scope.exact(pattern).map(|target| Resolved {
                    targets: vec![Target { by_glob, ..target }],
                    left_out: Vec::new(),
                }),
            };
            match found {
                Err(error) if lenient || by_glob => Ok(scope.without(pattern, &error)),
                found => found,
            }
        });
        let mut resolved = Resolved::merged(found.collect::<Result<_, _>>()?)?;
        let targets = &mut resolved.targets;
        scope.find_namesakes(targets.iter_mut().collect());
        Ok(resolved)
    }

    /// Reads what the kernel says of a loaded module, or of its image; of the functions with these `names`, or of all.
    fn scope(&self, module: Option<&str>, names: Option<Vec<&str>>) -> Result<Scope<'_>, Failure> {
        // The kernel writes module names with underscores, whatever the file is called.
        let module = module.map(|module| module.replace('-', "_"));
        if let Some(module) = &module {
            self.require_loaded(module)?;
        }
        let folder = self.btf_folder();
        let mut needed = iter::once("vmlinux").chain(module.as_deref());
        let described = needed.all(|name| folder.join(name).exists());
        let btf = described.then(|| Btf::of(module.as_deref(), &folder)).transpose()?;
        let kallsyms = self.kallsyms()?;
        let symbols = symbols(kallsyms, module.as_deref(), names.as_deref());
        Ok(Scope { files: self, module, kallsyms, symbols, btf, traceable: OnceCell::new() })
    }

    /// Names of a module's functions that ftrace can trace; `None` if tracefs cannot be read.
    fn traceable(&self, module: Option<&str>) -> Option<HashSet<String>> {
        let wanted = module.map(|module| format!("[{module}]"));
        let list = ["sys/kernel/tracing", "sys/kernel/debug/tracing"]
            .iter()
            .find_map(|place| self.read(&format!("{place}/available_filter_functions")).ok())?;
        let names = list.lines().filter_map(|line| {
            let (name, module) = match line.split_once(' ') {
                Some((name, module)) => (name, Some(module.trim())),
                None => (line, None),
            };
            (module == wanted.as_deref()).then(|| name.to_owned())
        });
        Some(names.collect())
    }

    /// Where the kernel shows its BTF.
    pub fn btf_folder(&self) -> PathBuf {
        self.root.join("sys/kernel/btf")
    }

    /// Checks that a module, named as the kernel does, is loaded.
    ///
    /// # Errors
    /// When it is not, or the list cannot be read.
    pub fn require_loaded(&self, module: &str) -> Result<(), Failure> {
        let has_proc = self.root.join("proc/kallsyms").exists();
        if has_proc && !self.root.join("proc/modules").exists() {
            return Err(lacking(format!(
                "this kernel cannot load modules (there is no /proc/modules), so it has no `{module}`: boot a \
                 kernel built with CONFIG_MODULES=y, in a virtual machine if need be"
            )));
        }
        let list = self.read("proc/modules")?;
        let loaded: Vec<&str> =
            list.lines().filter_map(|line| line.split_whitespace().next()).collect();
        if loaded.contains(&module) {
            return Ok(());
        }
        let plain = !module.is_empty() && !module.contains(['/', '.']);
        if plain && self.root.join("sys/module").join(module).exists() {
            return Err(wrong(format!(
                "`{module}` is built into this kernel: leave --module out and name its functions alone"
            )));
        }
        Err(wrong(format!(
            "module `{module}` is not loaded: load it with insmod or modprobe first{}",
            also(&nearest(module, loaded.into_iter()))
        )))
    }

    /// A file of this machine.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The text of a file of this machine.
    pub(super) fn read(&self, path: &str) -> Result<String, Failure> {
        let path = self.path(path);
        let bytes = fs::read(&path).map_err(|error| {
            let path = path.display();
            lacking(format!("cannot read {path}: {error}: run as root"))
        })?;
        // No copy unless needed: kallsyms has megabytes.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The symbols of the kernel and of its modules, as they were when they were first asked for.
    pub(super) fn kallsyms(&self) -> Result<&str, Failure> {
        if let Some(text) = self.kallsyms.get() {
            return Ok(text);
        }
        let text = self.read("proc/kallsyms")?;
        Ok(self.kallsyms.get_or_init(|| text))
    }

    /// Name and module of the function that starts at each address, or at most `most` bytes before it.
    ///
    /// # Errors
    /// When the symbols cannot be read.
    pub fn names_of(&self, addresses: &[u64], most: u64) -> Result<Vec<Option<Named>>, Failure> {
        let names = Names::of(&[self.kallsyms()?]);
        let named = addresses.iter().map(|address| {
            let (start, name, place) = names.below(*address)?;
            (address - start <= most).then(|| (name.to_owned(), place.map(str::to_owned)))
        });
        Ok(named.collect())
    }

    /// Whether ftrace can trace a function; true also if that cannot be known.
    pub fn is_traceable(&self, module: Option<&str>, name: &str) -> bool {
        self.traceable(module).is_none_or(|names| names.contains(name))
    }

    /// Whether the kernel looks for a module's function in that module alone, when it attaches a program
    /// by BTF (Linux 6.4, commit 31bf1dbccfb0, with which came `mod` in `struct bpf_prog_aux`). Others
    /// take the first symbol of the name: the kernel image's, or the newest module's.
    fn looks_in_the_module(&self) -> bool {
        let types = Btf::of(None, &self.btf_folder());
        types.is_ok_and(|types| types.has_member("bpf_prog_aux", "mod") == Some(true))
    }
}

/// The names among `patterns` if they are few and no globs: to find a few functions in the kernel image takes less time than to
/// sort all.
fn few<'a>(patterns: impl Iterator<Item = &'a str> + Clone) -> Option<Vec<&'a str>> {
    const FEW: usize = 8;
    let all_sorted = patterns.clone().any(is_glob) || patterns.clone().nth(FEW).is_some();
    (!all_sorted).then(|| patterns.map(|given| numbered(given).0).collect())
}

/// The functions of a module: those with one of these `names`, and their variants, or all.
fn symbols(kallsyms: &str, module: Option<&str>, names: Option<&[&str]>) -> Symbols {
    let mut by_name = Symbols::new();
    for (address, kind, name, place) in lines_of(kallsyms) {
        if is_function(kind) && place == module && is_wanted(name, names) {
            let address = u64::from_str_radix(address, 16).unwrap_or(0);
            by_name.entry(name.to_owned()).or_default().push(address);
        }
    }
    by_name.values_mut().for_each(|addresses| addresses.sort_unstable());
    by_name
}

/// Whether a symbol is one of `names`, or a variant of one; true without `names`.
fn is_wanted(symbol: &str, names: Option<&[&str]>) -> bool {
    let Some(names) = names else { return true };
    let mut rests = names.iter().filter_map(|name| symbol.strip_prefix(*name));
    rests.any(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a pattern is a glob, and not a name.
pub fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

/// # Errors
/// If `pattern` is no pattern.
pub fn glob(pattern: &str) -> Result<glob::Pattern, Failure> {
    glob::Pattern::new(pattern)
        .map_err(|error| wrong(format!("`{pattern}` is not a valid pattern: {error}")))
}

/// Splits a name from the number that selects one of several functions of that name, in order of address from 1:
/// `NAME#NUMBER`. A symbol of a C function does not contain the character.
fn numbered(given: &str) -> (&str, Option<usize>) {
    let split = given.split_once('#').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    split.map_or((given, None), |(name, number)| (name, Some(number)))
}

impl Scope<'_> {
    fn ids(&self, name: &str) -> &[u32] {
        self.btf.as_ref().map_or(&[], |btf| btf.ids(name))
    }

    /// Whether ftrace can trace a function; `None` if tracefs cannot be read.
    fn known_traceable(&self, name: &str) -> Option<bool> {
        let names = self.traceable.get_or_init(|| self.files.traceable(self.module.as_deref()));
        names.as_ref().map(|names| names.contains(name))
    }

    fn is_traceable(&self, name: &str) -> bool {
        self.known_traceable(name).unwrap_or(true)
    }

    /// Nothing, because of an error about a name or glob.
    fn without(&self, given: &str, error: &Failure) -> Resolved {
        let name = numbered(given).0;
        let is_there = self.symbols.contains_key(name) || !self.variants(name).is_empty();
        let reason = match is_glob(given) || is_there {
            true => error.to_string(),
            false => "not in this build".to_owned(),
        };
        let left = LeftOut { name: given.to_owned(), module: self.module.clone(), reason };
        Resolved { targets: Vec::new(), left_out: vec![left] }
    }

    /// What the compiler made of a function.
    fn variants(&self, name: &str) -> Vec<&str> {
        let prefix = format!("{name}.");
        let following = self.symbols.range(prefix.clone()..).map(|(symbol, _)| symbol.as_str());
        following.take_while(|symbol| symbol.starts_with(&prefix)).collect()
    }

    fn exact(&self, given: &str) -> Result<Target, Failure> {
        let (name, number) = numbered(given);
        let module = self.module.as_deref();
        let Some(addresses) = self.symbols.get(name) else {
            let variants = self.variants(name);
            if !variants.is_empty() {
                return Err(wrong(format!(
                    "the compiler turned `{name}` into {}: BTF does not describe such variants; mark the \
                     function `noinline __used` or build it with -fno-ipa-sra -fno-ipa-cp to measure it",
                    variants.join(", ")
                )));
            }
            return Err(self.no_such_handler(name));
        };
        let count = self.count(name, addresses);
        if self.ids(name).is_empty() && !self.is_traceable(name) {
            return Err(not_traceable(name, module));
        }
        if number.is_none() && count != 1 {
            return Err(wrong(format!(
                "{count} functions of {} are called `{name}`: there {}; name the one that you mean",
                place(module),
                choices(name, addresses)
            )));
        }
        let at = number.unwrap_or(1).wrapping_sub(1);
        if at >= addresses.len() {
            return Err(wrong(format!(
                "`{given}` is none of the functions called `{name}` in {}: there {}",
                place(module),
                choices(name, addresses)
            )));
        }
        Ok(self.target(name, addresses, at))
    }

    /// How many functions have a name: two may share one BTF entry.
    fn count(&self, name: &str, addresses: &[u64]) -> usize {
        self.ids(name).len().max(addresses.len())
    }

    /// The function at this index among the addresses of those of its name.
    fn target(&self, name: &str, addresses: &[u64], at: usize) -> Target {
        let count = self.count(name, addresses);
        // BTF identifies functions by name alone.
        let btf_id = self.ids(name).first().copied().filter(|_| count == 1);
        let argument = self.btf.as_ref().zip(btf_id).and_then(|(btf, id)| btf.first_argument(id));
        Target {
            name: name.to_owned(),
            module: self.module.clone(),
            address: addresses[at],
            duplicate_index: (count > 1).then_some(at + 1),
            btf_id,
            has_btf: self.btf.is_some(),
            argument: argument.map(str::to_owned),
            ..Target::default()
        }
    }

    fn matching(&self, pattern: &str) -> Result<Resolved, Failure> {
        let glob = glob(pattern)?;
        let mut found = Resolved::default();
        for (name, addresses) in &self.symbols {
            if !glob.matches(name) || names::is_padding(name) {
                continue;
            }
            if let Some(reason) = unprobeable(name, self.known_traceable(name)) {
                let (name, module) = (name.clone(), self.module.clone());
                found.left_out.push(LeftOut { name, module, reason: reason.to_owned() });
                continue;
            }
            let all = (0..addresses.len()).map(|at| self.target(name, addresses, at));
            found.targets.extend(all.map(|target| Target { by_glob: true, ..target }));
        }
        if found.targets.is_empty() {
            let left_out = found.left_out.len();
            return Err(no_match(pattern, self.module.as_deref(), left_out));
        }
        Ok(found)
    }

    fn no_such_handler(&self, name: &str) -> Failure {
        let all = symbols(self.kallsyms, self.module.as_deref(), None);
        let names = all.keys().map(String::as_str);
        let nearest = nearest(name, names.filter(|name| self.is_traceable(name)));
        wrong(format!(
            "there is no function `{name}` in {}{}; a function that the compiler inlined into all its \
             callers does not exist on its own: mark it `noinline` to measure it",
            place(self.module.as_deref()),
            also(&nearest)
        ))
    }

    /// Of each target the first symbol of its name that is not a function of this module.
    fn find_namesakes(&self, targets: Vec<&mut Target>) {
        // Not modules: the kernel lists its trampolines and BPF programs under these names.
        const NO_MODULES: [&str; 4] =
            ["bpf", "__builtin__ftrace", "__builtin__kprobes", "__builtin__klp"];
        let module = self.module.as_deref();
        let names: HashSet<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let mut passed = HashSet::<&str>::default();
        // Where it is, and whether BTF leads there.
        let mut found: HashMap<&str, (String, bool)> = HashMap::new();
        for (_, kind, name, place) in lines_of(self.kallsyms) {
            if !names.contains(name) || place.is_some_and(|place| NO_MODULES.contains(&place)) {
                continue;
            }
            if place == module && is_function(kind) {
                passed.insert(name);
            } else {
                // A look-up by name alone takes the first.
                let taken_by_btf = !passed.contains(name);
                found.entry(name).or_insert_with(|| {
                    let what = if is_function(kind) { "a function" } else { "a variable" };
                    (format!("{what} of {}", self::place(place)), taken_by_btf)
                });
            }
        }
        let any_first = found.values().any(|(_, taken_by_btf)| *taken_by_btf);
        if any_first && module.is_some() && self.files.looks_in_the_module() {
            found.values_mut().for_each(|(_, taken_by_btf)| *taken_by_btf = false);
        }
        for target in targets {
            if let Some((place, taken_by_btf)) = found.get(target.name.as_str()) {
                target.namesake = Some(place.clone());
                target.taken_for = taken_by_btf.then(|| place.clone());
            }
        }
    }
}

/// Why a function cannot be probed; `None` if it may be. The same words for all that have the same reason.
fn unprobeable(name: &str, traceable: Option<bool>) -> Option<&'static str> {
    if name.ends_with(".cold") || name.contains(".cold.") {
        Some("the unlikely half of a function, split off by the compiler: it is measured with that")
    } else if traceable == Some(false) {
        Some("marked notrace, or built without tracing: measure the function that calls it")
    } else {
        None
    }
}

/// The most similar names, best first.
pub fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut scored: HashMap<&str, f64> = HashMap::new();
    for name in names {
        let mut score = strsim::jaro_winkler(wanted, name);
        if name.contains(wanted) || wanted.contains(name) {
            score = score.max(0.9);
        }
        if score > 0.8 {
            scored.insert(name, score);
        }
    }
    let mut scored: Vec<(&str, f64)> = scored.into_iter().collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
    scored.into_iter().take(SUGGESTIONS).map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests;
