//! The format that a scraper asks for.

use std::cmp::Reverse;

/// A format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Prometheus text 0.0.4: the default.
    Text,
    /// `io.prometheus.client.MetricFamily`, delimited: the only one with native histograms.
    Protobuf,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }

    /// The format that an `Accept` header gives the highest quality, and of equals the one that it names first; text if it wants
    /// neither.
    pub fn of(accept: &str) -> Self {
        let ranges: Vec<(String, u16)> = accept.split(',').map(range).collect();
        let quality = |format: &Self| {
            // What names a format most precisely counts for it.
            let found = format.ranges().iter().find_map(|name| {
                let place = ranges.iter().position(|(range, _)| range == *name)?;
                Some((ranges[place].1, Reverse(place)))
            });
            found.filter(|(quality, _)| *quality > 0)
        };
        // Of equals, such as by `*/*`, `max_by_key` takes the last.
        let best = [Self::Protobuf, Self::Text].into_iter().max_by_key(quality);
        best.unwrap_or(Self::Text)
    }

    /// The media ranges that include it, the most precise first. `application/*` may be any encoding of the type.
    const fn ranges(self) -> &'static [&'static str] {
        match self {
            Self::Text => &["text/plain", "text/*", "*/*"],
            Self::Protobuf => &[DELIMITED, "*/*"],
        }
    }
}

/// The only encoding of this type that we have.
const DELIMITED: &str = "application/vnd.google.protobuf;encoding=delimited";

/// A media range, without parameters that tell no format of ours from others, and its quality in thousandths: 1 unless it says
/// less.
fn range(text: &str) -> (String, u16) {
    let text = text.to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let mut name = parts.next().unwrap_or_default().to_owned();
    let mut quality = 1000;
    for part in parts {
        match part.split_once('=') {
            Some(("encoding", encoding)) if DELIMITED.starts_with(&name) => {
                name += &format!(";encoding={encoding}")
            }
            Some(("q", given)) => {
                let given = given.parse().unwrap_or(1.0_f64);
                quality = (given * 1000.0).clamp(0.0, 1000.0) as u16;
            }
            _ => {}
        }
    }
    (name, quality)
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
            (&format!("text/plain;q=0.3,{protobuf};q=0.6,*/*;q=0.1"), Format::Protobuf),
            (&format!("{protobuf}; q=0, */*; q=0.1"), Format::Text),
            (&format!("{protobuf};q=0"), Format::Text),
            ("text/plain;q=0, */*;q=0.5", Format::Protobuf),
            ("application/*", Format::Text),
            (&format!("text/plain;encoding=x, {protobuf};q=0.5"), Format::Text),
            (&format!("text/plain, {protobuf}"), Format::Text),
            (&format!("{protobuf}, text/plain"), Format::Protobuf),
            (&format!("text/plain;q=nan,{protobuf};q=2,*/*;q=x;q"), Format::Protobuf),
            (";;;,,,=;q,\u{fe}", Format::Text),
        ] {
            assert_eq!(Format::of(accept), format, "{accept}");
        }
    }
}
