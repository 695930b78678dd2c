//! What two builds register with the kernel, and which of it the loads reached.

use std::collections::BTreeSet;

use itertools::Itertools as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use profiler_kernel::hooks::{Hook, ProbeState};
use profiler_recording::Recording;

use super::Rule;

/// How what two builds register differs, and which hooks were reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HookReport {
    /// Hooks that the candidate alone registers.
    pub more: Vec<String>,
    /// Hooks that the baseline alone registers.
    pub less: Vec<String>,
    /// Hooks on the same place that are registered in another way, such as a kretprobe that became a kprobe.
    pub changed: Vec<String>,
    /// Why what differs is not decided by the figures.
    pub undecided: Vec<String>,
    /// Hooks of either build.
    pub hooks: usize,
    /// Hooks of which no run called all handlers.
    pub unreached: Vec<String>,
    /// Kinds of hooks that could not be read, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

impl HookReport {
    /// Of the runs on one kernel. `is_asked` says whether it matters that a hook was reached, and `hint` knows a load for a handler.
    /// `None` if a side does not say what it registered, or could not know.
    pub fn of(
        base: &[&Recording],
        candidate: &[&Recording],
        rule: &Rule,
        is_asked: &dyn Fn(&Hook) -> bool,
        hint: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let sides = [Side::of(base)?, Side::of(candidate)?];
        let [mut old, mut new] = sides.each_ref().map(|side| side.hooks.clone());
        // Equal ones first, one for one: a second registration of a handler is a hook more.
        pairs(&mut old, &mut new, &|a, b| {
            (a.kind, &a.place, &a.handlers, a.maxactive, a.state)
                == (b.kind, &b.place, &b.handlers, b.maxactive, b.state)
        });
        let alike = pairs(&mut old, &mut new, &|a, b| {
            a.place == b.place && a.handlers.iter().any(|handler| b.handlers.contains(handler))
        });
        let mut found = Self::default();
        for (was, is) in alike {
            let words = change(was, is);
            found.decide(&words, is, &sides[1], rule);
            found.changed.push(words);
        }
        for hook in new {
            found.decide(&hook.to_string(), hook, &sides[1], rule);
            found.more.push(hook.to_string());
        }
        for hook in &old {
            if !rule.allow_vanished {
                found.undecided.push(format!("{hook} is no longer registered"));
            }
            found.less.push(hook.to_string());
        }
        for (side, hooks) in sides.iter().zip([&old, &sides[1].hooks]) {
            for hook in hooks.iter().filter(|hook| is_asked(hook)) {
                found.hooks += 1;
                if !side.reached(hook) {
                    let load = hook.handlers.iter().find_map(|handler| hint(handler));
                    let hint = load.map_or(String::new(), |load| format!(", although {load}"));
                    found.unreached.push(format!("{hook}{hint}"));
                }
            }
        }
        found.unknown = sides.iter().flat_map(|side| side.unknown).unique().cloned().collect();
        Some(found)
    }

    /// A hook that the candidate alone has is judged by what it adds to operations, if one was judged that it lies on.
    fn decide(&mut self, words: &str, hook: &Hook, candidate: &Side<'_>, rule: &Rule) {
        if rule.accept_new.iter().any(|pattern| hook.matches(pattern)) {
            return;
        }
        if !candidate.reached(hook) {
            self.undecided.push(format!("{words}: no load reached it"));
        } else if !hook.handlers.iter().any(|it| candidate.in_operations.contains(&**it)) {
            self.undecided.push(format!("{words}: no operation is judged that it lies on"));
        }
    }

    /// Whether both builds register the same.
    pub fn is_same(&self) -> bool {
        self.more.is_empty() && self.less.is_empty() && self.changed.is_empty()
    }

    /// The differences, a kind and its hooks each.
    pub fn differences(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let kinds = [
            ("registers", &self.more),
            ("registers no longer", &self.less),
            ("registers otherwise", &self.changed),
        ];
        kinds.into_iter().flat_map(|(what, hooks)| hooks.iter().map(move |hook| (what, hook)))
    }

    /// Adds those of another kernel; `kernel` is in their words.
    pub fn add(&mut self, other: Self, kernel: Option<&str>) {
        let on = kernel.map_or(String::new(), |kernel| format!(" on {kernel}"));
        self.hooks += other.hooks;
        for (to, from) in [
            (&mut self.more, other.more),
            (&mut self.less, other.less),
            (&mut self.changed, other.changed),
            (&mut self.undecided, other.undecided),
            (&mut self.unreached, other.unreached),
            (&mut self.unknown, other.unknown),
        ] {
            to.extend(from.into_iter().map(|words| words + &on));
        }
    }
}

/// The runs of a build.
struct Side<'a> {
    hooks: Vec<&'a Hook>,
    unknown: &'a [String],
    /// Functions that were called.
    called: BTreeSet<&'a str>,
    /// The same of runs of which an operation is judged.
    in_operations: BTreeSet<&'a str>,
}

impl<'a> Side<'a> {
    fn of(runs: &[&'a Recording]) -> Option<Self> {
        let mut modules = runs.iter().flat_map(|run| &run.modules);
        let hooks = modules.find_map(|module| module.hooks.as_ref())?;
        let judged = runs.iter().filter(|run| !run.driver_costs.is_empty());
        // Without kprobes what is missing would look like what is not registered.
        hooks.is_known().then(|| Self {
            hooks: hooks.list.iter().collect(),
            unknown: &hooks.unknown,
            called: runs.iter().flat_map(|run| stems(run)).collect(),
            in_operations: judged.flat_map(|run| stems(run)).collect(),
        })
    }

    fn reached(&self, hook: &Hook) -> bool {
        hook.handlers.iter().all(|name| self.called.contains(&**name))
    }
}

/// Names of functions that were called, without the number that tells those of one name apart.
fn stems(run: &Recording) -> impl Iterator<Item = &str> {
    called(run).filter_map(|name| name.split('#').next())
}

/// Functions of the driver that were called, whether they were asked for or not.
pub fn called(run: &Recording) -> impl Iterator<Item = &str> {
    let of_tree = run.call_tree.iter().flat_map(|tree| {
        let ran = tree.nodes.iter().filter(|node| node.calls > 0);
        ran.filter_map(|node| tree.functions.get(node.function as usize))
    });
    let of_tree = of_tree.filter(|function| function.module.is_some());
    let handlers = run.handlers.iter().filter(|handler| handler.count > 0);
    of_tree.map(|function| &*function.name).chain(handlers.map(|handler| &*handler.name))
}

/// Takes pairs that are alike out of both.
fn pairs<'a>(
    old: &mut Vec<&'a Hook>,
    new: &mut Vec<&'a Hook>,
    is_like: &dyn Fn(&Hook, &Hook) -> bool,
) -> Vec<(&'a Hook, &'a Hook)> {
    let mut found = Vec::new();
    old.retain(|was| {
        let Some(at) = new.iter().position(|is| is_like(was, is)) else { return true };
        found.push((*was, new.remove(at)));
        false
    });
    found
}

/// In what a hook is registered otherwise.
fn change(was: &Hook, is: &Hook) -> String {
    let [before, after] = [was, is].map(|hook| {
        let most = hook.maxactive.map_or("-".to_owned(), |most| most.to_string());
        [
            ("a", hook.kind.name().to_owned()),
            ("calls", hook.handlers.join(", ")),
            ("maxactive", most),
            ("hit by", hook.state.map_or("-", ProbeState::name).to_owned()),
        ]
    });
    let facts = before.into_iter().zip(after).filter(|(was, is)| was != is);
    let words = facts.map(|((what, was), (_, is))| format!("{what} {is}, was {was}"));
    format!("{is}: {}", words.format("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_kernel::hooks::Hooks;
    use profiler_kernel::module::ModuleFacts;
    use profiler_recording::measure::Losses;
    use profiler_recording::{CallTree, Distribution, HandlerRecording};
    use profiler_tests::recording::runs;

    /// Hooks as a file has them.
    fn hooks(list: &[(&str, &str, &[&str], &str)]) -> Hooks {
        let hook = |(kind, place, handlers, state): &(&str, &str, &[&str], &str)| {
            let mut hook =
                serde_json::json!({ "kind": kind, "place": place, "handlers": handlers });
            if !state.is_empty() {
                hook["state"] = (*state).into();
            }
            if *kind == "kretprobe" {
                hook["maxactive"] = 16.into();
            }
            hook
        };
        let list: Vec<_> = list.iter().map(hook).collect();
        serde_json::from_value(serde_json::json!({ "list": list })).unwrap()
    }

    const CONNECT: (&str, &str, &[&str], &str) =
        ("kretprobe", "__sys_connect", &["entry", "exit"], "ftrace");
    const BIND: (&str, &str, &[&str], &str) = ("kprobe", "__sys_bind+0x10", &["bind"], "optimized");
    const TRACE: (&str, &str, &[&str], &str) = ("tracepoint", "sys_exit", &["trace"], "");

    /// A run in which these handlers were called, with the cost of an operation.
    fn run(hooks: Hooks, called: &[&str]) -> Recording {
        let mut run = runs(&[CallTree::default()]).remove(0);
        run.modules = vec![ModuleFacts { hooks: Some(hooks), ..ModuleFacts::default() }];
        let none = Distribution::default();
        let handler = |name: &&str| HandlerRecording {
            name: (*name).to_owned(),
            module: None,
            by_glob: false,
            backend: None,
            count: 9,
            sum_ns: 0,
            min_ns: None,
            max_ns: None,
            own_instructions: None,
            losses: Losses::default(),
            repeated: None,
            ordering: None,
            histogram: none.clone(),
        };
        run.handlers = called.iter().map(handler).collect();
        run.driver_costs = vec![
            serde_json::from_str(
                r#"{"load":"connect","operations":9,"without_instructions":1.0,"with_instructions":2.0}"#,
            )
            .unwrap(),
        ];
        run
    }

    fn compared(base: &Recording, candidate: &Recording, rule: &Rule) -> HookReport {
        HookReport::of(&[base], &[candidate], rule, &|_| true, &|_| None).unwrap()
    }

    #[test]
    fn hooks_more_and_less_and_twice_are_told() {
        let all = ["entry", "exit", "bind", "trace"];
        let old = run(hooks(&[CONNECT, BIND]), &all);
        let new = run(hooks(&[CONNECT, CONNECT, TRACE]), &all);
        let found = compared(&old, &new, &Rule::default());
        let expected = ["kretprobe __sys_connect (entry, exit)", "tracepoint sys_exit (trace)"];
        assert_eq!(found.more, expected);
        assert_eq!(found.less, ["kprobe __sys_bind+0x10 (bind)"]);
        assert_eq!(found.undecided, ["kprobe __sys_bind+0x10 (bind) is no longer registered"]);
        assert_eq!((found.hooks, found.unreached.len()), (4, 0));
        let allowed = Rule { allow_vanished: true, ..Rule::default() };
        assert_eq!(compared(&old, &new, &allowed).undecided, [""; 0]);
        assert!(compared(&old, &old, &Rule::default()).is_same());
        let unknown = runs(&[CallTree::default()]).remove(0);
        assert_eq!(HookReport::of(&[&old], &[&unknown], &allowed, &|_| true, &|_| None), None);
        let of_bind = |hook: &Hook| hook.handlers.contains(&"bind".to_owned());
        let narrow = HookReport::of(&[&old], &[&new], &allowed, &of_bind, &|_| None).unwrap();
        assert_eq!((narrow.hooks, narrow.more.len(), narrow.less.len()), (1, 2, 1));
    }

    #[test]
    fn a_hook_that_is_registered_otherwise_is_one_change() {
        let slow = ("kprobe", "__sys_bind+0x10", &["bind"][..], "breakpoint");
        let probe = ("kprobe", "__sys_connect", &["entry"][..], "ftrace");
        let old = run(hooks(&[CONNECT, BIND]), &["entry", "exit", "bind"]);
        let new = run(hooks(&[slow, probe]), &["entry", "bind"]);
        let found = compared(&old, &new, &Rule::default());
        assert_eq!(
            found.changed,
            [
                "kprobe __sys_connect (entry): a kprobe, was kretprobe; calls entry, was entry, exit; maxactive -, was 16",
                "kprobe __sys_bind+0x10 (bind): hit by breakpoint, was optimized",
            ]
        );
        assert_eq!((found.more.len(), found.less.len(), found.undecided.len()), (0, 0, 0));
    }

    #[test]
    fn a_new_hook_that_no_load_reached_is_not_decided_unless_accepted() {
        let (old, new) = (run(hooks(&[BIND]), &["bind"]), run(hooks(&[BIND, TRACE]), &["bind"]));
        let found = compared(&old, &new, &Rule::default());
        assert_eq!(found.undecided, ["tracepoint sys_exit (trace): no load reached it"]);
        assert_eq!(found.unreached, ["tracepoint sys_exit (trace)"]);
        let accepted = |pattern| Rule {
            accept_new: vec![glob::Pattern::new(pattern).unwrap()],
            ..Rule::default()
        };
        for pattern in ["tra*", "sys_exit"] {
            assert_eq!(compared(&old, &new, &accepted(pattern)).undecided, [""; 0]);
        }
        assert_eq!(compared(&old, &new, &accepted("bind")).undecided.len(), 1);
        // Reached, though it is none of the handlers that were asked for.
        let mut by_tree = run(hooks(&[BIND, TRACE]), &["bind"]);
        by_tree.call_tree = serde_json::from_value(serde_json::json!({
            "functions": [{"name": "trace", "module": "driver"}], "places": [],
            "nodes": [{"parent": null, "function": 0, "calls": 9, "instructions": 90, "iterations": 0}],
        }))
        .unwrap();
        assert_eq!(compared(&old, &by_tree, &Rule::default()).undecided, [""; 0]);
        // The same of functions that share their names with others.
        let twins = run(hooks(&[BIND, TRACE]), &["bind#2", "trace#1"]);
        let found = compared(&old, &twins, &Rule::default());
        assert_eq!((found.undecided.len(), found.unreached.len()), (0, 0), "{found:?}");
        // Reached, but under no load of which an operation is judged.
        let mut reached = run(hooks(&[BIND, TRACE]), &["bind", "trace"]);
        reached.driver_costs.clear();
        let found = compared(&old, &reached, &Rule::default());
        let text = "tracepoint sys_exit (trace): no operation is judged that it lies on";
        assert_eq!(found.undecided, [text]);
    }
}
