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

    /// The format that an `Accept` header prefers; the first of equals, and text if it names none of ours.
    pub fn of(accept: &str) -> Self {
        let ranges = accept.split(',').filter_map(range_of);
        let first = (0.0, Self::Text);
        ranges.fold(first, |best, range| if range.0 > best.0 { range } else { best }).1
    }
}

/// The quality and the format of a media range; `None` if we do not have it.
fn range_of(range: &str) -> Option<(f64, Format)> {
    let range = range.to_ascii_lowercase();
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?;
    let (mut quality, mut encoding) = (1.0, "");
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let value = value.trim().trim_matches('"');
        match name.trim() {
            "q" => quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?,
            "encoding" => encoding = value,
            _ => {}
        }
    }
    match (media, encoding) {
        ("application/vnd.google.protobuf", "delimited") => Some((quality, Format::Protobuf)),
        ("text/plain" | "text/*" | "*/*", _) => Some((quality, Format::Text)),
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
            (&format!("{protobuf};q=0.7, text/plain; q=0.8"), Format::Text),
            ("Application/Vnd.Google.Protobuf; Encoding=\"delimited\"; Q=0.2", Format::Protobuf),
            (&format!("{protobuf};q=0"), Format::Text),
            (&format!("{protobuf};q=nan"), Format::Text),
            (&format!("{protobuf};q=17"), Format::Text),
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
