//! `serve.toml`: what the daemon measures, how, and where it goes.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};
use toml::Spanned;

use profiler_base::error::Failure;
use profiler_base::text::duration;
use profiler_base::toml_file::{self, Mistake};
use profiler_probe::Precision;
use profiler_recording::Backend;
use profiler_verdict::parse_share;

use super::otlp::Collector;

/// Time between two intervals' ends.
const INTERVAL: Duration = Duration::from_secs(60);

/// Shortest and longest interval: a file each.
const INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The configuration. The file has the same keys; missing ones are as in [`Config::default`].
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// The modules, in order, with their places in the file; each name once.
    #[serde(rename = "module")]
    pub modules: Vec<Spanned<Module>>,
    /// Resolution of all histograms.
    #[serde(deserialize_with = "precision")]
    pub precision: Precision,
    /// Time between two intervals' ends.
    #[serde(deserialize_with = "interval")]
    pub interval: Duration,
    /// Where the HTTP server listens; `None`: it does not.
    #[serde(deserialize_with = "listener")]
    pub listen: Option<SocketAddr>,
    /// Where completed intervals go.
    pub store: Store,
    /// Where figures are pushed to; `None`: they are not.
    pub otlp: Option<Otlp>,
    /// What probes may cost.
    pub budget: Budget,
}

/// A module and its handlers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Module {
    /// Its name, as the kernel writes it.
    #[serde(deserialize_with = "name_of_module")]
    pub name: String,
    /// Names or globs of handlers.
    #[serde(deserialize_with = "patterns")]
    pub handlers: Vec<String>,
    /// The only backend to use; `None`: the best for each handler.
    #[serde(default, deserialize_with = "backend")]
    pub backend: Option<Backend>,
}

/// Where completed intervals go.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Store {
    #[serde(deserialize_with = "folder")]
    pub folder: PathBuf,
    /// Bytes that all intervals may take.
    pub max_bytes: u64,
    /// Bytes that have to stay free in the file system.
    pub min_free_bytes: u64,
}

/// Where figures are pushed to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Otlp {
    #[serde(deserialize_with = "collector")]
    pub endpoint: Collector,
    /// Time between two pushes.
    #[serde(default = "minute", deserialize_with = "interval")]
    pub interval: Duration,
}

/// What probes may cost.
#[derive(Debug, Clone, Default, PartialEq, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budget {
    /// Largest cost of a handler's probes, as a share of one CPU (0 to 1); `None`: no limit.
    #[serde(deserialize_with = "share_of_a_cpu")]
    pub max_overhead: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            modules: Vec::new(),
            precision: Precision::Two,
            interval: INTERVAL,
            // No other exporter is known to use this port.
            listen: Some((Ipv4Addr::LOCALHOST, 9560).into()),
            store: Store::default(),
            otlp: None,
            budget: Budget::default(),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self { folder: "/var/lib/profiler".into(), max_bytes: 512 << 20, min_free_bytes: 256 << 20 }
    }
}

impl Config {
    /// Reads a configuration from a file.
    ///
    /// # Errors
    /// If it cannot be read or has a mistake, such as an unknown key; the error has line and column.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&toml_file::read(path)?, path)
    }

    /// Reads a configuration from the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, Failure> {
        toml_file::parse(text, &path.display().to_string(), |config: Self| {
            config.check().map(|()| config)
        })
    }

    /// That there is a module, and none twice.
    fn check(&self) -> Result<(), Mistake> {
        if self.modules.is_empty() {
            return Err((0..0, "there is no [[module]] with a `name` and `handlers`".to_owned()));
        }
        let mut known = HashSet::new();
        for module in &self.modules {
            let name = &module.as_ref().name;
            if !known.insert(name) {
                let text = format!("module `{name}` is named twice: put its handlers together");
                return Err((module.span(), text));
            }
        }
        Ok(())
    }

    /// Largest cost of a handler's probes, as a share of one CPU; without a limit the overhead is still shown.
    pub(super) fn limit(&self) -> f64 {
        self.budget.max_overhead.unwrap_or(f64::MAX)
    }
}

fn minute() -> Duration {
    INTERVAL
}

/// Functions that deserialize values from text.
macro_rules! parsed {
    ($($name:ident -> $value:ty: $parse:expr;)*) => {$(
        fn $name<'de, D: Deserializer<'de>>(value: D) -> Result<$value, D::Error> {
            ($parse)(String::deserialize(value)?.as_str()).map_err(D::Error::custom)
        }
    )*};
}

parsed! {
    interval -> Duration: interval_length;
    listener -> Option<SocketAddr>: address_or_none;
    collector -> Collector: str::parse;
    name_of_module -> String: module_name;
    backend -> Option<Backend>: |text: &str| text.parse().map(Some);
    folder -> PathBuf: absolute;
    share_of_a_cpu -> Option<f64>: overhead_share;
}

fn patterns<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    let patterns: Vec<String> = Vec::deserialize(value)?;
    if patterns.is_empty() {
        return Err(D::Error::custom("name at least one handler, or a glob"));
    }
    for pattern in &patterns {
        if let Err(error) = glob::Pattern::new(pattern) {
            let text = format!("invalid pattern `{pattern}`: {}", error.msg);
            return Err(D::Error::custom(text));
        }
    }
    Ok(patterns)
}

fn precision<'de, D: Deserializer<'de>>(value: D) -> Result<Precision, D::Error> {
    let digits = u8::deserialize(value)?;
    let wrong = |_| D::Error::custom(format!("precision is {digits}, not 2 or 3"));
    digits.to_string().parse().map_err(wrong)
}

fn absolute(text: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("folder has to be a path from / on") }
}

fn overhead_share(text: &str) -> Result<Option<f64>, String> {
    let share = parse_share(text).map_err(|error| error.to_string())?;
    if share > 0.0 && share <= 1.0 {
        return Ok(Some(share));
    }
    Err("max-overhead has to be above 0% and at most 100% of a CPU".to_owned())
}

fn interval_length(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if !INTERVALS.contains(&length) {
        return Err("an interval has to be from 1s to 24h".to_owned());
    }
    Ok(length)
}

fn address_or_none(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let what = "give an address and a port, such as 127.0.0.1:9560 or [::1]:9560, or none";
    text.parse().map(Some).map_err(|_| format!("invalid address `{text}`: {what}"))
}

/// A module's name as the kernel writes it, which is part of a path.
fn module_name(text: &str) -> Result<String, String> {
    let name = text.replace('-', "_");
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if name.is_empty() || name.len() > 64 || !is_plain {
        return Err(format!(
            "`{text}` cannot be the name of a kernel module: give it as lsmod lists it"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("serve.toml")).map_err(|error| error.to_string())
    }

    const ONE: &str = "[[module]]\nname = \"hids-driver\"\nhandlers = [\"connect_*\"]\n";

    #[test]
    fn missing_keys_have_their_defaults() {
        let config = parse(ONE).unwrap();
        let module = Module {
            name: "hids_driver".to_owned(),
            handlers: vec!["connect_*".to_owned()],
            backend: None,
        };
        assert_eq!(
            config,
            Config { modules: vec![Spanned::new(0..0, module)], ..Config::default() }
        );
        assert_eq!(config.precision, Precision::Two);
        assert_eq!(config.listen.unwrap().to_string(), "127.0.0.1:9560");
    }

    #[test]
    fn every_key_is_read() {
        let config = parse(
            r#"
            precision = 3
            interval = "30s"
            listen = "none"

            [[module]]
            name = "a"
            handlers = ["x", "y_*"]
            backend = "kprobe-session"

            [[module]]
            name = "b"
            handlers = ["z"]

            [store]
            folder = "/srv/profiler"
            max-bytes = 1000
            min-free-bytes = 0

            [otlp]
            endpoint = "http://127.0.0.1:4318/v1/metrics"
            interval = "10s"

            [budget]
            max-overhead = "0.1%"
            "#,
        )
        .unwrap();
        let names: Vec<&str> =
            config.modules.iter().map(|module| module.as_ref().name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(config.modules[0].as_ref().backend, Some(Backend::KprobeSession));
        assert_eq!(
            (config.precision, config.interval),
            (Precision::Three, Duration::from_secs(30))
        );
        assert_eq!((config.listen, config.budget.max_overhead), (None, Some(0.001)));
        let folder = PathBuf::from("/srv/profiler");
        assert_eq!(config.store, Store { folder, max_bytes: 1000, min_free_bytes: 0 });
        assert_eq!(config.otlp.unwrap().interval, Duration::from_secs(10));
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, start) in [
            ("", "serve.toml:1:1: there is no [[module]]"),
            ("intervall = \"1m\"\n", "serve.toml:1:1: unknown field `intervall`"),
            ("interval = 60\n", "serve.toml:1:12: invalid type"),
            ("interval = \"60\"\n{ONE}", "serve.toml:1:12: invalid duration `60`"),
            ("interval = \"25h\"\n{ONE}", "serve.toml:1:12: an interval has to be from 1s to 24h"),
            ("precision = 4\n{ONE}", "serve.toml:1:13: precision is 4, not 2 or 3"),
            ("listen = \"9560\"\n{ONE}", "serve.toml:1:10: invalid address `9560`"),
            ("{ONE}backends = \"kprobe\"\n", "serve.toml:4:1: unknown field `backends`"),
            ("{ONE}backend = \"kprobes\"\n", "serve.toml:4:11: there is no such backend"),
            ("{ONE}{ONE}", "serve.toml:4:1: module `hids_driver` is named twice"),
            (
                "module = [{ name = \"x\", handlers = [\"a\"] }, { name = \"x\", handlers = [\"b\"] }]\n",
                "serve.toml:1:45: module `x` is named twice",
            ),
            ("{ONE}[store]\nfolder = \"here\"\n", "serve.toml:5:10: folder has to be a path"),
            ("{ONE}[store]\nmax-byte = 1\n", "serve.toml:5:1: unknown field `max-byte`"),
            ("{ONE}[budget]\nmax-overhead = \"0%\"\n", "serve.toml:5:16: max-overhead has to be"),
            ("{ONE}[budget]\nmax-overhead = \"1\"\n", "serve.toml:5:16: invalid share `1`"),
            ("{ONE}[otlp]\ninterval = \"1m\"\n", "serve.toml:4:1: missing field `endpoint`"),
            (
                "{ONE}[otlp]\nendpoint = \"ftp://x\"\n",
                "serve.toml:5:12: invalid collector URL `ftp://x`",
            ),
            (
                "[[module]]\nname = \"../x\"\nhandlers = [\"a\"]\n",
                "serve.toml:2:8: `../x` cannot be",
            ),
            ("[[module]]\nname = \"x\"\nhandlers = []\n", "serve.toml:3:12: name at least one"),
            ("[[module]]\nname = \"x\"\nhandlers = [\"a[\"]\n", "serve.toml:3:12: invalid pattern"),
        ] {
            let error = parse(&text.replace("{ONE}", ONE)).expect_err(text);
            assert!(error.starts_with(start), "{error}\n  and not {start}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::read(Path::new("/nowhere/serve.toml")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nowhere/serve.toml: "), "{error}");
    }
}
