//! Arguments of `run` for the sandbox of its loads.

use clap::Args;

use crate::load::{LoadUser, SandboxOptions};

/// Limits of a load.
#[derive(Debug, Clone, Args)]
pub struct ConfineArgs {
    /// User that the load runs as [default, as root: nobody for built-in loads that need no
    /// privileges; root for a command and for LTP, many of whose tests need it].
    #[arg(long, value_name = "NAME")]
    pub load_user: Option<LoadUser>,
    /// CPUs that the load may use in total, such as 0.5; needs root and control groups of version 2.
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub load_cpu_max: Option<f64>,
    /// Memory that the load may use in total, such as 200M; needs root and control groups of version 2.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub load_memory_max: Option<u64>,
}

impl ConfineArgs {
    /// The sandbox of a load whose files go below `directory`.
    pub fn sandbox(&self, directory: Option<std::path::PathBuf>) -> SandboxOptions {
        SandboxOptions {
            user: self.load_user.clone(),
            cpu_max: self.load_cpu_max,
            memory_max: self.load_memory_max,
            directory,
        }
    }
}

fn cpus(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(cpus) if (0.01..=4096.0).contains(&cpus) => Ok(cpus),
        _ => Err(format!("invalid number of CPUs `{text}`: give 0.01 to 4096, such as 0.5")),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bad =
        || format!("invalid size `{text}`: give bytes, or a number with K, M or G, such as 200M");
    let (number, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) if text.ends_with('K') => (number, 10),
        Some(number) if text.ends_with('M') => (number, 20),
        Some(number) => (number, 30),
        None => (text, 0),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_units() {
        assert_eq!(size("200M"), Ok(200 << 20));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(cpus("0.5"), Ok(0.5));
        for bad in ["", "0", "M", "-1", "1T", "99999999999G"] {
            assert!(size(bad).unwrap_err().contains(&format!("`{bad}`")), "{bad}");
        }
        for bad in ["0", "-1", "nan", "all"] {
            assert!(cpus(bad).is_err(), "{bad}");
        }
    }
}
