//! What this kernel and this process are: functions by name, modules, types, privileges, facts about the machine.

pub mod btf;
pub mod hooks;
pub mod host;
pub mod module;
pub mod names;
pub mod privileges;
pub mod target;
