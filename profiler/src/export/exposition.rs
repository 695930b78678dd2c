//! Prometheus' text format 0.0.4 and OpenMetrics 1.0: how metrics are written.

use std::fmt::Display;

/// What a family's samples are, by Prometheus' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1; its labels are the information.
    Info,
    /// Figures by bucket.
    Histogram,
}

impl Kind {
    /// The name of a family of this kind without what OpenMetrics adds to it in samples.
    pub fn base(self, name: &str) -> &str {
        let suffix = match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        };
        name.strip_suffix(suffix).unwrap_or(name)
    }

    /// The unit of a family: the last word of its base name.
    pub fn unit(self, name: &str) -> Option<&str> {
        let last = self.base(name).rsplit('_').next();
        last.filter(|last| ["seconds", "bytes", "ratio", "instructions"].contains(last))
    }
}

/// A text that is being written.
pub(crate) struct Exposition {
    open_metrics: bool,
    text: String,
}

impl Exposition {
    pub(crate) fn new(open_metrics: bool) -> Self {
        Self { open_metrics, text: String::new() }
    }

    /// The head of a family, by the name that its samples have in Prometheus.
    pub(crate) fn family(&mut self, name: &str, help: &str, kind: Kind) {
        // Format 0.0.4 has no type `info`, and names counters as their samples.
        let (head, shown) = match (self.open_metrics, kind) {
            (true, _) => (kind.base(name), kind),
            (false, Kind::Info) => (name, Kind::Gauge),
            (false, _) => (name, kind),
        };
        self.text.push_str(&format!("# HELP {head} {help}\n# TYPE {head} {shown}\n"));
        if let (true, Some(unit)) = (self.open_metrics, kind.unit(name)) {
            self.text.push_str(&format!("# UNIT {head} {unit}\n"));
        }
    }

    /// A sample.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = match labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.iter().map(pair).collect::<Vec<_>>().join(",")),
        };
        self.text.push_str(&format!("{name}{labels} {value}\n"));
    }

    /// The samples of a histogram: `buckets` are upper bounds with the number of figures up to there, infinity last.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (f64, u64)>,
        (sum, count): (f64, u64),
    ) {
        let bucket = format!("{name}_bucket");
        for (bound, up_to) in buckets {
            let bound = shortest(bound);
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), up_to);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.open_metrics {
            self.text.push_str("# EOF\n");
        }
        self.text.into_bytes()
    }
}

/// The number of calls up to each bound, which must come in ascending order, by the upper ends and counts of `buckets`.
pub(crate) fn cumulative(buckets: impl Iterator<Item = (u64, u64)>) -> impl FnMut(u64) -> u64 {
    let mut buckets = buckets.peekable();
    let mut count = 0_u64;
    move |bound| {
        while let Some((_, more)) = buckets.next_if(|(to, _)| *to <= bound) {
            count = count.saturating_add(more);
        }
        count
    }
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// `a="b"`, with the value escaped.
fn pair((name, value): &(&str, &str)) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// A bound as Go's `%g` writes it. Prometheus writes those of protobuf so: a bound is one series, however it was scraped.
fn shortest(bound: f64) -> String {
    if bound == f64::INFINITY {
        return "+Inf".to_owned();
    }
    if bound >= 1e-4 {
        return bound.to_string();
    }
    let text = format!("{bound:e}");
    match text.split_once("e-") {
        Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
        None => text,
    }
}
