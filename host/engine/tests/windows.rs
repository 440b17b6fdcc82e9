//! Windows over several engines: collected into a folder, whatever the engines and the disk do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pointsman_engine::windows::{Collector, Driven, Index, Settings, State};
use pointsman_engine::{Desk, Driver, Failure, Knob, Limits, Opener};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const PATIENT: Limits = Limits {
    deadline: SOON,
    queue: 8,
};

/// What an engine does with its traces.
#[derive(Clone)]
enum Does {
    /// So many ranks, each with a trace.
    Traces(u32),
    /// The same, but rank 1's is garbage, and rank 2's cannot be had.
    Some,
    /// Keeps them.
    Keeps,
    /// Fails to stop.
    Fails,
    /// Waits before it answers to a stop.
    Hangs(Arc<Mutex<Receiver<()>>>),
    /// Waits before it hands one out.
    Waits(Arc<Mutex<Receiver<()>>>),
}

struct Scripted(Does);

impl Driver for Scripted {
    fn ranks(&mut self) -> Result<u32, Failure> {
        Ok(match self.0 {
            Does::Traces(ranks) => ranks,
            Does::Some => 3,
            _ => 1,
        })
    }

    fn knobs(&mut self, _rank: u32) -> Result<Vec<Knob>, Failure> {
        Ok(Vec::new())
    }

    fn knob_get(&mut self, _rank: u32, _name: &str) -> Result<i64, Failure> {
        Ok(7)
    }

    fn knob_set(&mut self, _rank: Option<u32>, _name: &str, _value: i64) -> Result<(), Failure> {
        Ok(())
    }

    fn stat(&mut self, _rank: u32, _name: &str) -> Result<f64, Failure> {
        Err(Failure::Unknown)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        match &self.0 {
            Does::Hangs(go_on) => {
                let _ = go_on.lock().unwrap().recv();
                Ok(String::new())
            }
            Does::Fails => Err(Failure::Unavailable("the disk is full".into())),
            Does::Keeps => Ok("/traces/of/mine.json.gz".into()),
            _ => Ok("{\"steps\": 3}".into()),
        }
    }

    fn profile_trace(&mut self, rank: u32) -> Result<Vec<u8>, Failure> {
        let trace = format!(
            r#"{{"traceEvents":[{{"ph":"X","name":"decode","pid":1,"tid":{rank},"ts":5,"dur":2}}]}}"#
        );
        match (&self.0, rank) {
            (Does::Keeps, _) => return Err(Failure::Unknown),
            (Does::Some, 1) => return Ok(b"{\"traceEvents\": [{\"ph\"".to_vec()),
            (Does::Some, 2) => return Err(Failure::Unavailable("rank 2 is gone".into())),
            (Does::Waits(go_on), _) => go_on.lock().unwrap().recv().unwrap(),
            _ => {}
        }
        Ok(trace.into_bytes())
    }
}

fn engines(does: &[(&str, &'static str, Does)]) -> Vec<Driven> {
    (does.iter())
        .map(|(name, role, does)| {
            let does = does.clone();
            Driven {
                name: (*name).into(),
                role,
                desk: Desk::open(PATIENT, move || Ok(Scripted(does.clone()))),
            }
        })
        .collect()
}

fn collector(engines: &[Driven], folder: Option<&Path>, keep: usize) -> Collector {
    let (engines, folder) = (engines.to_vec(), folder.map(Path::to_owned));
    Collector::start(Settings { folder, keep }, move || engines.clone()).unwrap()
}

/// One that ends by itself, to its end.
fn window(collector: &Collector) -> Index {
    let opened = collector.open("me", |_| true, Some(Duration::from_millis(1)));
    let index = collector.wait(&opened.window, SOON).unwrap();
    assert_eq!(index.state, State::Done, "{index:?}");
    index
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_window_leaves_each_ranks_trace_all_of_them_merged_and_an_index() {
    let place = tempfile::tempdir().unwrap();
    let all = engines(&[
        ("a", "prefill", Does::Traces(2)),
        ("b", "decode", Does::Some),
        ("c", "decode", Does::Keeps),
        ("d", "decode", Does::Fails),
    ]);
    let collector = collector(&all, Some(&place.path().join("made")), 16);
    let index = window(&collector);
    let folder = Path::new(index.folder.as_ref().unwrap());
    assert_eq!(folder, place.path().join("made").join(&index.window));
    assert_eq!(
        files(folder),
        [
            "a-rank-0.trace.json",
            "a-rank-1.trace.json",
            "b-rank-0.trace.json",
            "b-rank-1.invalid",
            "index.json",
            "merged.trace.json"
        ]
    );
    assert!(!index.is_whole());
    let written = json(&folder.join("index.json"));
    assert_eq!(written["state"], "done");
    assert_eq!(written["opened_by"], "me");
    assert_eq!(written["wanted_ms"], 1);
    assert_eq!(written["roles"], serde_json::json!(["decode", "prefill"]));
    let said = |n: usize| {
        (
            &written["engines"][n]["said"],
            &written["engines"][n]["error"],
        )
    };
    assert_eq!(said(0), (&serde_json::json!({ "steps": 3 }), &Value::Null));
    assert_eq!(said(2).0, "/traces/of/mine.json.gz");
    assert_eq!(said(3), (&Value::Null, &Value::from("the disk is full")));
    let b = &written["engines"][1]["traces"];
    assert_eq!(
        (&b[0]["events"], &b[0]["error"]),
        (&Value::from(1), &Value::Null)
    );
    assert!(
        b[1]["error"]
            .as_str()
            .unwrap()
            .starts_with("this is no trace: EOF"),
        "{b}"
    );
    assert_eq!(b[2]["error"], "rank 2 is gone");
    assert_eq!(
        b[0]["bytes"],
        std::fs::metadata(folder.join("b-rank-0.trace.json"))
            .unwrap()
            .len()
    );
    let digest = std::process::Command::new("sha256sum")
        .arg(folder.join("merged.trace.json"))
        .output()
        .unwrap();
    let digest = String::from_utf8(digest.stdout).unwrap();
    assert_eq!(
        digest.split(' ').next(),
        written["merged"]["sha256"].as_str()
    );
    let merged = json(&folder.join("merged.trace.json"));
    let names: Vec<_> = (merged["traceEvents"].as_array().unwrap().iter())
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a/0", "a/1", "b/0"]);
    assert_eq!(written["merged"]["events"], 3);
    assert_eq!(collector.windows()[0], written);
    assert!(collector.file(&index.window, "b-rank-1.invalid").is_some());
    assert_eq!(collector.file(&index.window, "../../x"), None);
}

#[test]
fn windows_without_a_folder_are_summaries_and_fetch_nothing() {
    let all = engines(&[("a", "serve", Does::Some)]);
    let collector = collector(&all, None, 2);
    for _ in 0..3 {
        let index = window(&collector);
        assert!(index.is_whole(), "{index:?}");
        assert_eq!((index.folder, index.engines[0].traces.len()), (None, 0));
    }
    assert_eq!(collector.windows().len(), 2, "the last ones are kept");
}

#[test]
fn only_the_last_windows_are_kept_and_those_of_hosts_before_count() {
    let place = tempfile::tempdir().unwrap();
    let all = engines(&[("a", "serve", Does::Traces(1))]);
    let first = collector(&all, Some(place.path()), 3);
    let names: Vec<_> = (0..2).map(|_| window(&first).window).collect();
    assert!(
        names[0].ends_with("-0001") && names[1].ends_with("-0002"),
        "{names:?}"
    );
    drop(first);
    // The host's next start: the same folder, new drivers.
    let all = engines(&[("a", "serve", Does::Traces(1))]);
    let second = collector(&all, Some(place.path()), 3);
    assert_eq!(second.windows().len(), 2);
    assert!(second.window(&names[0]).is_some());
    let names: Vec<_> = (0..2).map(|_| window(&second).window).collect();
    assert!(names[1].ends_with("-0004"), "{names:?}");
    // Done first, cleaned after: the last window that was written has been followed by that.
    window(&second);
    let kept = files(place.path());
    assert!(kept.len() <= 4 && kept.contains(&names[1]), "{kept:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_and_the_window_ends_all_the_same() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
    let all = engines(&[("a", "serve", Does::Traces(1))]);
    let collector = collector(&all, Some(&file.join("below")), 3);
    let index = window(&collector);
    let error = index.error.clone().unwrap();
    assert!(
        error.contains("cannot write") && error.contains("below"),
        "{error}"
    );
    assert_eq!(
        index.engines[0].said,
        Some(serde_json::json!({ "steps": 3 }))
    );
    assert_eq!((index.folder, all[0].desk.profile().open), (None, None));
    // And the next one begins.
    window(&collector);
}

#[test]
fn a_host_that_ends_leaves_an_index_that_names_the_engines_that_did_not_answer() {
    let place = tempfile::tempdir().unwrap();
    let [hangs, waits] = [channel(), channel()];
    let all = engines(&[
        ("a", "serve", Does::Traces(1)),
        ("b", "decode", Does::Hangs(Arc::new(Mutex::new(hangs.1)))),
        ("c", "decode", Does::Waits(Arc::new(Mutex::new(waits.1)))),
    ]);
    let first = collector(&all, Some(place.path()), 3);
    let opened = first.open("me", |_| true, None);
    for engine in [&all[0], &all[2]] {
        engine.desk.profile_stop().unwrap();
    }
    while first.window(&opened.window).unwrap()["engines"] == serde_json::json!([]) {
        thread::yield_now();
    }
    first.end(Duration::from_millis(1));
    let names = files(place.path());
    assert_eq!(names, [&*opened.window], "not partial");
    let folder = place.path().join(&opened.window);
    assert!(folder.join("a-rank-0.trace.json").is_file());
    let index = json(&folder.join("index.json"));
    assert_eq!(
        (&index["state"], &index["merged"]["events"]),
        (&"done".into(), &1.into())
    );
    let said: Vec<_> = (index["engines"].as_array().unwrap().iter())
        .map(|part| {
            (
                part["engine"].as_str().unwrap(),
                part["error"].as_str().unwrap_or(""),
            )
        })
        .collect();
    let [a, b, c] = said[..] else {
        panic!("{said:?}")
    };
    assert_eq!(a, ("a", ""));
    assert!(
        b.0 == "b" && b.1.starts_with("it did not answer before the host ended"),
        "{b:?}"
    );
    assert_eq!(
        c,
        ("c", "the host ended before all its traces were fetched")
    );
    drop((hangs.0, waits.0));

    // One alone, which leaves nothing: that is said as well.
    let (go_on, hangs) = channel();
    let all = engines(&[("b", "decode", Does::Hangs(Arc::new(Mutex::new(hangs))))]);
    let second = collector(&all, Some(place.path()), 3);
    let opened = second.open("me", |_| true, None);
    second.end(Duration::from_millis(1));
    let index = json(&place.path().join(&opened.window).join("index.json"));
    assert_eq!(index["engines"][0]["engine"], "b", "{index}");
    drop(go_on);
}

#[test]
fn a_window_whose_driver_is_ended_by_a_reload_says_that_it_was_cut() {
    let place = tempfile::tempdir().unwrap();
    let all = ["a", "b", "c"].map(|name| (name, "serve", Does::Traces(1)));
    // Of the three, a is removed, b gets another driver, and c stays.
    let now = Arc::new(Mutex::new(engines(&all)));
    let of = now.clone();
    let settings = Settings {
        folder: Some(place.path().to_owned()),
        keep: 3,
    };
    let collector = Collector::start(settings, move || of.lock().unwrap().clone()).unwrap();
    let opened = collector.open("me", |_| true, None);
    let before = std::mem::replace(&mut *now.lock().unwrap(), engines(&all[1..2]));
    now.lock().unwrap().push(before[2].clone());
    drop(before);
    while collector.window(&opened.window).unwrap()["engines"]
        .as_array()
        .unwrap()
        .len()
        < 2
    {
        thread::yield_now();
    }
    collector.stop(|_| true);
    let index = collector.wait(&opened.window, SOON).unwrap();
    let said: Vec<_> = (index.engines.iter())
        .map(|part| (part.error.as_deref().unwrap_or(""), part.traces.len()))
        .collect();
    let cut = "its window was cut short: a reload, or the host's end, ended its driver";
    let gone = format!("{cut}; the engine was removed before its traces were fetched");
    assert_eq!(said, [(&*gone, 0), (cut, 1), ("", 1)]);
}

#[test]
fn windows_that_policies_open_are_collected_and_those_that_overlap_are_one() {
    let place = tempfile::tempdir().unwrap();
    let all = engines(&[
        ("a", "prefill", Does::Traces(1)),
        ("b", "prefill", Does::Traces(1)),
    ]);
    let collector = collector(&all, Some(place.path()), 3);
    let policy = Opener {
        by: "policy p".into(),
        number: 0,
    };
    for engine in &all {
        engine.desk.profile_start_for(policy.clone(), None).unwrap();
    }
    for engine in &all {
        engine.desk.profile_stop().unwrap();
    }
    let done = loop {
        match &collector.windows()[..] {
            [one] if one["state"] == "done" => break one.clone(),
            [] | [_] => thread::yield_now(),
            more => panic!("{more:?}"),
        }
    };
    assert_eq!(done["opened_by"], "policy p");
    assert_eq!(done["engines"].as_array().unwrap().len(), 2);
    assert_eq!(done["merged"]["events"], 2);
}

#[test]
fn a_policys_next_window_is_done_also_if_the_last_one_was_still_being_collected() {
    let place = tempfile::tempdir().unwrap();
    let (go_on, waits) = channel();
    let waits = Does::Waits(Arc::new(Mutex::new(waits)));
    let all = engines(&[("a", "serve", Does::Traces(1)), ("b", "serve", waits)]);
    let collector = collector(&all, Some(place.path()), 3);
    let policy = Opener {
        by: "policy p".into(),
        number: 0,
    };
    let window = |n: usize| {
        all[n].desk.profile_start_for(policy.clone(), None).unwrap();
        all[n].desk.profile_stop().unwrap();
    };
    // Until it is collected, `a` opens no other.
    window(0);
    while all[0].desk.profile().collecting.is_some() {
        thread::yield_now();
    }
    window(1);
    window(0);
    go_on.send(()).unwrap();
    let done = loop {
        let windows = collector.windows();
        if windows.len() > 1 && windows.iter().all(|window| window["state"] == "done") {
            break windows;
        }
        thread::yield_now();
    };
    let parts = done.iter().map(|w| w["engines"].as_array().unwrap().len());
    assert_eq!(parts.sum::<usize>(), 3, "{done:?}");
}

#[test]
fn while_traces_are_fetched_others_are_served_and_no_window_begins() {
    let place = tempfile::tempdir().unwrap();
    let (go_on, waits) = channel();
    let waits = Does::Waits(Arc::new(Mutex::new(waits)));
    let all = engines(&[("a", "serve", waits), ("b", "serve", Does::Traces(1))]);
    let collector = collector(&all, Some(place.path()), 3);
    let opened = collector.open("me", |_| true, None);
    assert!(opened.engines.iter().all(|(.., said)| said.is_ok()));
    let second = collector.open("you", |_| true, None);
    for (_, _, said) in second.engines {
        let why = said.unwrap_err().to_string();
        assert_eq!(why, "a window is open already by me: stop it first");
    }
    assert_eq!(collector.window(&second.window), None);
    assert_eq!(collector.stop(|_| true).len(), 2);
    assert_eq!(all[1].desk.knob_get(0, "x"), Ok(7));
    let why = all[0].desk.profile_start(None).unwrap_err().to_string();
    assert!(why.contains("still being collected"), "{why}");
    go_on.send(()).unwrap();
    let index = collector.wait(&opened.window, SOON).unwrap();
    assert!(index.is_whole(), "{index:?}");
    all[0].desk.profile_start(None).unwrap();
}

#[test]
fn an_engine_whose_window_does_not_open_is_named_and_the_others_are_collected() {
    let place = tempfile::tempdir().unwrap();
    let all = engines(&[
        ("a", "serve", Does::Traces(1)),
        ("b", "decode", Does::Traces(1)),
    ]);
    let collector = collector(&all, Some(place.path()), 3);
    all[1].desk.profile_start(None).unwrap();
    let index = window(&collector);
    assert_eq!(index.engines[0].traces.len(), 1);
    let why = index.engines[1].error.as_ref().unwrap();
    assert!(
        why.starts_with("it was not opened: a window is open already"),
        "{why}"
    );
    let none = collector.open("me", |role| role == "prefill", None);
    assert!(none.engines.is_empty());
}
