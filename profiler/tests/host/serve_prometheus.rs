//! Prometheus itself, and promtool, on what the daemon exposes and on the rules of docs/fleet.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use profiler::serve::expose::{Format, metrics};
use serde_json::Value;

use crate::common::measure;
use crate::common::prometheus::Prometheus;
use crate::serve_http::Server;
use crate::serve_state::{build, state};

/// A Prometheus that scrapes one server.
fn scraping(server: &Server, features: &[&str]) -> Prometheus {
    Prometheus::scraping(&promtool().with_file_name("prometheus"), &server.at.to_string(), features)
}

/// promtool, with Prometheus beside it.
fn promtool() -> PathBuf {
    let path = std::env::var_os("PROFILER_PROMTOOL");
    path.expect("PROFILER_PROMTOOL names no promtool: `cargo xtask test` has one and runs this")
        .into()
}

fn fleet(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fleet").join(file)
}

pub(crate) fn run(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(promtool())
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn promtool_has_nothing_to_say_of_the_metrics() {
    let checked = run(&["check", "metrics"], &metrics(&state(), Format::Text));
    assert!(
        checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(),
        "{checked:?}"
    );
    let wrong = run(&["check", "metrics"], b"# TYPE a_total gauge\na_total 1\n");
    assert!(!wrong.status.success(), "it takes anything: {wrong:?}");
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn promtool_takes_the_rules_and_the_scrape() {
    for args in [
        ["check", "rules", fleet("rules.yml").to_str().unwrap()],
        ["check", "rules", fleet("alerts.yml").to_str().unwrap()],
        ["check", "config", fleet("scrape.yml").to_str().unwrap()],
    ] {
        let checked = run(&args, b"");
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// Each query of the dashboard is PromQL, and names only what there is.
#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn the_dashboard_asks_for_what_there_is() {
    let dashboard: Value =
        serde_json::from_slice(&std::fs::read(fleet("dashboard.json")).unwrap()).unwrap();
    let recorded = std::fs::read_to_string(fleet("rules.yml")).unwrap();
    let exposed = String::from_utf8(metrics(&state(), Format::Text)).unwrap();
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            for name in query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
                if name.contains("profiler_") || name.starts_with("process_") {
                    let known = recorded.contains(&format!("record: {name}\n"))
                        || exposed.contains(&format!("\n{name}"));
                    assert!(known, "there is no {name}");
                    asked += 1;
                }
            }
            rules.push_str(&format!(
                "  - record: x{asked}\n    expr: {}\n",
                serde_json::to_string(&query).unwrap()
            ));
        }
    }
    assert!(asked > 15, "{asked} names were found");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.yml");
    std::fs::write(&file, rules).unwrap();
    let checked = run(&["check", "rules", file.to_str().unwrap()], b"");
    assert!(checked.status.success(), "{checked:?}");
}

/// Two hosts with two builds, one with the new alone: what the rules make of them, minute by minute.
#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn alerts_fire_when_they_should() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.yml");
    let of = |name: &str, host: &str, build: &str, more: &str| {
        format!(
            "{name}{{job=\"profiler\",instance=\"{host}\",module=\"m\",build=\"{build}\"{more}}}"
        )
    };
    let mut series = String::new();
    let mut add = |name: String, values: &str| {
        series.push_str(&format!("      - series: '{name}'\n        values: '{values}'\n"));
    };
    for (host, builds) in [("a", &["old", "new"][..]), ("b", &["old", "new"]), ("c", &["new"])] {
        for build in builds {
            let is_new = *build == "new";
            let handler = ",handler=\"h\"";
            // 1 us a call before, and 1.2 us now. The third host takes a second, but has no build before.
            let each = if host == "c" {
                1.0
            } else if is_new {
                1.2e-6
            } else {
                1e-6
            };
            add(of("profiler_handler_duration_seconds_count", host, build, handler), "100000+0x60");
            add(
                of("profiler_handler_duration_seconds_sum", host, build, handler),
                &format!("{}+0x60", each * 1e5),
            );
            add(
                of("profiler_module_build_current", host, build, ""),
                if is_new { "1+0x60" } else { "0+0x60" },
            );
            add(
                of("profiler_module_build_last_measured_timestamp_seconds", host, build, ""),
                if is_new { "60+60x60" } else { "30+0x60" },
            );
            add(of("profiler_handler_entries_total", host, build, handler), "0+1000x60");
            add(
                of("profiler_handler_unmeasured_calls_total", host, build, handler),
                if host == "b" && is_new { "0+10x60" } else { "0+0x60" },
            );
        }
        add(
            format!(
                "profiler_last_drain_timestamp_seconds{{job=\"profiler\",instance=\"{host}\"}}"
            ),
            if host == "c" { "0+0x60" } else { "0+60x60" },
        );
        add(format!("up{{job=\"profiler\",instance=\"{host}\"}}"), "1+0x60");
    }
    // Restarted with a new driver: the daemon before is gone, and what it showed.
    let restarted = |name: &str, build: &str, more: &str| {
        of(name, "e", build, more).replace("module=\"m\"", "module=\"r\"")
    };
    let handler = ",handler=\"h\"";
    for (build, sum, presence) in
        [("old", 0.1, "VALUE+0x5 stale"), ("new", 0.13, "_x12 VALUE+0x48")]
    {
        let mut add = |name: &str, value: f64, more: &str| {
            add(restarted(name, build, more), &presence.replace("VALUE", &value.to_string()));
        };
        add("profiler_handler_duration_seconds_count", 1e5, handler);
        add("profiler_handler_duration_seconds_sum", sum, handler);
        add("profiler_module_build_current", 1.0, "");
        add("profiler_module_build_last_measured_timestamp_seconds", 60.0, "");
    }
    add("up{job=\"profiler\",instance=\"d\"}".to_owned(), "0+0x60");
    let state = |host| of("profiler_handler_state", host, "new", ",handler=\"h\",state=\"shed\"");
    // Shed for an hour but for a trial every ten minutes, and shed for three minutes alone.
    add(state("a"), &"1+0x8 0 ".repeat(6));
    add(state("b"), "0+0x30 1+0x2 0+0x26");
    add(of("profiler_budget_enforced", "a", "new", ""), "0+0x60");
    let at = |name: &str, host: &str, more: &str| {
        format!("{name}{{job=\"profiler\",instance=\"{host}\"{more}}}")
    };
    add(at("profiler_module_phase", "b", ",module=\"m\",phase=\"refused\""), "1+0x60");
    add(at("profiler_waiting_intervals", "c", ""), "3+0x60");
    add(at("profiler_lost_intervals_total", "c", ""), "0+0x10 2+0x49");
    for (result, values) in [("failed", "0+1x60"), ("accepted", "5+0x60")] {
        add(at("profiler_otlp_pushes_total", "c", &format!(",result=\"{result}\"")), values);
    }
    let fired = |labels: &[&str], summary: &str| {
        let mut text = "          - exp_labels:\n".to_owned();
        for label in labels {
            text.push_str(&format!("              {label}\n"));
        }
        format!("{text}            exp_annotations:\n              summary: \"{summary}\"\n")
    };
    let expected = |at: &str, alert: &str, labels: &[&str], summary: &str| {
        let text =
            format!("      - eval_time: {at}\n        alertname: {alert}\n        exp_alerts:");
        match labels {
            [] => format!("{text} []\n"),
            labels => format!("{text}\n{}", fired(labels, summary)),
        }
    };
    let mut tests = String::new();
    tests += &expected("10m", "ProfilerHandlerSlower", &[], "");
    tests += &expected(
        "30m",
        "ProfilerHandlerSlower",
        &["severity: warning", "module: m", "handler: h"],
        "h of m takes 1.2us on average: over 10 % more than in the build before",
    );
    // A second alert of the same moment.
    tests += &fired(
        &["severity: warning", "module: r", "handler: h"],
        "h of r takes 1.3us on average: over 10 % more than in the build before",
    );
    tests += &expected(
        "40m",
        "ProfilerHandlerLosses",
        &["severity: warning", "instance: b", "module: m", "handler: h"],
        "0.5% of the calls of h on b are not measured",
    );
    tests += &expected("3m", "ProfilerDown", &[], "");
    tests += &expected(
        "10m",
        "ProfilerDown",
        &["severity: warning", "job: profiler", "instance: d"],
        "no scrape of the profiler on d",
    );
    tests += &expected(
        "20m",
        "ProfilerStuck",
        &["severity: warning", "job: profiler", "instance: c"],
        "the profiler on c has collected nothing for 20m 0s",
    );
    for (at, alert, severity, labels, summary) in [
        (
            "50m",
            "ProfilerHandlerShed",
            "info",
            &["instance: a", "module: m", "build: new", "handler: h", "state: shed"][..],
            "h of m on a was not measured for 90.2% of the last hour: its probes cost more than the budget",
        ),
        (
            "20m",
            "ProfilerBudgetNotEnforced",
            "warning",
            &["instance: a", "module: m", "build: new"],
            "m on a is measured without regard to max-overhead: the daemon's log says why",
        ),
        (
            "20m",
            "ProfilerModuleRefused",
            "warning",
            &["instance: b", "module: m", "phase: refused"],
            "m on b cannot be measured: `profiler status` there says why",
        ),
        (
            "20m",
            "ProfilerIntervalsWait",
            "warning",
            &["instance: c"],
            "c cannot write its intervals: 3 are in memory alone, and a kill would take them",
        ),
        (
            "20m",
            "ProfilerIntervalsLost",
            "warning",
            &["instance: c"],
            "intervals of c are lost: its log says why",
        ),
        (
            "40m",
            "ProfilerPushesFail",
            "warning",
            &["instance: c", "result: failed"],
            "no push of c reaches its collector",
        ),
    ] {
        let severity = format!("severity: {severity}");
        let labels = [&[severity.as_str(), "job: profiler"], labels].concat();
        tests += &expected(at, alert, &labels, summary);
    }
    let text = std::fs::read_to_string(fleet("alerts.yml")).unwrap();
    for alert in text.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n")), "{alert}");
    }
    let (rules, alerts) = (fleet("rules.yml"), fleet("alerts.yml"));
    let text = format!(
        "rule_files:\n  - {}\n  - {}\nevaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{series}    alert_rule_test:\n{tests}",
        rules.display(),
        alerts.display()
    );
    std::fs::write(&file, text).unwrap();
    let tested = run(&["test", "rules", file.to_str().unwrap()], b"");
    assert!(
        tested.status.success(),
        "{}{}",
        String::from_utf8_lossy(&tested.stdout),
        String::from_utf8_lossy(&tested.stderr)
    );
}

/// Two builds of two handlers. Times from 50 ns to 50 ms, so that many buckets are in use.
fn spread() -> profiler::serve::state::State {
    let mut state = state();
    let times = |seed: u64| -> Vec<u64> {
        (0..20_000).map(|n: u64| 50 + (n * seed) % 997 + (n % 37).pow(6) / 52).collect()
    };
    let handlers = |seed| [measure("a", &times(seed)), measure("b", &times(seed + 2))];
    state.builds = vec![
        build("hids", "old", "2026-11-21T12:00:00Z", &handlers(3)),
        build("hids", "new", "2026-11-21T12:30:00Z", &handlers(7)),
    ];
    state
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn prometheus_stores_native_histograms() {
    let state = spread();
    let server = Server::start(state.clone());
    let prometheus = scraping(&server, &["--enable-feature=native-histograms"]);
    for build in &state.builds {
        for handler in &build.recording().handlers {
            let value = |query: &str| prometheus.value(query, &build.id, &handler.name);
            assert_eq!(
                value("histogram_count(profiler_handler_duration_seconds)"),
                handler.count as f64
            );
            assert_eq!(
                value("histogram_sum(profiler_handler_duration_seconds)"),
                handler.sum_ns as f64 / 1e9
            );
            for quantile in [0.5, 0.9, 0.99, 0.999] {
                let found = value(&format!(
                    "histogram_quantile({quantile}, profiler_handler_duration_seconds)"
                ));
                let recorded = handler.quantile_ns(quantile).unwrap() as f64 / 1e9;
                let width = 2_f64.powf(1.0 / 32.0) * 1.000_001;
                assert!(
                    recorded / width <= found && found <= recorded * width,
                    "{quantile}: {found} and {recorded}"
                );
            }
        }
    }
    let classic = prometheus.query("profiler_handler_duration_seconds_bucket").unwrap();
    assert!(classic.is_empty(), "one of both is stored: {classic:?}");
    assert_eq!(prometheus.query("profiler_drains_total").unwrap()[0].1, 5_400.0);
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` has it"]
fn prometheus_stores_classic_histograms() {
    let state = spread();
    let server = Server::start(state.clone());
    let prometheus = scraping(&server, &[]);
    let name = "profiler_handler_duration_seconds";
    for build in &state.builds {
        for handler in &build.recording().handlers {
            let value = |query: &str| prometheus.value(query, &build.id, &handler.name);
            assert_eq!(value(&format!("{name}_count")), handler.count as f64);
            assert_eq!(value(&format!("{name}_sum")), handler.sum_ns as f64 / 1e9);
            for ns in [127_u64, 1_023, 1_048_575] {
                let le = format!(
                    "{name}_bucket{{le=\"{}\"}}",
                    match ns {
                        127 => "1.27e-07",
                        1_023 => "1.023e-06",
                        _ => "0.001048575",
                    }
                );
                let at_most = handler.histogram.buckets.iter().filter(|bucket| bucket.to_ns <= ns);
                assert_eq!(
                    value(&le),
                    at_most.map(|bucket| bucket.count).sum::<u64>() as f64,
                    "{ns} ns"
                );
            }
            for quantile in [0.5, 0.99] {
                let found = value(&format!("histogram_quantile({quantile}, {name}_bucket)"));
                let recorded = handler.quantile_ns(quantile).unwrap() as f64 / 1e9;
                assert!(
                    recorded / 2.01 <= found && found <= recorded * 2.01,
                    "{quantile}: {found} and {recorded}"
                );
            }
        }
    }
    assert_eq!(prometheus.query(&format!("count({name}_bucket)")).unwrap()[0].1, 4.0 * 29.0);
}
