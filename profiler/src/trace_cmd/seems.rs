//! Identifies a file without a function_graph call, and says what to do with it.

use memchr::memmem;

use super::collect::Counts;

/// What a file with this head and these counts seems to be, and the remedy: part of a sentence.
#[must_use]
pub fn seems(head: &[u8], counts: &Counts) -> String {
    binary(head).map_or_else(|| text(head, counts), str::to_owned)
}

fn binary(head: &[u8]) -> Option<&'static str> {
    let magics: [(&[u8], &str); 9] = [
        (
            b"\x17\x08\x44tracing",
            "it is a trace.dat of trace-cmd: import the text that `trace-cmd report -i FILE` prints",
        ),
        (b"\x1f\x8b", "it seems to be compressed: pipe it through `zcat`, and import `-`"),
        (
            b"\x28\xb5\x2f\xfd",
            "it seems to be compressed: pipe it through `zstdcat`, and import `-`",
        ),
        (b"\xfd7zXZ\0", "it seems to be compressed: pipe it through `xzcat`, and import `-`"),
        (b"BZh", "it seems to be compressed: pipe it through `bzcat`, and import `-`"),
        (b"PERFILE2", "it is a recording of perf: this imports text of function_graph alone"),
        (b"\x7fELF", "it is a program or a kernel module"),
        (b"\xff\xfe", "it is UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"),
        (b"\xfe\xff", "it is UTF-16 text: convert it with `iconv -f UTF-16 -t UTF-8`"),
    ];
    let known = magics.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, says)| *says);
    known.or_else(|| {
        head.contains(&0).then_some("it is binary: name the text that `trace-cmd report` prints")
    })
}

fn text(head: &[u8], counts: &Counts) -> String {
    let has = |needle: &str| memmem::find(head, needle.as_bytes()).is_some();
    let start = head.trim_ascii_start();
    let record = "record with `trace-cmd record -p function_graph -l HANDLER`";
    if counts.unreturned > 0 || counts.unmatched_returns > 0 {
        format!(
            "it is a part of a trace, so import the whole of it: calls without their return {}, \
             returns without their call {}",
            counts.unreturned, counts.unmatched_returns
        )
    } else if counts.unparsable > 0 {
        let first = counts.faults.first();
        format!(
            "each of its lines of function_graph ({}) has a fault, the first, line {}, {}: it was \
             cut or edited, so make it again",
            counts.unparsable,
            first.map_or(0, |fault| fault.line),
            first.map_or("", |fault| fault.fault.describe())
        )
    } else if start.starts_with(b"{") && has("profiler/profile") {
        "it is a recording of this program: print it with `profiler report`".to_owned()
    } else if start.starts_with(b"{") || start.starts_with(b"[") {
        "it seems to be JSON".to_owned()
    } else if let Some((tool, what, command)) = other_tool(&has) {
        format!(
            "it seems to be {tool}'s {what}, which has no single calls: measure with `{command}`"
        )
    } else if counts.overlong > 0 {
        "it has lines of more than 256 KiB, which no trace has".to_owned()
    } else if has("# tracer: function\n") || has(": function:") {
        format!("it is a trace of the function tracer, which takes no times: {record}")
    } else if has("# tracer: function_graph") {
        "it is a trace of function_graph without one call in it: was the function called?"
            .to_owned()
    } else if has("# tracer: ") {
        format!("it is a trace of ftrace without function_graph: {record}")
    } else if counts.cpus.is_some() || has_cpu_column(head) {
        format!("it seems to be a trace of other events, without one call: {record}")
    } else {
        "it is text of another kind: name the text that `trace-cmd report` prints, or ftrace's \
         `trace`"
            .to_owned()
    }
}

/// The tool whose output this is, what that is, and the command of this program for it.
fn other_tool(has: &dyn Fn(&str) -> bool) -> Option<(&'static str, &'static str, &'static str)> {
    const RUN: &str = "profiler run --module MODULE --handler FUNCTION --builtin KIND";
    const TREE: &str = "profiler explain --live --module MODULE --handler FUNCTION --builtin KIND";
    let all = [
        ("DURATION     |      COUNT | GRAPH", "perf ftrace latency", "histogram", RUN),
        (": count     distribution", "funclatency", "histogram", RUN),
        (": count    distribution", "funclatency", "histogram", RUN),
        (" |@", "bpftrace", "histogram", RUN),
        ("Attaching ", "bpftrace", "text", RUN),
        ("# DURATION     TID     FUNCTION", "uftrace", "call tree", TREE),
        ("# Function Call Graph for", "uftrace", "call tree", TREE),
        ("Total time   Self time       Calls", "uftrace", "report", RUN),
    ];
    let found = all.into_iter().find(|(needle, ..)| has(needle));
    found.map(|(_, tool, what, command)| (tool, what, command))
}

/// Whether a line has a CPU like `[001]`, as events have.
fn has_cpu_column(head: &[u8]) -> bool {
    head.windows(7).any(|part| {
        matches!(part, [b' ', b'[', digits @ .., b']', b' '] if digits.iter().all(u8::is_ascii_digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace_cmd::collect::Collector;

    #[test]
    fn files_are_told_apart() {
        let table: [(&[u8], &str); 22] = [
            (b"\x17\x08\x44tracing6\0", "trace-cmd report -i"),
            (b"\x1f\x8b\x08\0", "zcat"),
            (b"\x28\xb5\x2f\xfd", "zstdcat"),
            (b"PERFILE2", "perf"),
            (b"\x7fELF\x02", "program"),
            (b"\xff\xfec\0p\0", "iconv"),
            (b"\xff\x00\x01", "binary"),
            (b"{\"schema\": \"profiler/profile\"}", "profiler report"),
            (b"[1]", "JSON"),
            (b"# tracer: function\n#\n", "takes no times"),
            (b"# tracer: function_graph\n#\n", "was the function called"),
            (b"# tracer: nop\n#\n", "without function_graph"),
            (b"cpus=8\n bash-1 [000] 1.0: sched_switch: x\n", "other events"),
            (
                b"Tracing 1 functions for \"f\"... Hit Ctrl-C to end.\n\n     nsecs               : count     distribution\n",
                "funclatency's histogram, which has no single calls: measure with `profiler run ",
            ),
            (b"     usecs               : count    distribution\n", "funclatency"),
            (b"@ns: \n[512, 1K)             3 |@@@@@@@@@@|\n", "bpftrace"),
            (
                b"#   DURATION     |      COUNT | GRAPH                |\n     0 - 1    us |    4 | ### |\n",
                "perf ftrace latency",
            ),
            (b"# DURATION     TID     FUNCTION\n   1.000 us [ 1234] | main();\n", "uftrace's call tree"),
            (b"  Total time   Self time       Calls  Function\n", "uftrace's report"),
            (b"name = \"a-b\" [x] y: z\n", "another kind"),
            (b" 0)   0.5 us   |  }\n", "part of a trace"),
            (b" 0)   zz us   |  a();\n", "line 1"),
        ];
        for (bytes, expected) in table {
            let mut collector = Collector::default();
            bytes.split(|&byte| byte == b'\n').for_each(|line| collector.line(line));
            let (_, counts) = collector.finish();
            let says = seems(bytes, &counts);
            assert!(says.contains(expected), "{says} lacks {expected}");
        }
    }
}
