//! What the daemon exposes of a state, in each format, to the last figure.

use profiler::serve::expose::{
    BOUNDS_NS, FAMILIES, Format, Native, SCHEMA, ZERO_THRESHOLD, classic, metrics, native,
};
use profiler::serve::state::{NotMeasured, Phase, State};
use profiler_base::stats::nearest_rank;
use profiler_export::compare;
use profiler_export::verdict::CompareReport;
use profiler_kernel::target::LeftOut;
use profiler_probe::Precision;
use profiler_recording::HistogramLayout;
use profiler_recording::measure::HandlerMeasure;
use profiler_recording::unlike::What;
use profiler_recording::warning::{Handlers, SHED, Warning};
use profiler_verdict::{Run, Sides};
use proptest::prelude::*;
use prost::Message as _;

use crate::common::{LAYOUT, handler, measure};
use crate::metric_messages::{Histogram, LabelPair, MetricFamily, metric_type};
use crate::serve_state::{CONNECT, build, recording, state};

fn text(state: &State, format: Format) -> String {
    String::from_utf8(metrics(state, format)).unwrap()
}

/// The families in a delimited body.
pub(crate) fn families(mut bytes: &[u8]) -> Vec<MetricFamily> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        found.push(MetricFamily::decode_length_delimited(&mut bytes).unwrap());
    }
    found
}

fn histogram(families: &[MetricFamily], name: &str, build: &str) -> Histogram {
    let durations = families
        .iter()
        .find(|family| family.name.as_deref() == Some("profiler_handler_duration_seconds"));
    let is_wanted = |label: &LabelPair| [name, build].contains(&label.value.as_deref().unwrap());
    let mut wanted = durations.unwrap().metric.iter();
    let metric =
        wanted.find(|metric| metric.label.iter().filter(|label| is_wanted(label)).count() == 2);
    metric.unwrap().histogram.clone().unwrap()
}

#[test]
fn text_has_every_figure() {
    insta::assert_snapshot!(text(&state(), Format::Text));
}

#[test]
fn a_scrape_is_one_in_each_format() {
    let state = state();
    let families = families(&metrics(&state, Format::Protobuf));
    let names: Vec<_> = families.iter().map(|family| family.name.as_deref().unwrap()).collect();
    assert_eq!(names, FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>());
    // Each line of the text is a value of the protobuf.
    let plain = text(&state, Format::Text);
    let mut lines = plain.lines().filter(|line| !line.starts_with('#'));
    let mut compared = 0;
    for family in &families {
        for metric in &family.metric {
            let labels: Vec<String> = metric
                .label
                .iter()
                .map(|of| {
                    format!("{}=\"{}\"", of.name.as_deref().unwrap(), of.value.as_deref().unwrap())
                })
                .collect();
            let expect = |line: &str, value: f64| {
                assert!(labels.iter().all(|label| line.contains(label)), "{line}: {labels:?}");
                assert_eq!(
                    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap(),
                    value,
                    "{line}"
                );
            };
            let mut next = || lines.next().unwrap();
            if let Some(histogram) = &metric.histogram {
                assert_eq!(family.r#type, Some(metric_type::HISTOGRAM));
                for bucket in &histogram.bucket {
                    expect(next(), bucket.cumulative_count.unwrap() as f64);
                }
                for value in [
                    histogram.sample_count.unwrap() as f64,
                    histogram.sample_sum.unwrap(),
                    histogram.sample_count.unwrap() as f64,
                ] {
                    expect(next(), value);
                }
            } else if let Some(counter) = &metric.counter {
                assert_eq!(family.r#type, Some(metric_type::COUNTER));
                expect(next(), counter.value.unwrap());
            } else {
                assert_eq!(family.r#type, Some(metric_type::GAUGE));
                expect(next(), metric.gauge.as_ref().unwrap().value.unwrap());
            }
            compared += 1;
        }
    }
    assert_eq!(lines.next(), None);
    assert_eq!(compared, 97);
}

#[test]
fn a_bound_is_written_as_prometheus_writes_it() {
    let body = text(&state(), Format::Text);
    let bounds: Vec<&str> = body
        .lines()
        .filter(|line| {
            line.starts_with("profiler_handler_duration_seconds_bucket")
                && line.contains("idle_handler")
        })
        .map(|line| line.split(",le=\"").nth(1).unwrap().split('"').next().unwrap())
        .collect();
    assert_eq!(bounds.len(), 29);
    assert_eq!(bounds[..3], ["6.3e-08", "1.27e-07", "2.55e-07"]);
    assert_eq!(bounds[10..12], ["6.5535e-05", "0.000131071"]);
    assert_eq!(bounds[27..], ["8.589934591", "+Inf"]);
    for (bound, ns) in bounds.iter().zip(BOUNDS_NS) {
        assert_eq!(bound.parse::<f64>().unwrap(), ns as f64 / 1e9);
    }
}

#[test]
fn labels_are_escaped() {
    let mut state = state();
    state.builds.truncate(1);
    state.builds[0].id = "a\"b\\c\nd".to_owned();
    let body = text(&state, Format::Text);
    assert!(body.contains("build=\"a\\\"b\\\\c\\nd\",handler="), "{body}");
    assert!(body.lines().all(|line| !line.starts_with('d')), "{body}");
}

/// The bounds are edges of HDR buckets, whatever their precision: nothing is astride.
#[test]
fn no_call_is_astride_a_classic_bound() {
    for precision_digits in 1..=5 {
        let layout = HistogramLayout { precision_digits, ..LAYOUT };
        let mut histogram = hdrhistogram::Histogram::<u64>::new_with_bounds(
            layout.lowest_ns,
            layout.highest_ns,
            layout.precision_digits,
        )
        .unwrap();
        histogram.auto(true);
        for bound in BOUNDS_NS {
            assert_eq!(histogram.highest_equivalent(bound), bound, "{precision_digits} digits");
        }
    }
}

#[test]
fn native_histograms_are_exact_where_they_can_be() {
    let durations = histogram(
        &families(&metrics(&state(), Format::Protobuf)),
        "connect_syscall_handler",
        "new",
    );
    assert_eq!(durations.sample_count, Some(8));
    assert_eq!(durations.sample_sum, Some(90.002_000_382));
    assert_eq!((durations.schema, durations.zero_threshold), (Some(5), Some(ZERO_THRESHOLD)));
    assert_eq!(durations.zero_count, Some(1), "0 ns");
    // 63 and 64, 127 and 128 are 2.3 % and 0.8 % apart: buckets 32 * log2(63 ns) = -765.2 and so on.
    let native = native_of(&CONNECT);
    let at = |ns: u64| ((ns as f64 / 1e9).log2() * 32.0).ceil() as i32;
    assert_eq!([at(63), at(64), at(127), at(128)], [-765, -764, -733, -732]);
    let over = at(59_995_324_415 + 33_554_432 - 1);
    assert!(over >= at(60_000_000_000));
    assert_eq!(native.zero, 1);
    assert_eq!(
        native.buckets[..5],
        [(-765, 1), (-764, 1), (-733, 1), (-732, 1), (at(1_000_447), 2)]
    );
    assert_eq!(native.buckets.len(), 6, "and the call of 90 s, in the last bucket");
    let spans: Vec<_> = durations
        .positive_span
        .iter()
        .map(|span| (span.offset.unwrap(), span.length.unwrap()))
        .collect();
    assert_eq!(spans[..2], [(-765, 2), (-733 + 763, 2)]);
    assert_eq!(spans.len(), 4);
    assert_eq!(durations.positive_delta, [1, 0, 0, 0, 1, -1]);
}

#[test]
fn a_handler_without_a_call_is_a_native_histogram_too() {
    let idle = histogram(&families(&metrics(&state(), Format::Protobuf)), "idle_handler", "new");
    assert_eq!(
        (idle.sample_count, idle.sample_sum, idle.zero_count),
        (Some(0), Some(0.0), Some(0))
    );
    // Prometheus takes it for a native one by this.
    assert!(idle.zero_threshold.unwrap() > 0.0 && idle.schema == Some(5));
}

fn native_of(durations: &[u64]) -> Native {
    native(&measure("x", durations).durations)
}

#[test]
fn powers_of_two_of_a_second_end_their_buckets() {
    for exponent in 0..=9 {
        let ns = 1_000_000_000_u64 >> exponent;
        let index = -(exponent << SCHEMA);
        assert_eq!(native_of(&[ns]).buckets, [(index, 1)], "2^-{exponent} s");
        assert_eq!(native_of(&[ns + 1]).buckets, [(index + 1, 1)]);
    }
}

#[test]
fn the_build_that_was_attached_to_last_is_the_current_one() {
    let mut state = state();
    let calls = [measure("h", &[100])];
    state.builds = (0..4)
        .map(|at| build("hids", &format!("b{at}"), &format!("2026-11-21T12:0{at}:00Z"), &calls))
        .collect();
    // The second came again, and is measured now; the clock was set back meanwhile.
    let mut again = state.builds.remove(1);
    again.last = "2026-11-21T11:30:00Z".parse().unwrap();
    state.builds.push(again);
    state.builds.push(build("other", "x", "2026-11-20T00:00:00Z", &calls));
    let body = text(&state, Format::Text);
    let with = |name: &str| -> Vec<String> {
        let lines = body.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.split_once('{').unwrap().1.to_owned()).collect()
    };
    assert_eq!(
        with("profiler_module_build_current"),
        [
            "module=\"hids\",build=\"b0\"} 0",
            "module=\"hids\",build=\"b2\"} 0",
            "module=\"hids\",build=\"b3\"} 0",
            "module=\"hids\",build=\"b1\"} 1",
            "module=\"other\",build=\"x\"} 0",
        ]
    );
    assert_eq!(with("profiler_handler_entries_total").len(), 5);
    let measured: Vec<_> = with("profiler_handler_state")
        .into_iter()
        .filter(|line| line.ends_with("state=\"measured\"} 1"))
        .collect();
    assert_eq!(measured, ["module=\"hids\",build=\"b1\",handler=\"h\",state=\"measured\"} 1"]);
}

#[test]
fn what_is_not_measured_is_said() {
    let mut state = state();
    let states = |state: &State| -> Vec<String> {
        let body = text(state, Format::Text);
        let lines = body.lines().filter_map(|line| {
            line.strip_prefix("profiler_handler_state{module=\"hids\",build=\"new\",")
        });
        let on = lines
            .filter_map(|line| line.strip_suffix("\"} 1"))
            .map(|line| line.replace("\",state=\"", " "));
        on.map(|line| line.replace("handler=\"", "")).collect()
    };
    assert_eq!(
        states(&state),
        ["connect_syscall_handler measured", "idle_handler shed", "gone_handler missing"]
    );
    state.builds[1].not_measured.insert("connect_syscall_handler".to_owned(), NotMeasured::Shed);
    state.builds[1].not_measured.remove("idle_handler");
    assert_eq!(
        states(&state),
        ["connect_syscall_handler shed", "idle_handler measured", "gone_handler missing"]
    );
    state.modules[0].phase = Phase::Released;
    assert_eq!(states(&state), [""; 0], "no build is measured");
}

/// Of a handler that was shed a comparison has a part of the calls, or none.
#[test]
fn a_comparison_says_which_handlers_were_shed() {
    let recording = || recording(vec![handler(&measure("f", &[100; 200]))]);
    let run = |name: &str, recording| vec![Run { name: name.to_owned(), recording }];
    let mut shed = recording();
    let words = "f 12.0 s of 60.0 s".to_owned();
    let warning = Warning::PartlyMeasured(Handlers(vec!["f".to_owned()]), words);
    shed.warnings.push(warning.into());
    let left_out = |name: &str, reason: &str| LeftOut {
        name: name.to_owned(),
        module: None,
        reason: reason.to_owned(),
    };
    shed.left_out = vec![left_out("g", SHED), left_out("h", "it is inlined")];
    shed.started += std::time::Duration::from_secs(1);
    let (base, candidate) = (run("base", recording()), run("candidate", shed));
    let sides = Sides::new(&base, &candidate, What::ALL, false).unwrap();
    assert_eq!(sides.notes.len(), 1);
    assert!(sides.notes[0].contains("(`max-overhead`): f, g: calls"), "{:?}", sides.notes);
    let text = compare::document(&CompareReport::of(&sides)).text(None);
    assert!(text.contains("candidate: not measured throughout") && text.contains("f, g"), "{text}");
}

#[test]
fn what_is_not_known_is_left_out() {
    let mut state = state();
    state.own.overhead = None;
    state.own.pushes = None;
    let body = text(&state, Format::Text);
    assert!(!body.contains("profiler_overhead_ratio") && !body.contains("profiler_otlp"), "{body}");
}

/// The bucket of a native histogram that a rank is in.
fn bucket_at(native: &Native, rank: u64) -> Option<i32> {
    let mut seen = native.zero;
    if rank <= seen {
        return None;
    }
    let found = native.buckets.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    Some(found.unwrap().0)
}

fn upper(index: i32) -> f64 {
    (f64::from(index) / 32.0).exp2()
}

fn with_precision(precision: Precision, durations: &[u64]) -> HandlerMeasure {
    let mut measured = measure("x", &[]);
    measured.durations = precision.durations();
    durations.iter().for_each(|ns| measured.durations.record(*ns));
    measured
}

fn any_duration() -> impl Strategy<Value = u64> {
    (0_u32..36, any::<u64>())
        .prop_map(|(bits, low)| ((1 << bits) | (low & ((1 << bits) - 1))).min(60_000_000_000))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn conversions_keep_every_call(
        durations in prop::collection::vec(prop_oneof![any_duration(), 0_u64..4096], 0..300),
        three in any::<bool>(),
    ) {
        let precision = if three { Precision::Three } else { Precision::Two };
        let measured = with_precision(precision, &durations);
        let (durations_of, profile) = (&measured.durations, handler(&measured));
        let count = durations.len() as u64;
        // Classic counts are those of the durations themselves.
        for (bound, found) in BOUNDS_NS.iter().zip(classic(durations_of)) {
            prop_assert_eq!(found, durations.iter().filter(|ns| **ns <= *bound).count() as u64);
        }
        let native = native(durations_of);
        prop_assert_eq!(native.zero, durations.iter().filter(|ns| **ns == 0).count() as u64);
        prop_assert_eq!(native.zero + native.buckets.iter().map(|(_, calls)| calls).sum::<u64>(), count);
        prop_assert!(native.buckets.is_sorted_by(|a, b| a.0 < b.0));
        // A rank is in the bucket of the recording's quantile, and a call's true duration is no more than an HDR bucket below it.
        let width = if three { 1.0 / 1024.0 } else { 1.0 / 128.0 };
        let exact_below = if three { 2048 } else { 256 };
        let mut sorted = durations;
        sorted.sort_unstable();
        for share in [0.0, 0.1, 0.5, 0.9, 0.99, 1.0] {
            let Some(rank) = nearest_rank(count, share) else { continue };
            let (quantile, truth) = (profile.quantile_ns(share).unwrap(), sorted[rank as usize - 1]);
            let Some(index) = bucket_at(&native, rank) else {
                prop_assert_eq!((quantile, truth), (0, 0));
                continue;
            };
            let (lower, upper) = (upper(index - 1) * (1.0 - 1e-12), upper(index) * (1.0 + 1e-12));
            let seconds = quantile as f64 / 1e9;
            prop_assert!(lower <= seconds && seconds <= upper, "{seconds} in {lower} .. {upper}");
            let truth_s = truth as f64 / 1e9;
            let least = if truth < exact_below { lower } else { lower / (1.0 + width) };
            prop_assert!(least <= truth_s && truth_s <= upper, "{truth_s} in {least} .. {upper}");
        }
    }
}
