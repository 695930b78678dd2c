//! Functions as the kernel lists them, with what is known of each.

use serde::Serialize;

use super::{KernelFiles, Scope, glob, is_glob, no_match, unprobeable};
use profiler_base::error::Failure;

/// A function as the kernel lists it, whether it can be probed or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Function {
    /// Symbol name, as in `/proc/kallsyms`.
    pub name: String,
    /// Module that holds it; `None` is the kernel image.
    pub module: Option<String>,
    /// Address at this boot; `None` where the kernel hides it (`kptr_restrict`).
    #[serde(serialize_with = "hexadecimal")]
    pub address: Option<u64>,
    /// Bytes up to the next symbol, with the padding between; `None` where no function follows.
    pub size_bytes: Option<u64>,
    /// Whether ftrace can trace it; `None` where tracefs cannot be read.
    pub traceable: Option<bool>,
    /// Whether BTF describes it, as fentry needs.
    pub btf: bool,
    /// Its prototype in C, from BTF.
    pub prototype: Option<String>,
    /// The compiler's suffix, such as `isra`, `constprop`, `part` or `cold`.
    pub variant: Option<String>,
    /// Number of functions of this name in the same module.
    pub same_name: usize,
    /// 1-based index among several symbols of this name, by address, as in `NAME#2`.
    #[serde(rename = "twin", skip_serializing_if = "Option::is_none")]
    pub duplicate_index: Option<usize>,
    /// The other symbol of this name to which a program attached by BTF would attach instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_for: Option<String>,
}

impl Function {
    /// The name in the source, without the compiler's suffixes.
    pub fn source_name(&self) -> &str {
        self.name.split('.').next().unwrap_or(&self.name)
    }

    /// Why it cannot be probed; `None` if it can.
    pub fn obstacle(&self) -> Option<&'static str> {
        unprobeable(&self.name, self.traceable)
    }
}

fn hexadecimal<S: serde::Serializer>(
    address: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(&format_args!("{address:#018x}")),
        None => serializer.serialize_none(),
    }
}

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
    ) -> Result<Vec<Function>, Failure> {
        let scope = self.scope(module, None)?;
        let globs = patterns.iter().map(|pattern| glob(pattern)).collect::<Result<Vec<_>, _>>()?;
        let mut starts: Vec<u64> = scope.symbols.values().flatten().copied().collect();
        starts.sort_unstable();
        let mut matched = vec![false; globs.len()];
        let mut functions: Vec<Function> = Vec::new();
        for (name, addresses) in &scope.symbols {
            let (source_name, _) = parts_of(name);
            let mut wanted = globs.is_empty();
            for (glob, matched) in globs.iter().zip(&mut matched) {
                if glob.matches(name) || glob.matches(source_name) {
                    (wanted, *matched) = (true, true);
                }
            }
            if wanted {
                functions.extend(scope.functions_named(name, addresses, &starts));
            }
        }
        let namesakes =
            scope.namesakes(functions.iter().map(|function| function.name.as_str()).collect());
        for function in &mut functions {
            let namesake = namesakes.get(&function.name).filter(|namesake| namesake.taken_by_btf);
            function.taken_for = namesake.map(|namesake| namesake.place.clone());
        }
        match patterns.iter().zip(matched).find(|(_, matched)| !matched) {
            Some((pattern, _)) if is_glob(pattern) => {
                Err(no_match(pattern, scope.module.as_deref(), 0))
            }
            Some((name, _)) => Err(scope.no_such_handler(name)),
            None => Ok(functions),
        }
    }
}

/// The name in the source, and the compiler's suffixes.
fn parts_of(name: &str) -> (&str, Option<&str>) {
    match name.split_once('.') {
        Some((source_name, suffix)) if !source_name.is_empty() => (source_name, Some(suffix)),
        _ => (name, None),
    }
}

impl Scope<'_> {
    /// All functions of one name; `starts`, those of all functions, is sorted.
    fn functions_named(&self, name: &str, addresses: &[u64], starts: &[u64]) -> Vec<Function> {
        let ids = self.ids(name);
        let prototype = match (ids, &self.btf) {
            // Of two functions of one name it may belong to either.
            (&[id], Some(btf)) if addresses.len() == 1 => btf.prototype(id),
            _ => None,
        };
        let function = |(place, &address): (usize, &u64)| Function {
            name: name.to_owned(),
            module: self.module.clone(),
            address: (address != 0).then_some(address),
            size_bytes: size(address, starts),
            traceable: self.known_traceable(name),
            btf: !ids.is_empty(),
            prototype: prototype.clone(),
            variant: parts_of(name).1.map(variant),
            same_name: ids.len().max(addresses.len()),
            duplicate_index: (addresses.len() > 1).then_some(place + 1),
            taken_for: None,
        };
        addresses.iter().enumerate().map(function).collect()
    }
}

/// `isra.0.cold` and the like: the kinds, without the compiler's numbers.
fn variant(suffix: &str) -> String {
    let kinds: Vec<&str> = suffix
        .split('.')
        .filter(|part| !part.is_empty() && !part.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    if kinds.is_empty() { suffix.to_owned() } else { kinds.join(".") }
}

/// Bytes from a function to the next one of the same module; `starts` is sorted. `None` if the gap is so large that the
/// next function must be in another section.
fn size(address: u64, starts: &[u64]) -> Option<u64> {
    const LARGEST: u64 = 1 << 16;
    if address == 0 {
        return None;
    }
    let next = *starts.get(starts.partition_point(|&start| start <= address))?;
    (next - address < LARGEST).then_some(next - address)
}
