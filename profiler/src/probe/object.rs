//! The compiled BPF object: found, parsed, and made into one instance a handler.

use std::{
    collections::{HashMap, HashSet},
    ffi::CString,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::MapData;
use aya_obj::{EbpfSectionKind, Object, generated::bpf_insn};
use profiler_common::layout::names;

use super::ProbeError;

/// The object that this program was built with.
static PREBUILT: &[u8] =
    aya::include_bytes_aligned!("../../../profiler-ebpf/prebuilt/profiler-bpf.o");

/// Environment variable that names another object file, for tests of a freshly built one.
pub(super) const OBJECT_VARIABLE: &str = "PROFILER_BPF_OBJECT";

/// A parsed object, from which instances are made.
pub(super) struct Template {
    object: Object,
    path: String,
}

/// The programs and maps of one handler.
pub(super) struct Instance {
    programs: HashMap<String, Vec<bpf_insn>>,
    pub(super) maps: HashMap<String, MapData>,
    pub(super) license: CString,
}

/// Maps that all instances of a session share, by name.
pub(super) type Shared = HashMap<String, (aya_obj::Map, MapData)>;

/// What one instance is made with.
pub(super) struct Parameters {
    pub(super) handler: u64,
    pub(super) cpus: u64,
    pub(super) slots_bytes: u32,
    pub(super) record_bytes: u32,
    pub(super) records: u32,
}

impl Template {
    /// The object named by the environment, else the one built in.
    pub(super) fn load() -> Result<Self, ProbeError> {
        let (path, bytes) = match std::env::var_os(OBJECT_VARIABLE) {
            Some(path) => {
                let text = path.to_string_lossy().into_owned();
                let bytes = std::fs::read(&path).map_err(|error| ProbeError::Object {
                    path: text.clone(),
                    what: format!("{error} ({OBJECT_VARIABLE} names it)"),
                })?;
                (text, bytes)
            }
            None => ("built into this program".to_owned(), PREBUILT.to_vec()),
        };
        let object = Object::parse(&bytes)
            .map_err(|error| ProbeError::Object { path: path.clone(), what: error.to_string() })?;
        Ok(Self { object, path })
    }

    fn unusable(&self, what: impl std::fmt::Display) -> ProbeError {
        ProbeError::Object { path: self.path.clone(), what: what.to_string() }
    }

    fn map(&self, name: &str) -> Result<aya_obj::Map, ProbeError> {
        self.object.maps.get(name).cloned().ok_or_else(|| self.unusable(format!("no map {name}")))
    }

    /// Makes the maps that all instances share.
    pub(super) fn shared(&self) -> Result<Shared, ProbeError> {
        [names::PHASE, names::DISPLACED]
            .into_iter()
            .map(|name| {
                let map = self.map(name)?;
                let data = create(name, &map)?;
                Ok((name.to_owned(), (map, data)))
            })
            .collect()
    }

    /// Makes the maps of one handler and fits the programs to them.
    pub(super) fn instantiate(
        &self,
        parameters: &Parameters,
        shared: &Shared,
    ) -> Result<Instance, ProbeError> {
        let mut object = self.object.clone();
        let handler = parameters.handler.to_ne_bytes();
        let cpus = parameters.cpus.to_ne_bytes();
        object
            .patch_map_data(HashMap::from([
                (names::HANDLER, (handler.as_slice(), true)),
                (names::CPUS, (cpus.as_slice(), true)),
            ]))
            .map_err(|error| self.unusable(error))?;

        let mut own = HashMap::new();
        for name in [names::SLOTS, names::RECORDS, names::CONSTANTS] {
            let mut map =
                object.maps.remove(name).ok_or_else(|| self.unusable(format!("no map {name}")))?;
            match name {
                names::SLOTS => map.set_value_size(parameters.slots_bytes),
                names::RECORDS => {
                    map.set_value_size(parameters.record_bytes);
                    map.set_max_entries(parameters.records);
                }
                _ => {}
            }
            let data = create(name, &map)?;
            if map.section_kind() == EbpfSectionKind::Rodata {
                let system = |doing| move |error| ProbeError::System { doing, error };
                super::sys::map_update(data.fd().as_fd(), 0, map.data())
                    .map_err(system("writing the constants of the BPF programs"))?;
                super::sys::map_freeze(data.fd().as_fd())
                    .map_err(system("freezing the constants of the BPF programs"))?;
            }
            own.insert(name.to_owned(), (map, data));
        }

        let text_sections: HashSet<usize> =
            object.functions.keys().map(|&(section, _)| section).collect();
        let maps = own
            .iter()
            .chain(shared.iter())
            .map(|(name, (map, data))| (name.as_str(), data.fd().as_fd().as_raw_fd(), map));
        object.relocate_maps(maps, &text_sections).map_err(|error| self.unusable(error))?;
        object.relocate_calls(&text_sections).map_err(|error| self.unusable(error))?;

        let mut programs = HashMap::new();
        for (name, program) in &object.programs {
            let function = object
                .functions
                .get(&program.function_key())
                .ok_or_else(|| self.unusable(format!("program {name} has no code")))?;
            programs.insert(name.clone(), function.instructions.clone());
        }
        Ok(Instance {
            programs,
            maps: own.into_iter().map(|(name, (_, data))| (name, data)).collect(),
            license: object.license.clone(),
        })
    }
}

impl Instance {
    /// Instructions of a program.
    pub(super) fn instructions(&self, name: &'static str) -> Result<&[bpf_insn], ProbeError> {
        self.programs.get(name).map(Vec::as_slice).ok_or_else(|| ProbeError::Object {
            path: "built into this program".to_owned(),
            what: format!("no program {name}"),
        })
    }
}

fn create(name: &str, map: &aya_obj::Map) -> Result<MapData, ProbeError> {
    // The kernel takes letters, digits, dots and underscores, 15 of them.
    let name = format!("profiler_{}", name.trim_start_matches('.').to_lowercase());
    MapData::create(map.clone(), &name[..name.len().min(15)], None).map_err(|error| {
        ProbeError::Map {
            doing: format!(
                "making the map {name} ({} entries of {} bytes)",
                map.max_entries(),
                map.value_size()
            ),
            error: Box::new(error),
        }
    })
}
