//! Hits that the driver's own kprobes missed, beside what the driver itself finds in their structures.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::cli::{Ended, Started, profiler, saved};
use crate::replaced::put_back;
use crate::testbed::{self, Counters};

/// The fewest that the module takes for `maxactive`.
const MAXACTIVE: u64 = 16;
/// Tasks beyond it.
const BEYOND: u64 = 8;

fn own_probes() -> Vec<Value> {
    let ended = Ended::of(&mut profiler("doctor --module hids_testbed --json"));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["no_own_probes"], Value::Null, "{ended:?}");
    report["own_probes"].as_array().unwrap().clone()
}

#[test]
#[ignore = "VM 5.10 7.2: the oldest and the newest"]
fn what_the_drivers_kprobes_missed_is_what_the_driver_says() {
    if testbed::is_loaded() {
        testbed::remove();
    }
    testbed::run(Command::new("insmod").arg(testbed::file()).arg(format!("maxactive={MAXACTIVE}")));
    let probes = own_probes();
    let of = |probes: &[Value], handler: &str| {
        let calls =
            |probe: &&Value| probe["handlers"].as_array().unwrap().contains(&handler.into());
        probes.iter().find(calls).unwrap_or_else(|| panic!("no {handler}: {probes:?}")).clone()
    };
    assert_eq!(probes.len(), 6, "{probes:?}");
    let udp = of(&probes, "udp_recvmsg_handler");
    assert_eq!(
        udp["handlers"],
        Value::from(vec!["udp_recvmsg_entry_handler", "udp_recvmsg_handler"])
    );
    assert_eq!((&udp["place"], &udp["maxactive"]), (&"udp_recvmsg".into(), &MAXACTIVE.into()));
    assert_eq!(of(&probes, "ptrace_pre_handler")["maxactive"], Value::Null);

    let mut run = Started::run(
        "--module hids_testbed --handler udp_recvmsg_handler --duration 60s --json {}/r.json",
        &[],
    );
    run.wait_measuring();
    std::thread::scope(|scope| {
        for _ in 0..MAXACTIVE + BEYOND {
            scope.spawn(|| {
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                assert!(socket.recv(&mut [0]).is_err());
            });
        }
    });
    run.signal(Signal::SIGINT);
    let ended = run.end();
    let recording = saved(run.path("r.json"), &ended.stdout);
    assert!(ended.stderr.contains("6 kprobes of its own (maxactive 16); "), "{ended:?}");
    let warning = recording.warnings.iter().find(|warning| warning.code == "driver-missed");
    let text = &warning.unwrap_or_else(|| panic!("{:?}", recording.warnings)).text;
    assert!(text.contains("udp_recvmsg (maxactive 16) missed 8 hits during the run"), "{text}");
    // `secret` is for root's eyes alone.
    let parameters = &recording.modules[0].parameters;
    assert_eq!(
        parameters.keys().collect::<Vec<_>>(),
        ["every_call", "maxactive"],
        "{parameters:?}"
    );

    let probes = own_probes();
    let udp = of(&probes, "udp_recvmsg_handler");
    assert_eq!(udp["beyond_maxactive"], Value::from(BEYOND), "{udp}");
    let count = |probe: &Value| {
        probe["missed"].as_u64().unwrap() + probe["beyond_maxactive"].as_u64().unwrap()
    };
    assert_eq!(probes.iter().map(count).sum::<u64>(), Counters::missed(), "{probes:?}");
    put_back();
}
