//! The live display of a run on a terminal, which a pipe does not get.

use std::process::Command;

use crate::cli::Ended;
use crate::testbed;

const RUN: &str = "run --module hids_testbed --handler ptrace_pre_handler --builtin ptrace";
const HEAD: &str = "TP50 [us]";

/// A run on a terminal of its own, with the keys typed there.
fn on_a_terminal(more: &str, interrupt_after: Option<&str>) -> Ended {
    testbed::load();
    let program = env!("CARGO_BIN_EXE_profiler");
    let before = interrupt_after.map_or(String::new(), |after| format!("timeout -s INT {after} "));
    let line = format!("stty rows 30 cols 140; {before}{program} {RUN} {more}; stty -a");
    Ended::of(Command::new("script").args(["-qec", &line, "/dev/null"]))
}

fn assert_terminal_is_whole(text: &str) {
    // The cursor is visible again, and typed keys are echoed.
    let (hidden, shown) = (text.rfind("\u{1b}[?25l"), text.rfind("\u{1b}[?25h"));
    assert!(hidden <= shown, "{text:?}");
    let settings = text.rfind("speed ").map_or("", |at| &text[at..]);
    for word in ["echo", "icanon", "opost"] {
        assert!(settings.split_whitespace().any(|set| set == word), "no `{word}`: {settings}");
    }
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_terminal_shows_the_handlers_while_they_are_measured() {
    let text = on_a_terminal("--duration 6s", None).stdout;
    assert!(text.matches(HEAD).count() >= 2, "drawn again and again: {text:?}");
    // The terminal's own line ends part the rows, so they are found by the handler's name.
    let busy = text.split("ptrace_pre_handler").skip(1).any(|row| {
        let rate = row.split_whitespace().next().and_then(|rate| rate.parse::<u64>().ok());
        rate > Some(100)
    });
    assert!(busy, "no row with a rate: {text:?}");
    assert_terminal_is_whole(&text);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn a_terminal_is_whole_after_an_interrupt() {
    let text = on_a_terminal("--duration 60s", Some("7")).stdout;
    assert!(text.contains(HEAD), "{text:?}");
    assert!(text.contains("ended by SIGINT"), "{text:?}");
    assert_terminal_is_whole(&text);
}

#[test]
#[ignore = "VM 6.1: not about the kernel"]
fn nothing_is_drawn_where_it_is_not_wanted() {
    // It is drawn each second.
    for option in ["--no-progress", "--quiet"] {
        let text = on_a_terminal(&format!("{option} --duration 3s"), None).stdout;
        assert!(!text.contains(HEAD), "{option}: {text:?}");
        assert!(text.contains("ptrace_pre_handler"), "{option}: no table at the end: {text:?}");
    }
    let piped = Ended::of(&mut crate::cli::profiler(&format!("{RUN} --duration 3s")));
    assert!(!piped.stderr.contains(HEAD) && !piped.stderr.contains('\u{1b}'), "{}", piped.stderr);
}
