//! The HTTP driver against the reference engine, and against servers that misbehave.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use pointsman_engine::{Desk, Failure, HttpDialect, HttpDriver, Limits};
use pointsman_refengine::{EngineConfig, Server};

const PATIENT: Limits = Limits {
    deadline: Duration::from_secs(60),
    queue: 8,
};

/// A reference engine of two ranks on a thread; it ends with the process.
fn reference() -> String {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let config = EngineConfig {
        ranks: 2,
        ..EngineConfig::default()
    };
    let server = runtime
        .block_on(Server::bind(config, "127.0.0.1:0".parse().unwrap()))
        .unwrap();
    let url = format!("http://{}", server.local_addr());
    thread::spawn(move || runtime.block_on(server.run(std::future::pending())));
    url
}

fn desk(url: String, dialect: HttpDialect, limits: Limits) -> Desk {
    Desk::open(limits, move || HttpDriver::new(&url, dialect))
}

/// Answers every request alike.
fn server(mut answer: impl FnMut(TcpStream, &str) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).unwrap();
            answer(stream, &String::from_utf8_lossy(&head[..read]));
        }
    });
    url
}

fn body(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

fn why<T: std::fmt::Debug>(answer: Result<T, Failure>) -> String {
    match answer {
        Err(Failure::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_knob_of_the_reference_engine_can_be_set_to_its_ends_and_read_back() {
    let desk = desk(reference(), HttpDialect::Reference, PATIENT);
    assert_eq!(desk.ranks(), Ok(2));
    let knobs = desk.knobs(0).unwrap();
    assert_eq!(knobs.len(), 9);
    for knob in knobs {
        for value in [knob.low, knob.high, knob.value] {
            assert_eq!(desk.knob_set(None, &knob.name, value), Ok(()), "{knob:?}");
            assert_eq!(desk.knob_get(1, &knob.name), Ok(value), "{knob:?}");
        }
        for value in [knob.low - 1, knob.high + 1] {
            let why = why(desk.knob_set(None, &knob.name, value));
            assert!(why.contains(&format!("`{}`: wanted", knob.name)), "{why}");
        }
    }
    assert_eq!(desk.knob_set(None, "no_such", 1), Err(Failure::Unknown));
    assert_eq!(desk.knob_get(0, "no_such"), Err(Failure::Unknown));
}

#[test]
fn metrics_and_profiling_windows_of_the_reference_engine() {
    let desk = desk(reference(), HttpDialect::Reference, PATIENT);
    assert_eq!(
        desk.stat(1, "pointsman_engine_cache_blocks_capacity"),
        Ok(12_500.0)
    );
    let fires = "pointsman_engine_prefill_delayer_decisions_total{cause=\"fill\"}";
    assert_eq!(desk.stat(1, fires), Ok(0.0));
    assert_eq!(desk.stat(2, fires), Err(Failure::Unknown));
    assert_eq!(desk.profile_start(None), Ok(()));
    assert!(why(desk.profile_start(None)).contains("open already"));
    let profile = desk.profile_stop().unwrap();
    assert!(profile.contains("\"ranks\":[{\"steps\":0,"), "{profile}");
    assert!(why(desk.profile_stop()).contains("400"));
}

#[test]
fn a_trace_that_takes_longer_than_anybody_waits_is_noted_when_it_is_there() {
    let (go_on, waits) = std::sync::mpsc::channel::<()>();
    let url = server(move |mut stream, head| {
        if head.starts_with("POST /stop_profile ") {
            waits.recv().unwrap();
        }
        let answer = body("200 OK", "/traces/rank0.json.gz");
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let limits = Limits {
        deadline: Duration::from_secs(2),
        queue: 8,
    };
    let desk = desk(url, HttpDialect::Vllm, limits);
    desk.profile_start(None).unwrap();
    assert!(why(desk.profile_stop()).contains("did not answer within"));
    go_on.send(()).unwrap();
    while desk.profile().open.is_some() {
        thread::yield_now();
    }
    let place = Some(Ok("/traces/rank0.json.gz".to_owned()));
    assert_eq!(desk.profile().last, place);
}

/// Requests by their path; a driver of the engine that gets them. What the script has no answer for gets
/// none.
fn scripted(script: &'static [Option<(&'static str, &'static str)>]) -> (Desk, Receiver<String>) {
    let (log, requests) = channel();
    let mut script = script.iter();
    let url = server(move |mut stream, head| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        log.send(path.to_owned()).unwrap();
        if let Some((status, said)) = script.next().unwrap() {
            stream.write_all(body(status, said).as_bytes()).unwrap();
        }
    });
    (desk(url, HttpDialect::Vllm, PATIENT), requests)
}

#[test]
fn a_window_that_may_have_opened_is_ended_by_the_next_call_that_reaches_the_engine() {
    const REFUSED: Option<(&str, &str)> = Some(("400 Bad Request", "a window is open already"));
    const DONE: Option<(&str, &str)> = Some(("200 OK", "load 2"));
    let (desk, requests) = scripted(&[None, None, DONE, DONE, DONE, REFUSED, DONE]);
    why(desk.profile_start(None));
    // Not reached either: the doubt remains.
    assert!(why(desk.stat(0, "load")).contains("/stop_profile"));
    assert_eq!(desk.stat(0, "load"), Ok(2.0));
    assert_eq!(desk.stat(0, "load"), Ok(2.0));
    // Somebody else's.
    assert!(why(desk.profile_start(None)).contains("open already"));
    assert_eq!(desk.stat(0, "load"), Ok(2.0));
    let paths: Vec<_> = requests.try_iter().collect();
    assert_eq!(
        paths,
        [
            "/start_profile",
            "/stop_profile",
            "/stop_profile",
            "/metrics",
            "/metrics",
            "/start_profile",
            "/metrics",
        ]
    );

    // There is nothing to stop: said twice before it is believed. The next window begins at once.
    let (desk, requests) = scripted(&[None, REFUSED, REFUSED, DONE, None, DONE]);
    why(desk.profile_start(None));
    assert_eq!(desk.profile_start(None), Ok(()));
    why(desk.profile_stop());
    drop(desk);
    let paths: Vec<_> = requests.iter().take(6).collect();
    let [start, stop] = ["/start_profile", "/stop_profile"];
    assert_eq!(paths, [start, stop, stop, start, stop, stop]);
}

#[test]
fn sglangs_settings_are_read_where_they_are_and_a_refusal_inside_a_200_is_one() {
    let url = server(|mut stream, head| {
        let answer = if head.starts_with("GET /server_info ") {
            r#"{"dp_size": 4, "prefill_decode_interval": 3, "enable_metrics": true, "mem_fraction_static": 0.8,
                "internal_states": [{}, {"max_running_requests": 96}]}"#
        } else if head.contains("\"bad\"") {
            r#"[{"updated": true}, {"updated": false}]"#
        } else {
            r#"[{"updated": true}]"#
        };
        stream.write_all(body("200 OK", answer).as_bytes()).unwrap();
    });
    let desk = desk(url, HttpDialect::Sglang, PATIENT);
    assert_eq!(desk.ranks(), Ok(4));
    assert_eq!(desk.knob_get(0, "prefill_decode_interval"), Ok(3));
    assert_eq!(desk.knob_get(0, "enable_metrics"), Ok(1));
    assert_eq!(desk.knob_get(1, "max_running_requests"), Ok(96));
    assert_eq!(
        desk.knob_get(0, "max_running_requests"),
        Err(Failure::Unknown)
    );
    assert!(why(desk.knob_get(0, "mem_fraction_static")).contains("no whole number"));
    assert_eq!(desk.knob_set(None, "pp_max_micro_batch_size", 8), Ok(()));
    assert!(why(desk.knob_set(None, "bad", 8)).contains("does not take `bad`"));
}

#[test]
fn engines_that_are_gone_refuse_or_talk_nonsense_are_failures_that_say_so() {
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gone = desk(format!("http://{gone}"), HttpDialect::Vllm, PATIENT);
    assert!(why(gone.profile_start(None)).contains("/start_profile"));

    let broken = server(|mut stream, _| {
        stream
            .write_all(body("500 Internal Server Error", "out of memory").as_bytes())
            .unwrap();
    });
    let broken = desk(broken, HttpDialect::Vllm, PATIENT);
    let said = why(broken.profile_stop());
    assert!(
        said.contains("/stop_profile: 500") && said.contains("out of memory"),
        "{said}"
    );
    assert_eq!(broken.knob_set(None, "x", 1), Err(Failure::Unknown));

    let old = server(|mut stream, _| {
        stream
            .write_all(body("404 Not Found", "").as_bytes())
            .unwrap()
    });
    assert_eq!(
        desk(old, HttpDialect::Vllm, PATIENT).profile_start(None),
        Err(Failure::Unknown)
    );

    let nonsense = server(|mut stream, _| {
        stream
            .write_all(body("200 OK", "<html>").as_bytes())
            .unwrap()
    });
    assert!(why(desk(nonsense, HttpDialect::Sglang, PATIENT).ranks()).contains("server_info: "));

    let moved = server(|mut stream, _| {
        stream.write_all(body("302 Found", "").as_bytes()).unwrap();
    });
    assert!(why(desk(moved, HttpDialect::Vllm, PATIENT).profile_start(None)).contains("302"));

    let wrong = desk("ftp://x".into(), HttpDialect::Vllm, PATIENT);
    assert!(why(wrong.ranks()).contains("wanted http://HOST:PORT, found ftp://x"));
}

#[test]
fn an_answer_without_end_and_one_that_never_comes_are_given_up() {
    let endless = server(|mut stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
        while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
    });
    let endless = desk(endless, HttpDialect::Vllm, PATIENT);
    assert!(why(endless.stat(0, "x")).contains("the answer has more than"));

    let silent = server(|stream, _| std::mem::forget(stream));
    let limits = Limits {
        deadline: Duration::from_millis(50),
        queue: 8,
    };
    let silent = desk(silent, HttpDialect::Vllm, limits);
    assert_eq!(
        why(silent.stat(0, "x")),
        "the driver did not answer within 50ms"
    );
}

#[test]
fn the_reference_engines_traces_are_downloaded_and_others_keep_theirs() {
    let url = server(|mut stream, head| {
        let answer = if head.starts_with("GET /profile/trace?rank=1 ") {
            body("200 OK", r#"{"traceEvents": []}"#)
        } else if head.starts_with("GET /profile/trace?rank=") {
            body("400 Bad Request", "rank: wanted 0 to 1")
        } else {
            body("500 Internal Server Error", head)
        };
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let soon = PATIENT.deadline;
    let reference = desk(format!("{url}/"), HttpDialect::Reference, PATIENT);
    let trace = reference.profile_trace(1, soon).unwrap();
    assert_eq!(trace, br#"{"traceEvents": []}"#);
    let refused = why(reference.profile_trace(2, soon));
    assert!(
        refused.contains("/profile/trace?rank=2: 400") && refused.contains("wanted 0 to 1"),
        "{refused}"
    );
    for dialect in [HttpDialect::Sglang, HttpDialect::Vllm] {
        let other = desk(url.clone(), dialect, PATIENT);
        assert_eq!(other.profile_trace(1, soon), Err(Failure::Unknown));
    }
}

#[test]
fn what_the_reference_engine_was_started_with_is_read() {
    let desk = desk(reference(), HttpDialect::Reference, PATIENT);
    let deployment = desk.deployment().unwrap();
    assert_eq!(deployment.data_parallel_size, Some(2));
    assert_eq!(deployment.max_num_batched_tokens, Some(8192));
    assert!(deployment.max_num_seqs.is_some(), "{deployment:?}");
}
