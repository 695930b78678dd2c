"""What people use for such files: a regular expression a line, values in lists, sorted at the end.
The import is measured against it: `script.py TRACE OUT.json`."""

import json
import re
import sys

LINE = re.compile(r"funcgraph_entry:\s+(?:[+!#*@$]\s+)?(\d+\.\d+) us\s+\|\s+(\w+)\(\);")

durations = {}
with open(sys.argv[1]) as trace:
    for line in trace:
        found = LINE.search(line)
        if found:
            durations.setdefault(found.group(2), []).append(float(found.group(1)))

figures = {}
for name, values in durations.items():
    values.sort()
    n = len(values)
    figures[name] = {"count": n, "average": sum(values) / n}
    for percent in (90, 95, 99):
        figures[name]["p%d" % percent] = values[int(percent / 100 * n) - 1]

with open(sys.argv[2], "w") as out:
    json.dump(figures, out)
