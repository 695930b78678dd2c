"""Reads exported files with implementations that share no code with the profiler, and prints what
they hold as JSON: `read.py FORMAT FILE`."""

import json
import sys

PERCENTILES = [0, 10, 25, 50, 75, 90, 95, 99, 99.9, 99.99, 100]


def hlog(path):
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogReader

    reader = HistogramLogReader(path, HdrHistogram(1, 60_000_000_000, 3))
    lines = []
    while True:
        histogram = reader.get_next_interval_histogram()
        if histogram is None:
            return lines
        lines.append({
            "tag": histogram.get_tag(),
            "start_ms": histogram.get_start_time_stamp(),
            "end_ms": histogram.get_end_time_stamp(),
            "count": histogram.get_total_count(),
            "digits": histogram.significant_figures,
            "values": [histogram.get_value_at_percentile(p) for p in PERCENTILES],
        })


if __name__ == "__main__":
    read = {"hlog": hlog}[sys.argv[1]]
    json.dump(read(sys.argv[2]), sys.stdout)
