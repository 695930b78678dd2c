//! The page of a recording in a browser: it is drawn, it can be used, and it asks nobody for
//! anything. `cargo xtask test` runs this with a Python that has Playwright; screenshots are left
//! below `target/test/html`.

use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_export::html;
use profiler_recording::call_tree::TreeNode;
use serde_json::Value;

use crate::common::{handler, measure, sample};
use crate::explain::recording;
use crate::gate::failed_page;
use crate::html::several_runs;

/// Programs that the runner names.
const PYTHON: &str = "PROFILER_READERS_PYTHON";
const BROWSER: &str = "PROFILER_BROWSER";

fn look(pages: &[(&str, Vec<u8>)]) -> Vec<Value> {
    let python = std::env::var_os(PYTHON).expect(PYTHON);
    let browser = std::env::var_os(BROWSER).expect(BROWSER);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shots = root.join("../target/test/html");
    std::fs::create_dir_all(&shots).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = pages
        .iter()
        .map(|(name, bytes)| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        })
        .collect();
    let output = Command::new(python)
        .arg(root.join("tests/host/look.py"))
        .arg(browser)
        .arg(&shots)
        .args(&paths)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap();
    paths.iter().map(|path| seen[path.to_str().unwrap()].clone()).collect()
}

#[test]
#[ignore = "needs a browser and a Python that steers it: `cargo xtask test` has both"]
fn the_page_works_in_a_browser() {
    let mut exact = recording(10, 7, 0);
    // One value would be said in words.
    let calls = [vec![207; 9], vec![209]].concat();
    exact.handlers = vec![handler(&measure("connect_handler", &calls))];
    let tree = exact.call_tree.as_mut().unwrap();
    for depth in 2..5 {
        // A function below kmalloc, and so on.
        let below = TreeNode { parent: Some(depth), ..tree.nodes[2].clone() };
        tree.nodes.push(below);
    }
    let seen = look(&[
        ("one.html", html::page(std::slice::from_ref(&sample()))),
        ("exact.html", html::page(std::slice::from_ref(&exact))),
        ("runs.html", html::page(&several_runs())),
        ("gate.html", failed_page()),
    ]);
    for (seen, plots) in seen.iter().zip([5, 2, 5, 3]) {
        assert_eq!(seen["console"], Value::Array(vec![]), "{seen:#}");
        assert_eq!(seen["requests"], Value::Array(vec![]), "{seen:#}");

        let drawn = seen["plots"].as_array().unwrap();
        assert_eq!(drawn.len(), plots, "{seen:#}");
        for plot in drawn {
            assert_eq!(plot["drawn"], true, "{seen:#}");
            assert!(plot["width"].as_f64().unwrap() > 300.0, "{seen:#}");
        }

        // Counts that differ from run to run are sorted by the smallest.
        let numbers = |key: &str| -> Vec<u64> {
            let texts = seen[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap());
            texts.map(|text| text.split("..").next().unwrap().parse().unwrap()).collect()
        };
        let mut ascending = numbers("before");
        ascending.sort_unstable();
        let descending: Vec<u64> = ascending.iter().rev().copied().collect();
        assert_eq!(numbers("descending"), descending);
        assert_eq!(numbers("ascending"), ascending);
        assert_eq!(seen["sorted_by"], "ascending");

        assert_ne!(seen["light"][0], seen["dark"][0], "the paper: {seen:#}");
        assert_ne!(seen["light"][1], seen["dark"][1], "the curves: {seen:#}");
        assert_eq!(seen["light"], seen["light_again"]);
        assert_eq!(seen["system_dark"], seen["dark"]);
        assert_eq!(seen["print"][0], "rgb(255, 255, 255)");
        assert_eq!(seen["button_in_print"], false);

        let [content, window] = [&seen["narrow"][0], &seen["narrow"][1]].map(Value::as_u64);
        assert!(content <= window, "sticks out on a phone: {seen:#}");
        assert_eq!(seen["without_script"]["button"], false);
        assert_eq!(seen["without_script"]["plots"], plots);
        assert!(seen["without_script"]["rows"].as_u64().unwrap() >= 1);
    }
    // The heads of the columns, the handler and two functions, and below one of these three more, of which the first is
    // unfolded.
    assert_eq!(seen[1]["branches"], serde_json::json!([7, 5, 7]), "{:#}", seen[1]);
    assert_eq!(seen[0]["branches"], serde_json::json!([0, 0, 0]));
}
