//! `serve.toml`: what the daemon measures, how, and where it goes.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::otlp::{BadCollector, Collector};
use crate::probe::Precision;
use crate::recording::Backend;
use crate::text::duration;
use crate::toml_file::{self, BadToml, Mistake, TomlFileError};
use crate::verdict::parse_share;

/// Where completed intervals go if nothing else is said.
pub const STORE: &str = "/var/lib/profiler";

/// Bytes that they may take in all.
const MAX_BYTES: u64 = 512 << 20;

/// Bytes of the file system that are left free.
const MIN_FREE_BYTES: u64 = 256 << 20;

/// Port on the loopback address, which is in no list of ports in use by exporters.
const LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9560);

/// Time between two intervals' ends.
const INTERVAL: Duration = Duration::from_secs(60);

/// Shortest and longest interval: a file each.
const INTERVALS: Range<Duration> = Duration::from_secs(1)..Duration::from_secs(24 * 3600 + 1);

/// What the daemon does.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The modules, in order; each name once.
    pub modules: Vec<Module>,
    /// Resolution of all histograms.
    pub precision: Precision,
    /// Time between two intervals' ends.
    pub interval: Duration,
    /// Where scrapers ask; `None` is nowhere.
    pub listen: Option<SocketAddr>,
    /// Where completed intervals go.
    pub store: Store,
    /// Where figures are pushed to; `None` is nowhere.
    pub otlp: Option<Otlp>,
    /// Largest cost of a handler's probes, as a share of one CPU (0 to 1); `None` is no bound.
    pub max_overhead: Option<f64>,
}

/// A module and its handlers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its name, as the kernel writes it.
    pub name: String,
    /// Names or globs of handlers.
    pub handlers: Vec<String>,
    /// The only backend to use; `None` is the best for each handler.
    pub backend: Option<Backend>,
}

/// Where completed intervals go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// The folder.
    pub folder: PathBuf,
    /// Bytes that all of them may take.
    pub max_bytes: u64,
    /// Free bytes of the file system below which nothing is written.
    pub min_free_bytes: u64,
}

/// Where figures are pushed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Otlp {
    /// The collector.
    pub endpoint: Collector,
    /// Time between two pushes.
    pub interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let store =
            Store { folder: STORE.into(), max_bytes: MAX_BYTES, min_free_bytes: MIN_FREE_BYTES };
        Self {
            modules: Vec::new(),
            precision: Precision::Two,
            interval: INTERVAL,
            listen: Some(LISTEN),
            store,
            otlp: None,
            max_overhead: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    module: Vec<FileModule>,
    precision: Option<Spanned<u8>>,
    interval: Option<Spanned<String>>,
    listen: Option<Spanned<String>>,
    #[serde(default)]
    store: FileStore,
    otlp: Option<FileOtlp>,
    #[serde(default)]
    budget: FileBudget,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileModule {
    name: Spanned<String>,
    handlers: Spanned<Vec<Spanned<String>>>,
    backend: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileStore {
    folder: Option<Spanned<PathBuf>>,
    max_bytes: Option<u64>,
    min_free_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileOtlp {
    endpoint: Spanned<String>,
    interval: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileBudget {
    max_overhead: Option<Spanned<String>>,
}

impl Config {
    /// Reads a configuration from a file; keys that it lacks are as in [`Config::default`].
    ///
    /// # Errors
    /// If it cannot be read or has a mistake, such as an unknown key; the error has line and column.
    pub fn read(path: &Path) -> Result<Self, TomlFileError> {
        Ok(Self::parse(&toml_file::read(path)?, path)?)
    }

    /// Reads a configuration from the text of a file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, BadToml> {
        toml_file::parse(text, &path.display().to_string(), File::check)
    }
}

impl File {
    fn check(self) -> Result<Config, Mistake> {
        let mut config = Config::default();
        for module in self.module {
            let name = module.name.clone();
            let module = module.check()?;
            if config.modules.iter().any(|other| other.name == module.name) {
                let text =
                    format!("module `{}` is named twice: put its handlers together", module.name);
                return Err((name.span(), text));
            }
            config.modules.push(module);
        }
        if config.modules.is_empty() {
            return Err((0..0, "there is no [[module]] with a `name` and `handlers`".to_owned()));
        }
        if let Some(digits) = self.precision {
            config.precision = match digits.get_ref() {
                2 => Precision::Two,
                3 => Precision::Three,
                other => return Err((digits.span(), format!("precision is {other}, not 2 or 3"))),
            };
        }
        if let Some(text) = self.interval {
            config.interval = interval(&text)?;
        }
        if let Some(text) = self.listen {
            config.listen = listen(text.get_ref()).map_err(|error| (text.span(), error))?;
        }
        config.store = self.store.check(config.store)?;
        config.otlp = self.otlp.map(FileOtlp::check).transpose()?;
        if let Some(text) = self.budget.max_overhead {
            let share =
                parse_share(text.get_ref()).map_err(|error| (text.span(), error.to_string()))?;
            if !(share > 0.0 && share <= 1.0) {
                let text_of = "max-overhead has to be above 0% and at most 100% of a CPU";
                return Err((text.span(), text_of.to_owned()));
            }
            config.max_overhead = Some(share);
        }
        Ok(config)
    }
}

impl FileModule {
    fn check(self) -> Result<Module, Mistake> {
        let name = module_name(self.name.get_ref()).map_err(|error| (self.name.span(), error))?;
        if self.handlers.get_ref().is_empty() {
            return Err((self.handlers.span(), "name at least one handler, or a glob".to_owned()));
        }
        let mut handlers = Vec::new();
        for handler in self.handlers.into_inner() {
            if let Err(error) = glob::Pattern::new(handler.get_ref()) {
                let text = format!("invalid pattern `{}`: {}", handler.get_ref(), error.msg);
                return Err((handler.span(), text));
            }
            handlers.push(handler.into_inner());
        }
        let backend = self.backend.map(|backend| {
            backend.get_ref().parse().map_err(|error: String| (backend.span(), error))
        });
        Ok(Module { name, handlers, backend: backend.transpose()? })
    }
}

impl FileStore {
    fn check(self, default: Store) -> Result<Store, Mistake> {
        if let Some(folder) = &self.folder
            && !folder.get_ref().is_absolute()
        {
            return Err((folder.span(), "folder has to be a path from / on".to_owned()));
        }
        Ok(Store {
            folder: self.folder.map_or(default.folder, Spanned::into_inner),
            max_bytes: self.max_bytes.unwrap_or(default.max_bytes),
            min_free_bytes: self.min_free_bytes.unwrap_or(default.min_free_bytes),
        })
    }
}

impl FileOtlp {
    fn check(self) -> Result<Otlp, Mistake> {
        let interval = self.interval.as_ref().map_or(Ok(INTERVAL), interval)?;
        let endpoint = self.endpoint.get_ref().parse();
        let endpoint =
            endpoint.map_err(|error: BadCollector| (self.endpoint.span(), error.to_string()))?;
        Ok(Otlp { endpoint, interval })
    }
}

fn interval(text: &Spanned<String>) -> Result<Duration, Mistake> {
    interval_length(text.get_ref()).map_err(|error| (text.span(), error))
}

/// The length of intervals.
///
/// # Errors
/// If it is none, or too short or too long.
pub fn interval_length(text: &str) -> Result<Duration, String> {
    let length = duration(text)?;
    if !INTERVALS.contains(&length) {
        return Err("an interval has to be from 1s to 24h".to_owned());
    }
    Ok(length)
}

/// An address with its port, or `none`.
///
/// # Errors
/// If it is neither.
pub fn listen(text: &str) -> Result<Option<SocketAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let what = "give an address and a port, such as 127.0.0.1:9560 or [::1]:9560, or none";
    text.parse().map(Some).map_err(|_| format!("invalid address `{text}`: {what}"))
}

/// A module's name as the kernel writes it, which is part of a path.
///
/// # Errors
/// If no module can have that name.
pub fn module_name(text: &str) -> Result<String, String> {
    let name = text.replace('-', "_");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_plain) {
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
    fn what_is_not_said_is_the_default() {
        let config = parse(ONE).unwrap();
        let module = Module {
            name: "hids_driver".to_owned(),
            handlers: vec!["connect_*".to_owned()],
            backend: None,
        };
        assert_eq!(config, Config { modules: vec![module], ..Config::default() });
        assert_eq!(config.precision, Precision::Two);
        assert_eq!(config.listen.unwrap().to_string(), "127.0.0.1:9560");
    }

    #[test]
    fn everything_can_be_said() {
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
        let names: Vec<&str> = config.modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(config.modules[0].backend, Some(Backend::KprobeSession));
        assert_eq!(
            (config.precision, config.interval),
            (Precision::Three, Duration::from_secs(30))
        );
        assert_eq!((config.listen, config.max_overhead), (None, Some(0.001)));
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
            ("{ONE}{ONE}", "serve.toml:5:8: module `hids_driver` is named twice"),
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
            ("[[module]]\nname = \"x\"\nhandlers = [\"a[\"]\n", "serve.toml:3:13: invalid pattern"),
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
