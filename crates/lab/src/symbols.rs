//! The functions of an installed driver, by what the guest's kernel says, and which of them are counted.

use std::collections::{BTreeSet, HashMap, HashSet};

use glob::Pattern;

use profiler_base::text::listed;
use profiler_kernel::hooks::{BPF, Hooks};
use profiler_kernel::names::{address_of, is_function, is_padding, lines_of};

use super::bpf_lines::BpfLines;
use super::plan::CountedHandler;

/// A function, or a part of one that the compiler has put elsewhere (`.cold`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Where it begins.
    pub address: u64,
    pub name: String,
    /// The module that holds it.
    pub module: String,
    /// Its number, from 0, among those of its name and module.
    pub number: usize,
    /// Its name, with its number from 1 if others have it, too.
    label: String,
}

/// All functions of modules, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Symbols {
    symbols: Vec<Symbol>,
    /// Source lines of BPF programs.
    pub(super) bpf_lines: BpfLines,
}

impl Symbols {
    /// Parses lines of `/proc/kallsyms`; skips all others.
    pub fn parse(text: &str) -> Self {
        let symbols = lines_of(text).filter_map(|(address, kind, name, module)| {
            let address = u64::from_str_radix(address, 16).ok()?;
            let module = module.filter(|_| is_function(kind))?.to_owned();
            let is_own = module == BPF || !is_padding(name);
            let (name, label) = (name.to_owned(), name.to_owned());
            is_own.then_some(Symbol { address, name, module, number: 0, label })
        });
        let mut found: Vec<(u64, Symbol)> = (0..).zip(symbols).collect();
        found.sort_by(|(_, a), (_, b)| (a.address, &a.name).cmp(&(b.address, &b.name)));
        // The plugin knows a function by its address.
        found.dedup_by_key(|(_, symbol)| symbol.address);
        // The kernel puts a BPF program where there is room: the order of the text is that of their loading.
        found.sort_by_key(|(line, it)| if it.module == BPF { *line } else { it.address });
        let mut same: HashMap<(String, String), Vec<Symbol>> = HashMap::new();
        for (_, symbol) in found {
            same.entry((symbol.module.clone(), symbol.name.clone())).or_default().push(symbol);
        }
        for alike in same.values_mut().filter(|alike| alike.len() > 1) {
            for (number, symbol) in alike.iter_mut().enumerate() {
                symbol.number = number;
                symbol.label = format!("{}#{}", symbol.name, number + 1);
            }
        }
        let mut symbols: Vec<Symbol> = same.into_values().flatten().collect();
        symbols.sort_by_key(|symbol| symbol.address);
        Self { symbols, bpf_lines: BpfLines::default() }
    }

    /// Names the BPF programs that no hook calls, if there are some.
    pub(super) fn not_attached(&self, hooks: &Hooks) -> Option<String> {
        let attached: BTreeSet<&str> =
            hooks.list.iter().flat_map(|hook| &hook.handlers).map(String::as_str).collect();
        let programs = self.symbols.iter().filter(|symbol| symbol.module == BPF);
        let names = programs.map(|symbol| &*symbol.name);
        let names = names.filter(|name| !name.contains('/') && !attached.contains(name));
        let names = Vec::from_iter(BTreeSet::from_iter(names));
        (!names.is_empty()).then(|| {
            format!(
                "where {} BPF program{} called: {} (by tail calls alone, or attached where nobody looks, such as tc, XDP, \
                 cgroups, uprobes and kprobe.multi)",
                names.len(),
                if names.len() == 1 { " is" } else { "s are" },
                listed(&names)
            )
        })
    }

    /// The last symbol at or below `address`.
    pub fn at(&self, address: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        self.symbols.get(after.checked_sub(1)?)
    }

    /// The name of the function that begins at `address`, as [`Self::handlers`] has it.
    pub(super) fn name_at(&self, address: u64) -> Option<String> {
        self.at(address).filter(|found| found.address == address).map(|found| found.label.clone())
    }

    /// The functions of `module` that a pattern matches, by address, under names that tell those of one name apart.
    fn matching(&self, module: &str, pattern: &Pattern) -> Vec<CountedHandler> {
        let whole = self.symbols.iter().filter(|symbol| {
            // A BPF program may have any name, and is in one piece.
            symbol.module == module && (module == BPF || !symbol.name.contains(".cold"))
        });
        let matching = whole.filter(|symbol| pattern.matches(&symbol.name));
        let handlers = matching.map(|symbol| CountedHandler {
            name: symbol.label.clone(),
            module: Some(symbol.module.clone()),
            by_glob: is_glob(pattern.as_str()),
            address: symbol.address,
        });
        handlers.collect()
    }

    /// The functions that are counted one by one: of the module, or such of the kernel (lines of `/proc/kallsyms`) that are
    /// named without a glob.
    ///
    /// # Errors
    /// Names the pattern that matches nothing. A module without symbols has functions all the same: `*` matches them
    /// when they have run.
    pub(super) fn handlers(
        &self,
        module: &str,
        kernel: &str,
        patterns: &[String],
    ) -> Result<Vec<CountedHandler>, String> {
        let (mut handlers, mut known) = (Vec::new(), HashSet::new());
        for text in patterns {
            let pattern = Pattern::new(text).map_err(|error| format!("`{text}`: {error}"))?;
            let mut found: Vec<CountedHandler> = self.matching(module, &pattern);
            if found.is_empty() && !is_glob(text) {
                found.extend(address_of(kernel, text).map(|address| CountedHandler {
                    name: text.clone(),
                    module: None,
                    by_glob: false,
                    address,
                }));
            }
            if found.is_empty() && text != "*" {
                let what = match module {
                    BPF => "the agent has no BPF program".to_owned(),
                    module => format!("{module} has no function"),
                };
                let why = match is_glob(text) {
                    true => "; a function of the kernel is counted if its whole name is given",
                    false => ", and the kernel has none",
                };
                return Err(format!("{what} `{text}`{why}"));
            }
            handlers.extend(found.into_iter().filter(|handler| known.insert(handler.address)));
        }
        Ok(handlers)
    }
}

fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "driver 16384 0 - Live 0xffffffffc0000000 (OE)\n\n\
        ffffffffc0000030 t twin\t[driver]\nffffffffc0000010 t twin\t[driver]\nffffffffc0000000 t hook\t[driver]\n\
        ffffffffc0000040 t hook.cold\t[driver]\nffffffffc0000020 d data\t[driver]\nffffffffc0001000 t hook\t[other]\n";

    fn names(patterns: &[&str]) -> Result<Vec<String>, String> {
        let patterns: Vec<String> = patterns.iter().map(|text| (*text).to_owned()).collect();
        let kernel = "ffffffff81000000 T __sys_connect\n";
        let handlers = Symbols::parse(TEXT).handlers("driver", kernel, &patterns)?;
        Ok(handlers.into_iter().map(|handler| handler.name).collect())
    }

    #[test]
    fn functions_are_found_by_pattern_and_told_apart() {
        assert_eq!(names(&["*"]).unwrap(), ["hook", "twin#1", "twin#2"]);
        assert_eq!(names(&["tw?n", "hook"]).unwrap(), ["twin#1", "twin#2", "hook"]);
        assert_eq!(names(&["__sys_connect"]).unwrap(), ["__sys_connect"]);
        let error = names(&["__sys_*"]).unwrap_err();
        assert!(error.starts_with("driver has no function `__sys_*`"), "{error}");
        assert!(names(&["nothing"]).unwrap_err().ends_with("and the kernel has none"));
    }

    #[test]
    fn bpf_programs_of_one_name_are_told_apart_by_the_order_of_their_loading() {
        let text = "ffffffffc0000030 t on\t[bpf]\nffffffffc0000010 t on\t[bpf]\nffffffffc0000020 t on/sub\t[bpf]\n";
        let symbols = Symbols::parse(text);
        let named = [0xffff_ffff_c000_0010, 0xffff_ffff_c000_0030].map(|at| symbols.name_at(at));
        assert_eq!(named, ["on#2", "on#1"].map(|name| Some(name.to_owned())));
        let none = symbols.not_attached(&Hooks::default()).unwrap();
        assert!(none.starts_with("where 1 BPF program is called: on ("), "{none}");
        let error = symbols.handlers(BPF, "", &["nope".to_owned()]).unwrap_err();
        assert_eq!(error, "the agent has no BPF program `nope`, and the kernel has none");
    }

    #[test]
    fn a_bpf_program_may_have_any_name() {
        let symbols = |module: &str| {
            let lines = ["__pfx_on", "__cfi_on", "on.cold"].iter().zip(1_u64..);
            let line = |(name, at): (&&str, u64)| {
                format!("{:x} t {name}\t[{module}]\n", 0xffff_ffff_c000_0000 + 16 * at)
            };
            let all = Pattern::new("*").unwrap();
            let found = Symbols::parse(&lines.map(line).collect::<String>());
            found.matching(module, &all).into_iter().map(|it| it.name).collect::<Vec<_>>()
        };
        assert_eq!(symbols(BPF), ["__pfx_on", "__cfi_on", "on.cold"]);
        assert!(symbols("driver").is_empty(), "no functions");
    }

    /// Counting takes no memory for each function, as probes do.
    #[test]
    fn a_driver_may_have_thousands_of_functions() {
        let line =
            |at: u64| format!("{:x} t function_{at}\t[driver]\n", 0xffff_ffff_c000_0000 + at * 16);
        let found = |functions: u64| {
            let text: String = (0..functions).map(line).collect();
            let handlers = Symbols::parse(&text).handlers("driver", "", &["*".to_owned()]);
            handlers.map(|handlers| handlers.len())
        };
        assert_eq!(found(5_000), Ok(5_000));
    }

    #[test]
    fn an_address_is_in_the_symbol_below_it() {
        let symbols = Symbols::parse(TEXT);
        let at = |address| symbols.at(address).map(|symbol| (&*symbol.name, symbol.number));
        assert_eq!(at(0xffff_ffff_c000_0035), Some(("twin", 1)));
        assert_eq!(at(0xffff_ffff_c000_0044), Some(("hook.cold", 0)));
        assert_eq!(at(0x10), None);
        let names = [0xffff_ffff_c000_0010, 0xffff_ffff_c000_0030, 0xffff_ffff_c000_1000];
        let named = names.map(|address| symbols.name_at(address).unwrap());
        assert_eq!(named, ["twin#1", "twin#2", "hook"]);
        assert_eq!(symbols.name_at(0xffff_ffff_c000_0031), None);
        assert_eq!(Symbols::parse("").handlers("d", "", &["*".to_owned()]), Ok(Vec::new()));
    }
}
