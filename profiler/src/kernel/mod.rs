//! What this kernel and this process are: functions by name, modules, types, privileges, facts about the machine.

pub mod btf;
pub mod host;
pub mod kprobes;
pub mod module;
pub mod privileges;
pub mod prototype;
pub mod target;
