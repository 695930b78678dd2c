//! The format that a scraper asks for.

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4: the default.
    Text,
    /// OpenMetrics text 1.0.
    OpenMetrics,
    /// `io.prometheus.client.MetricFamily`, delimited: the only one with native histograms.
    Protobuf,
}

impl Format {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }

    /// What an `Accept` header likes best; of equals the first, of nothing that is known the text. Prometheus itself answers a
    /// request that accepts nothing it has with text, too.
    pub fn of(accept: &str) -> Self {
        let mut best = (0.0, Self::Text);
        for range in accept.split(',') {
            if let Some((quality, format)) = range_of(range)
                && quality > best.0
            {
                best = (quality, format);
            }
        }
        best.1
    }
}

/// The quality and the format of a media range; `None` if it is none of ours.
fn range_of(range: &str) -> Option<(f64, Format)> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let mut quality = 1.0;
    let (mut version, mut proto, mut encoding) = (None, None, None);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => quality = value.parse().ok().filter(|q| (0.0..=1.0).contains(q))?,
            "version" => version = Some(value),
            "proto" => proto = Some(value),
            "encoding" => encoding = Some(value),
            _ => {}
        }
    }
    let format = match media.as_str() {
        "application/vnd.google.protobuf"
            if proto == Some("io.prometheus.client.MetricFamily")
                && encoding == Some("delimited") =>
        {
            Format::Protobuf
        }
        "application/openmetrics-text" if matches!(version, None | Some("1.0.0")) => {
            Format::OpenMetrics
        }
        "text/plain" if matches!(version, None | Some("0.0.4")) => Format::Text,
        "text/*" | "*/*" => Format::Text,
        _ => return None,
    };
    Some((quality, format))
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
                Format::OpenMetrics,
            ),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("application/json", Format::Text),
            ("application/openmetrics-text;version=0.0.1", Format::Text),
            (
                "application/openmetrics-text; version=\"1.0.0\"; q=0.9, text/plain; q=0.8",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text; q=0.7, text/plain; q=0.8", Format::Text),
            ("Application/OpenMetrics-Text;Q=0.2", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=nan", Format::Text),
            ("application/openmetrics-text;q=17", Format::Text),
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
