"""What people use for such files: the words of each line, durations in lists, sorted at the end. The
import is measured against it: `script.py TRACE OUT.json`. Regular expressions instead of words
make it slower."""

import json
import sys

durations = {}
with open(sys.argv[1]) as trace:
    for line in trace:
        if "funcgraph_entry:" not in line:
            continue
        words = line.split()
        try:
            unit = words.index("us")
        except ValueError:
            continue
        name = words[-1].rstrip("();")
        durations.setdefault(name, []).append(float(words[unit - 1]))

figures = {}
for name, values in durations.items():
    values.sort()
    n = len(values)
    figures[name] = {"count": n, "average": sum(values) / n}
    for percent in (90, 95, 99):
        # Between the two nearest values, as numpy does.
        below, part = divmod((n - 1) * percent, 100)
        low, high = values[below], values[min(below + 1, n - 1)]
        figures[name]["p%d" % percent] = low + (high - low) * part / 100

with open(sys.argv[2], "w") as out:
    json.dump(figures, out)
