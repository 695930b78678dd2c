//! What the page of a profile says, as text; `browser.rs` looks at it in a browser.

use profiler_explain::{NamedRuns, explain};
use profiler_export::explain::{ExplainReport, Format, Shown, render};
use profiler_export::html;
use profiler_recording::call_tree::{TreeFunction, TreeNode};
use profiler_recording::{Meter, Recording};

use crate::common::{handler, measure, sample};
use crate::explain::recording;

fn page(profile: &Recording) -> String {
    String::from_utf8(html::page(std::slice::from_ref(profile))).unwrap()
}

#[test]
fn one_page_says_everything() {
    let profile = sample();
    let text = page(&profile);
    for handler in &profile.handlers {
        assert!(text.contains(&handler.name), "{}", handler.name);
    }
    for warning in &profile.warnings {
        assert!(text.contains(&warning.text.replace('\'', "&#x27;")), "{}", warning.text);
    }
    // The overview; two handlers had hits.
    assert_eq!(text.matches("<svg").count(), 5);
    assert!(text.contains("No hit: the warnings above say why that may be."));
    for fact in ["6.1.0-56-amd64", "hids_testbed 0.1", "builtin connect, 2 workers", "AMD EPYC"] {
        assert!(text.contains(fact), "{fact}");
    }
    for figure in ["46.7702", "10000", "89000.321", ">2005<"] {
        assert!(text.contains(figure), "{figure}");
    }
    assert_eq!(page(&profile), text, "equal profiles give equal pages");
}

/// Runs of one handler of three, whose calls take longer from run to run.
pub(crate) fn several_runs() -> Vec<Recording> {
    let run = |(number, ns): (u64, [u64; 2])| {
        let mut run = sample();
        let calls = [vec![ns[0]; 90], vec![ns[1]; 10]].concat();
        run.handlers[0] = handler(&measure("connect_syscall_entry_handler", &calls));
        run.handlers[0].losses.unpaired_exits = number;
        if number > 0 {
            // It has calls in the first run alone.
            run.handlers[1] = handler(&measure("connect_syscall_handler", &[]));
        }
        run
    };
    (0..).zip([[1_000, 2_000], [1_100, 2_100], [1_500, 2_400]]).map(run).collect()
}

#[test]
fn several_runs_have_medians_and_are_drawn_run_by_run() {
    let text = String::from_utf8(html::page(&several_runs())).unwrap();
    // Averages of 1,100, 1,200 and 1,590: 40.83 % of the middle one apart. TP99 is 400 of 2,100 apart.
    for figure in [">1.2000<", ">40.83%<", ">2.100<", ">19.05%<", ">2.400<", ">300<"] {
        assert!(text.contains(figure), "{figure}: {text}");
    }
    let books = text.split("<h2>Books</h2>").nth(1).unwrap().split("</section>").next().unwrap();
    assert!(books.contains(">3</td>"), "unpaired exits of three runs: {books}");
    // The overview; what was called in each run, by run and by percentile; what was called in one, as alone.
    assert_eq!(text.matches("<svg").count(), 5, "{text}");
    assert!(text.contains("Called in run 1 alone.") && text.contains("No hit"), "{text}");
    for number in 1..=3 {
        assert!(text.contains(&format!("<th scope=\"row\">run {number}</th>")), "{text}");
    }
}

#[test]
fn the_overview_has_each_handler_with_a_call_on_one_axis() {
    let text = page(&sample());
    let overview = text.split("<figure class=\"overview\"").nth(1).unwrap();
    let overview = overview.split("</figure>").next().unwrap();
    assert_eq!(overview.matches("<circle").count(), 2, "an average a handler: {overview}");
    for name in ["connect_syscall_entry_handler", "connect_syscall_handler"] {
        assert!(overview.contains(name), "{name}: {overview}");
    }
    assert!(!overview.contains("udp_recvmsg_handler"), "it has no call: {overview}");
}

#[test]
fn a_distribution_of_one_value_is_said_and_not_drawn() {
    let constant = |value, meter| {
        let mut profile = sample();
        profile.meter = meter;
        profile.handlers = vec![handler(&measure("constant", &[value; 1_000]))];
        profile
    };
    let text = page(&constant(247, Meter::Exact));
    assert_eq!(text.matches("<svg").count(), 0);
    assert!(text.contains("Every call took 247 instructions."), "{text}");
    assert!(page(&constant(247, Meter::Probes)).contains("Every call took 247 ns."));
}

/// Names and figures of the call trees on a page, in order.
fn branches(page: &str) -> Vec<Vec<String>> {
    let of = |text: &str, tag: &str| -> Vec<String> {
        let (begin, end) = (format!("<{tag}>"), format!("</{tag}>"));
        let parts = text.split(begin.as_str()).skip(1);
        parts.map(|part| part.split(end.as_str()).next().unwrap().to_owned()).collect()
    };
    let rows = page.split("class=\"branch\">").skip(1);
    rows.map(|row| {
        let row = row.split('\n').next().unwrap();
        [of(row, "b"), of(row, "i")].concat()
    })
    .collect()
}

/// An exact recording with a function whose name is markup, and two that hardly ran.
fn exact(more: u64) -> Recording {
    let mut profile = recording(10, more, 0);
    let tree = profile.call_tree.as_mut().unwrap();
    tree.functions[2].name = "<i>kmalloc</i>".to_owned();
    for name in ["rare", "rarer"] {
        let function = tree.functions.len() as u32;
        tree.functions.push(TreeFunction { name: name.to_owned(), module: None });
        let hardly =
            TreeNode { parent: Some(2), function, calls: 1, own: 1, ..tree.nodes[2].clone() };
        tree.nodes.push(hardly);
    }
    profile
}

#[test]
fn call_trees_have_the_figures_of_explain() {
    let profile = exact(7);
    let recording = [NamedRuns { name: "a.json".to_owned(), runs: vec![&profile] }];
    let (handlers, notes) = explain(&recording, None).unwrap();
    let report = ExplainReport::new(&recording, handlers, notes);
    let json = render(&report, Format::Json, Shown::default());
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let of = &json["handlers"][0];
    let calls = of["calls"][0].as_f64().unwrap();
    let all = of["nodes"][0]["figures"][0]["inclusive"].as_f64().unwrap();
    let row = |name: &str, [calls_of, inclusive, own, iterations]: [f64; 4]| {
        let figure = |total: f64| format!("{:.2}", total / calls);
        let share = format!("{:.1} %", inclusive / all * 100.0);
        let [calls_of, inclusive, own, iterations] =
            [calls_of, inclusive, own, iterations].map(figure);
        vec![name.to_owned(), calls_of, inclusive, share, own, iterations]
    };
    let (mut expected, mut rest) = (Vec::new(), [0.0; 4]);
    for node in of["nodes"].as_array().unwrap() {
        let figures = ["calls", "inclusive", "self", "iterations"]
            .map(|key| node["figures"][0][key].as_f64().unwrap());
        let name = node["symbols"][0].as_str().unwrap();
        let module =
            node["function"]["module"].as_str().map_or(String::new(), |m| format!(" [{m}]"));
        if name.starts_with("rare") {
            rest.iter_mut().zip(figures).for_each(|(sum, more)| *sum += more);
        } else {
            let name = name.replace('<', "&lt;").replace('>', "&gt;").replace('/', "&#x2f;");
            expected.push(row(&format!("{name}{module}"), figures));
        }
    }
    // Below kmalloc.
    expected.insert(2, row("(2 others)", rest));
    let text = page(&profile);
    assert_eq!(branches(&text), expected);
    assert_eq!(expected[1][0], "&lt;i&gt;kmalloc&lt;&#x2f;i&gt;", "the largest comes first");
    assert_eq!(expected.len(), 4);
    // The handler and kmalloc unfold.
    assert_eq!((text.matches("<details").count(), text.matches("</details>").count()), (2, 2));
    let unlike =
        "<b>note:</b> this recording: the table of handlers has 10 calls and 2070 instructions";
    assert!(text.contains(unlike), "what explain notes");
    assert!(!page(&sample()).contains("class=\"tree\""), "no tree was recorded");
}

/// Browsers flatten what lies deeper than 512 elements.
#[test]
fn a_deep_call_tree_is_cut() {
    let mut profile = exact(0);
    let tree = profile.call_tree.as_mut().unwrap();
    for _ in 0..3_000 {
        let parent = tree.nodes.len() as u32 - 1;
        let below = TreeNode { parent: Some(parent), own: 1_000, ..tree.nodes[2].clone() };
        tree.nodes.push(below);
    }
    let text = page(&profile);
    assert_eq!(text.matches("<details").count(), text.matches("</details>").count());
    let rows = branches(&text);
    assert!((100..110).contains(&rows.len()), "{}", rows.len());
    assert!(rows.iter().any(|row| row[0] == "(2902 others)"), "{rows:?}");
}

#[test]
fn nothing_on_the_page_comes_from_elsewhere() {
    let text = page(&sample());
    let addresses: Vec<&str> =
        text.match_indices("//").map(|(at, _)| &text[at.saturating_sub(6)..at + 18]).collect();
    assert!(!addresses.is_empty(), "the name space of SVG at least");
    for address in addresses {
        assert!(address.contains("http://www.w3.org/"), "{address}");
    }
    for tag in ["<link rel=\"stylesheet\"", "<img", "<iframe", "src=", "@import", "url("] {
        assert!(!text.contains(tag), "{tag}");
    }
}

/// A colour that the style sheet does not know would stay as it is in the dark.
#[test]
fn every_colour_of_a_drawing_has_its_theme() {
    let text = page(&sample());
    let drawings = text.split("<svg").skip(1).map(|part| part.split("</svg>").next().unwrap());
    let mut found = 0;
    for drawing in drawings {
        for attribute in ["fill=\"", "stroke=\""] {
            for part in drawing.split(attribute).skip(1) {
                let colour = part.split('"').next().unwrap();
                if colour == "none" {
                    continue;
                }
                let name = colour.strip_prefix("var(").and_then(|of| of.strip_suffix(')'));
                let rule = format!("{}: #", name.expect("a colour of the style sheet"));
                assert!(text.matches(&rule).count() >= 3, "{rule} of light, dark and print");
                found += 1;
            }
        }
    }
    assert!(found > 50, "{found}");
}

#[test]
fn text_from_a_file_cannot_become_markup() {
    let mut profile = sample();
    profile.handlers[0].name = "</script><script>alert(1)</script>".to_owned();
    profile.warnings[0].text = "<b onmouseover=\"x()\">".to_owned();
    profile.host.cpu_model = Some("\u{202e}<i>'".to_owned());
    let text = page(&profile);
    assert_eq!(text.matches("<script>").count(), 1);
    assert_eq!(text.matches("</script>").count(), 1);
    assert!(!text.contains("<b onmouseover") && !text.contains("<i>"), "{text}");
    assert!(!text.contains('\u{202e}'));
}

#[test]
fn extreme_durations_are_drawn() {
    let cases: [(&[u64], usize); 5] = [
        (&[0, 1, 2], 2),
        (&[1, 60_000_000_000], 2),
        // One value is said in words.
        (&[1], 0),
        (&[90_000_000_000], 0),
        (&[7; 50], 0),
    ];
    for (durations, plots) in cases {
        let mut profile = sample();
        profile.handlers = vec![handler(&measure("extreme", durations))];
        let text = page(&profile);
        assert_eq!(text.matches("<svg").count(), plots, "{durations:?}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{durations:?}");
    }
}
