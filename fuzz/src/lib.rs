//! Every parser of outside bytes as a target of a fuzzer: README.md says which modules each reaches. A panic is a finding.

mod driver;
mod lab_counts;
mod profile_json;
mod text;
mod trace_cmd;
mod two_recordings;

use profiler::serve::otlp::fuzzing as otlp;
use profiler_lab::fuzzing as lab;
use profiler_load::ltp::fuzzing as ltp;
use profiler_probe::ftrace::fuzzing as ftrace;

/// Takes one input.
pub type Target = fn(&[u8]);

/// By the names of their corpora.
pub const TARGETS: &[(&str, Target)] = &[
    ("accept", text::accept),
    ("btf", driver::btf),
    ("control", text::control),
    ("driver", driver::driver),
    ("gate_rules", text::gate_rules),
    ("guest_answer", lab::guest_answer),
    ("guest_symbols", lab::guest_symbols),
    ("kernel_image", profiler_vm::fuzzing::image),
    ("lab_counts", lab_counts::target),
    ("load_profile", text::load_profile),
    ("otlp_answer", otlp::answer),
    ("plugin_count", profiler_qemu::fuzzing::count),
    ("plugin_symbols", profiler_qemu::fuzzing::symbols),
    ("profile_json", profile_json::target),
    ("ring_layout", ftrace::layout),
    ("ring_page", ftrace::page),
    ("runtest", ltp::runtest),
    ("serve_toml", text::serve_toml),
    ("trace_cmd", trace_cmd::target),
    ("two_recordings", two_recordings::target),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::panic;
    use std::path::Path;

    use fastrand::Rng;

    use super::*;

    /// Inputs that are made of a corpus: the same in each run.
    const VARIANTS: u64 = 2_000;

    /// What a broken file or a hostile writer has in place of this input.
    fn variant(rng: &mut Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = input.to_vec();
        for _ in 0..rng.usize(1..4) {
            let (a, b) = (rng.usize(..=bytes.len()), rng.usize(..=bytes.len()));
            let range = a.min(b)..a.max(b);
            match rng.u8(..5) {
                0 => bytes.truncate(a),
                1 => bytes.iter_mut().skip(a).take(8).for_each(|byte| *byte ^= 1 << rng.u8(..8)),
                2 => drop(bytes.drain(range)),
                3 => bytes.splice(a..a, other.iter().skip(b).take(64).copied()).for_each(drop),
                _ => bytes
                    .iter_mut()
                    .skip(a)
                    .take(rng.usize(1..9))
                    .for_each(|byte| *byte = rng.u8(..)),
            }
        }
        bytes
    }

    /// libFuzzer looks for new inputs; this runs those that it found, and others near them.
    #[test]
    fn every_target_takes_its_corpus_and_variants_of_it() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for (name, target) in TARGETS {
            let files = fs::read_dir(corpora.join(name)).unwrap();
            let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
            files.sort();
            let corpus: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
            for (file, input) in files.iter().zip(&corpus) {
                let done = panic::catch_unwind(|| target(input));
                assert!(done.is_ok(), "{name}: {}", file.display());
            }
            for seed in 0..VARIANTS {
                let mut rng = Rng::with_seed(seed);
                let [input, other] = [(); 2].map(|()| rng.choice(&corpus).unwrap());
                let input = variant(&mut rng, input, other);
                let done = panic::catch_unwind(|| target(&input));
                assert!(done.is_ok(), "{name}: variant {seed}: {}", input.escape_ascii());
            }
        }
    }
}
