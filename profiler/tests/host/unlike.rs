//! What makes two recordings unlike, one thing at a time.

use profiler_load::{BuiltinKind, LoadSpec, LoadStatus};
use profiler_recording::unlike::{Use, What, differences};
use profiler_recording::{Clock, Recording};

use crate::common::sample;

/// A change of a recording that makes it unlike in one thing.
type Change = fn(&mut Recording);

/// One change for each thing there is but the backend, of which there has to be another first.
const CHANGES: [(What, Change); 11] = [
    (What::Clock, |p| p.clock = Clock::Virtual),
    (What::Kernel, |p| p.host.kernel_release = Some("6.12.95-amd64".to_owned())),
    (What::Machine, |p| p.host.cpus_online = Some(4)),
    (What::Mitigations, |p| {
        p.host.mitigations.insert("meltdown".to_owned(), "Mitigation: PTI".to_owned());
    }),
    (What::Modules, |p| p.modules[0].name = "hids_driver".to_owned()),
    (What::ModuleBuild, |p| p.modules[0].build_id = Some("ff".repeat(20))),
    (What::Parameters, |p| {
        p.modules[0].parameters.insert("extra".to_owned(), "7".to_owned());
    }),
    (What::Load, |p| {
        p.loads[0].spec = LoadSpec::Builtin {
            name: BuiltinKind::Connect,
            workers: 1,
            rate_per_s: None,
            operations: None,
            pin: false,
            user: None,
            dimensions: profiler_load::Dimensions::default(),
        };
    }),
    (What::Precision, |p| p.histogram.precision_digits = 2),
    (What::Window, |p| p.window_ns += p.window_ns / 10),
    (What::Tool, |p| p.tool.version = "0.0.9".to_owned()),
];

#[test]
fn a_profile_is_like_itself() {
    for purpose in [Use::Comparison, Use::Repetition, Use::Merge] {
        assert_eq!(differences(&sample(), &sample(), purpose), []);
    }
}

#[test]
fn each_difference_is_found_alone_where_it_matters() {
    for (what, change) in CHANGES {
        let mut other = sample();
        change(&mut other);
        for purpose in [Use::Comparison, Use::Repetition, Use::Merge] {
            let found: Vec<What> =
                differences(&sample(), &other, purpose).iter().map(|found| found.what).collect();
            let expected: &[What] =
                if purpose.demands().any(|asked| asked == what) { &[what] } else { &[] };
            assert_eq!(found, expected, "{what} in {purpose:?}");
        }
    }
}

#[test]
fn differences_are_told_with_both_values() {
    let mut other = sample();
    for (_, change) in CHANGES {
        change(&mut other);
    }
    let lines: Vec<String> =
        differences(&sample(), &other, Use::Repetition).iter().map(ToString::to_string).collect();
    // The modules have no name in common, so nothing is said of their builds.
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn builds_and_parameters_are_told_by_module() {
    let mut other = sample();
    other.modules[0].build_id = None;
    other.modules[0].parameters = [("verbose".to_owned(), "Y".to_owned())].into();
    let lines: Vec<String> =
        differences(&sample(), &other, Use::Repetition).iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn loads_may_come_in_any_order() {
    let (mut first, mut second) = (sample(), sample());
    let mut bind = first.loads[0].clone();
    bind.spec = LoadSpec::Builtin {
        name: BuiltinKind::Bind,
        workers: 2,
        rate_per_s: None,
        operations: None,
        pin: false,
        user: None,
        dimensions: profiler_load::Dimensions::default(),
    };
    first.loads.push(bind.clone());
    second.loads.insert(0, bind);
    assert_eq!(differences(&first, &second, Use::Comparison), []);
}

#[test]
fn how_long_a_fixed_piece_of_work_took_is_no_difference() {
    let (mut first, mut second) = (sample(), sample());
    for recording in [&mut first, &mut second] {
        recording.loads[0].outcome.status = LoadStatus::Completed;
    }
    second.window_ns *= 3;
    assert_eq!(differences(&first, &second, Use::Comparison), []);
    second.warmup_ns *= 2;
    assert_eq!(differences(&first, &second, Use::Comparison)[0].what, What::Window);
}

#[test]
fn a_late_timer_is_no_difference() {
    let mut other = sample();
    other.window_ns += other.window_ns / 50;
    other.warmup_ns += 90_000_000;
    assert_eq!(differences(&sample(), &other, Use::Comparison), []);
}
