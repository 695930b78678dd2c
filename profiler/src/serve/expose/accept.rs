//! The format that a scraper asks for.

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Prometheus text 0.0.4: the default.
    Text,
    /// `io.prometheus.client.MetricFamily`, delimited: the only one with native histograms.
    Protobuf,
}

impl Format {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }

    /// The first format of ours that an `Accept` header names, as scrapers list what they prefer first; text if it names none.
    pub fn of(accept: &str) -> Self {
        accept.split(',').find_map(named).unwrap_or(Self::Text)
    }
}

/// The format of a media range; `None` if we do not have it.
fn named(range: &str) -> Option<Format> {
    let range = range.to_ascii_lowercase();
    let mut parts = range.split(';').map(str::trim);
    match parts.next()? {
        "application/vnd.google.protobuf" => {
            parts.any(|part| part == "encoding=delimited").then_some(Format::Protobuf)
        }
        "text/plain" | "text/*" | "*/*" => Some(Format::Text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_liked_format_is_chosen() {
        let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        // What Prometheus 2.42 sends with native histograms on, and without.
        let native = format!(
            "{protobuf},application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        );
        for (accept, format) in [
            (native.as_str(), Format::Protobuf),
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::Text,
            ),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("application/json", Format::Text),
            (&format!("{protobuf};q=0.9, text/plain; q=0.8"), Format::Protobuf),
            (&format!("text/plain; q=0.8, {protobuf};q=0.7"), Format::Text),
            ("Application/Vnd.Google.Protobuf; Encoding=delimited; Q=0.2", Format::Protobuf),
            ("application/vnd.google.protobuf", Format::Text),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
                Format::Text,
            ),
            (";;;,,,=;q,\u{fe}", Format::Text),
        ] {
            assert_eq!(Format::of(accept), format, "{accept}");
        }
    }
}
