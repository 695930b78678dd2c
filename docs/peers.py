"""What a hit costs under other tools and this one: runs in a VM under virtual time, where a nanosecond is an instruction.

Each tool measures one function, told to do so as its manual page has it, while a load calls that function once an operation. What an
operation takes more than without the tool is what the tool adds to a hit. Writes the tables of docs/peers.md, which says how it is run.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

INSIDE = "a handler that runs inside a kprobe, where the kernel skips every other kprobe"
OUTSIDE = "a function of the kernel with a kretprobe of the driver"
COLUMNS = ["| tool | version | adds a hit | to the limit | hits seen | says |", "|---|---|---|---|---|---|"]
BACKENDS = ["fsession", "fentry", "kprobe-session", "kprobe", "function-graph"]
PACKAGES = ["libbpf-tools", "bpfcc-tools", "bpftrace", "linux-perf", "trace-cmd"]
TRACED = "/dev/shm/trace.dat"
# Longest time until a tool has compiled its programs and attached them, in seconds of the VM.
ATTACHING = 300


def versions_of(options):
    """Versions of all tools by package."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *PACKAGES]
    found = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    own = subprocess.run([options.profiler, "--version"], check=True, capture_output=True, text=True).stdout
    return dict(line.split(" ", 1) for line in (found + own).splitlines())


def run_load(options, more):
    """Runs the load; gives its profile, or None and the program's words."""
    file = "/dev/shm/profile.json"
    if os.path.exists(file):
        os.remove(file)
    line = [options.profiler, "run", "--quiet", "--builtin", "connect", "--load-dir", "/dev/shm", "--json", file]
    ended = subprocess.run([*line, "--operations", str(options.operations), *more], capture_output=True, text=True)
    if not os.path.exists(file):
        return None, ended.stderr
    with open(file) as text:
        return json.load(text), ended.stderr


def instructions(profile):
    """Of one operation."""
    outcome = profile["loads"][0]["outcome"]
    return outcome["elapsed_ns"] / outcome["operations"]


def without_tools(options):
    """Instructions of one operation without any tool."""
    profile, words = run_load(options, ["--no-probe"])
    if profile is None:
        sys.exit(f"the load does not run: {words}")
    return instructions(profile)


def probes(function):
    """What the kernel has on a function."""
    found = []
    for path in ["/sys/kernel/tracing/enabled_functions", "/sys/kernel/debug/kprobes/list"]:
        with open(path) as lines:
            found += [line for line in lines if re.search(rf"\b{function}\b", line)]
    return found


def median(buckets):
    """Sum of a histogram, and the bucket of its median."""
    seen = sum(count for _, count in buckets)
    passed = 0
    for label, count in buckets:
        passed += count
        if seen and 2 * passed >= seen:
            return seen, f"median in {label}"
    return 0, None


def log2_buckets(text):
    found = re.findall(r"^\s+(\d+) -> (\d+)\s+: (\d+)", text, re.MULTILINE)
    return median([(f"{low} to {high} ns", int(count)) for low, high, count in found])


def bcc_average(text):
    seen, says = log2_buckets(text)
    average = re.search(r"avg = (\d+) nsecs", text)
    return seen, f"average {average[1]} ns" if average else says


def bpftrace_buckets(text):
    found = re.findall(r"^\[(\w+), (\w+)\)\s+(\d+) \|", text, re.MULTILINE)
    return median([(f"{low} to {high} ns", int(count)) for low, high, count in found])


def perf_buckets(text):
    found = re.findall(r"^\s*(\d+) - (\d+|\.\.\.)\s+(ns|us|ms|s) \|\s+(\d+) \|", text, re.MULTILINE)
    return median([(f"{low} to {high} {unit}", int(count)) for low, high, unit, count in found])


def trace_cmd_average(_):
    report = subprocess.run(["trace-cmd", "report", "-i", TRACED], capture_output=True, text=True).stdout
    os.remove(TRACED)
    found = [float(us) for us in re.findall(r"funcgraph_(?:entry|exit):.*?([\d.]+) us", report)]
    return len(found), f"average {1000 * sum(found) / len(found):.0f} ns" if found else None


def pair(entry, exit, function):
    """A bpftrace script."""
    return (
        f"{entry}:{function} {{ @start[tid] = nsecs; }} "
        f"{exit}:{function} /@start[tid]/ {{ @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }}"
    )


def tools(function):
    """Name, package, command line, and what reads its output."""
    bpftrace = lambda *of: ["bpftrace", "-e", pair(*of, function)]
    graph = ["trace-cmd", "record", "-p", "function_graph", "-l", function, "-o", TRACED]
    return [
        ("funclatency of libbpf-tools", "libbpf-tools", ["/usr/sbin/funclatency", function], log2_buckets),
        ("funclatency of bcc", "bpfcc-tools", ["/usr/sbin/funclatency-bpfcc", function], bcc_average),
        ("bpftrace, kprobe", "bpftrace", bpftrace("kprobe", "kretprobe"), bpftrace_buckets),
        ("bpftrace, kfunc", "bpftrace", bpftrace("kfunc", "kretfunc"), bpftrace_buckets),
        ("perf ftrace latency", "linux-perf", ["perf", "ftrace", "latency", "-a", "-n", "-T", function], perf_buckets),
        ("trace-cmd, function_graph", "trace-cmd", graph, trace_cmd_average),
    ]


def of_tool(options, function, line, read):
    """Has a tool measure until it is interrupted."""
    before = probes(function)
    with open("/dev/shm/output", "w+") as output:
        tool = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, cwd="/dev/shm")
        waiting = time.monotonic()
        while probes(function) == before and tool.poll() is None and time.monotonic() < waiting + ATTACHING:
            time.sleep(0.1)
        time.sleep(2)
        profile = None
        if tool.poll() is None:
            profile, _ = run_load(options, ["--no-probe"])
            time.sleep(2)
            tool.send_signal(signal.SIGINT)
        try:
            tool.wait(300)
        except subprocess.TimeoutExpired:
            tool.kill()
            tool.wait()
        output.seek(0)
        text = output.read()
    print(f"--- {line}\n{text}", flush=True)
    if profile is None:
        words = [words for words in text.splitlines() if words.strip()]
        return None, 0, None, words[-1] if words else f"it ended with {tool.returncode}"
    return profile, *read(text), None


def of_backend(options, function, backend):
    """Measures by this program."""
    profile, words = run_load(options, [*options.target(function), "--handler", function, "--backend", backend])
    if profile is None:
        # The line after `cannot be measured`, which begins with the backend; the verifier's words may follow.
        reasons = [line for line in words.splitlines() if line.startswith("  ")]
        return None, 0, None, reasons[0].split(": ", 1)[-1].removesuffix("; the verifier said:") if reasons else words.strip()
    handler = profile["handlers"][0]
    count = handler["count"]
    return profile, count, f"average {handler['sum'] / count:.0f} ns" if count else None, None


def limit(options, function):
    """Instructions that a pair adds that reads the clock and does nothing else."""
    file = "/dev/shm/cost.json"
    line = [options.profiler, "cost", *options.target(function), "--handler", function, "--builtin", "connect"]
    line += ["--operations", str(options.operations), "--rounds", "3", "--clock", "virtual", "--json", file]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    with open(file) as text:
        return json.load(text)["limit_per_hit_ns"]


def row(tool, version, least, added, made, seen, says, why_not):
    """A line of the table."""
    if added is None:
        why = (why_not or "it did not attach").replace("|", "\\|")
        return f"| {tool} | {version} | did not attach | | | {why} |"
    return f"| {tool} | {version} | {added:.0f} | {added / least:.2f} | {seen} of {made} | {says or 'nothing'} |"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--profiler", required=True)
    # What a load does once (0.2 million instructions now and then) is 10 in each of so many.
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--output", required=True)
    parser.add_argument("functions", nargs="+")
    options = parser.parse_args()
    options.target = lambda function: ["--module", "hids_testbed"] * function.endswith("_handler")
    versions = versions_of(options)
    os.environ["PYTHONUNBUFFERED"] = "1"

    # From memory: a wait for a file of the host takes any time under virtual time.
    options.profiler = shutil.copy(options.profiler, "/dev/shm/profiler")
    bare = without_tools(options)
    lines = []
    for function in options.functions:
        least = limit(options, function)
        what = INSIDE if function.endswith("_handler") else OUTSIDE
        lines += ["", f"`{function}`, {what};", f"the limit is {least:.1f} instructions:", "", *COLUMNS]
        measured = [(f"profiler, {name}", "profiler", of_backend(options, function, name)) for name in BACKENDS]
        for name, package, line, read in tools(function):
            measured.append((name, package, of_tool(options, function, line, read)))
        for name, package, (profile, seen, says, why_not) in measured:
            added = instructions(profile) - bare if profile else None
            made = profile["loads"][0]["outcome"]["operations"] if profile else None
            lines.append(row(name, versions[package], least, added, made, seen, says, why_not))
    again = without_tools(options)
    if abs(again - bare) > 0.01 * bare:
        sys.exit(f"an operation took {bare:.1f} instructions at first and {again:.1f} at last: waits are in the figures")
    first = [
        f"on Linux {os.uname().release}, with the tools of Debian's packages.",
        f"An operation took {bare:.0f} instructions before all tools, from which they are counted, and {again:.0f} after them.",
    ]
    with open(options.output, "w") as output:
        output.writelines(f"{line}\n" for line in first + lines)


main()
