//! The load generator against a small server that streams like an engine.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use pointsman_replay::{Cut, LiveOptions, Record, Run, Trace, Workload, WorkloadOptions, live};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// Everything the server was sent, in order of arrival.
#[derive(Default)]
struct Seen {
    requests: Vec<(HeaderMap, Value)>,
    connections: usize,
}

type Answer = fn(&HeaderMap) -> Response<BoxBody<Bytes, std::io::Error>>;

async fn serve(answer: Answer) -> (String, Arc<Mutex<Seen>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let log = Arc::clone(&seen);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            log.lock().unwrap().connections += 1;
            let log = Arc::clone(&log);
            let service = service_fn(move |request: Request<Incoming>| {
                let log = Arc::clone(&log);
                async move {
                    let (head, body) = request.into_parts();
                    let bytes = body.collect().await.unwrap().to_bytes();
                    let json = serde_json::from_slice(&bytes).unwrap();
                    assert_eq!(head.uri.path(), "/v1/chat/completions");
                    let response = answer(&head.headers);
                    log.lock().unwrap().requests.push((head.headers, json));
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (url, seen)
}

/// A body of these pieces, one frame each.
fn streamed(pieces: &[&str]) -> BoxBody<Bytes, std::io::Error> {
    let (send, mut pipe) = mpsc::unbounded_channel();
    for piece in pieces {
        send.send(Ok(Frame::data(Bytes::from(piece.to_string()))))
            .unwrap();
    }
    drop(send);
    StreamBody::new(futures_util::stream::poll_fn(move |cx| pipe.poll_recv(cx))).boxed()
}

fn good(_: &HeaderMap) -> Response<BoxBody<Bytes, std::io::Error>> {
    Response::builder()
        .header("content-type", "text/event-stream")
        .header("x-pointsman-target", "a/1")
        .header("x-pointsman-reason", "owner")
        .header("x-engine-rank", "1")
        .body(streamed(&[
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n",
            // An event may come in pieces, and several in one.
            "data: {\"choices\":[{\"delta\":{\"con",
            "tent\":\"a\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n",
            ": a comment\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n",
            "data: [DONE]\n\n",
        ]))
        .unwrap()
}

/// A root of two turns and a child spawned after the first.
fn small() -> Workload {
    let text = r#"{"id":"root","block_size":64,"requests":[
      {"t":0,"type":"n","in":130,"out":9,"hash_ids":[1,2],"api_time":1,"think_time":0},
      {"t":2,"type":"subagent","agent_id":"a","requests":[
        {"t":0,"type":"n","in":70,"out":300,"hash_ids":[7],"api_time":1,"think_time":0}]},
      {"t":9,"type":"n","in":200,"out":5,"hash_ids":[1,2,3],"api_time":1,"think_time":8}]}"#;
    let trace = Trace::parse("small.json", text.as_bytes()).unwrap();
    let options = WorkloadOptions {
        copies: 1,
        time_scale: 0.0,
        ..WorkloadOptions::default()
    };
    Workload::build(&trace, &options).unwrap()
}

async fn play(workload: &Workload, url: &str, options: LiveOptions) -> Vec<Record> {
    live::run(workload, url, options, |_, _| ()).await.unwrap()
}

#[tokio::test]
async fn every_turn_is_sent_with_its_identity_and_recorded() {
    let (url, seen) = serve(good).await;
    let mut told = Vec::new();
    let records = live::run(&small(), &url, LiveOptions::default(), |done, total| {
        told.push((done, total))
    })
    .await
    .unwrap();
    assert_eq!(told, [(0, 3), (1, 3), (2, 3), (3, 3)]);
    for record in &records {
        assert_eq!((record.status, &record.error), (Some(200), &None));
        assert_eq!(record.target.as_deref(), Some("a/1"));
        assert_eq!(record.reason.as_deref(), Some("owner"));
        assert_eq!(record.engine_rank.as_deref(), Some("1"));
        assert_eq!(
            (
                record.prompt_tokens,
                record.cached_tokens,
                record.output_tokens
            ),
            (100, 64, 2)
        );
        let first = record.first_output.unwrap();
        assert!(record.start <= first && first <= record.last_output.unwrap());
        assert!(record.last_output.unwrap() <= record.end);
    }
    let run = Run::summarize("p", &records, &["a/0".into(), "a/1".into()]);
    assert_eq!(
        (
            run.requests,
            run.errors,
            run.prefix_hit_ratio,
            run.load_skew
        ),
        (3, 0, 0.64, 2.0)
    );

    let seen = seen.lock().unwrap();
    assert_eq!(seen.connections, 2, "one a conversation");
    let child = seen
        .requests
        .iter()
        .find(|(h, _)| h.contains_key("x-dynamo-parent-session-id"));
    let (headers, body) = child.unwrap();
    assert_eq!(headers["x-dynamo-session-id"], "user1/root/a");
    assert_eq!(headers["x-dynamo-parent-session-id"], "user1/root");
    assert_eq!(headers["x-pointsman-explain"], "1");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(body["model"], "demo");
    assert_eq!(body["stream"], true);
    assert_eq!(body["stream_options"]["include_usage"], true);
    assert_eq!(body["max_tokens"], 64);
    assert_eq!(body["messages"][0]["role"], "system");
    assert_eq!(body["messages"][0]["content"].as_str().unwrap().len(), 256);
}

#[tokio::test]
async fn a_turn_waits_for_the_answer_before_and_a_child_for_its_spawner() {
    let (url, _) = serve(good).await;
    let records = play(&small(), &url, LiveOptions::default()).await;
    let find = |session: &str, turn| {
        records
            .iter()
            .find(|r| r.session == session && r.turn == turn)
            .unwrap()
    };
    let first = find("user1/root", 0);
    assert!(find("user1/root", 1).start >= first.end);
    assert!(find("user1/root/a", 0).start >= first.end);
}

#[tokio::test]
async fn a_refusal_is_recorded_and_the_conversation_goes_on() {
    let (url, _) = serve(|_| {
        let mut response = Response::new(
            Full::new(Bytes::from("{\"error\":\n \"full\"}"))
                .map_err(|e| match e {})
                .boxed(),
        );
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    })
    .await;
    let records = play(&small(), &url, LiveOptions::default()).await;
    assert_eq!(records.len(), 3);
    for record in records {
        assert_eq!(record.status, Some(503));
        assert_eq!(
            record.error.as_deref(),
            Some("503 Service Unavailable: {\"error\": \"full\"}")
        );
    }
}

#[tokio::test]
async fn a_broken_stream_is_an_error_that_says_what_broke() {
    let cases: [(Answer, &str); 4] = [
        (
            |_| {
                Response::new(streamed(&[
                    "data: {\"error\":{\"message\":\"out of blocks\"}}\n\n",
                ]))
            },
            "out of blocks",
        ),
        (
            |_| {
                Response::new(streamed(&[
                    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
                ]))
            },
            "before [DONE]",
        ),
        (
            |_| Response::new(streamed(&["data: [DONE]\n\n"])),
            "no usage",
        ),
        (
            |_| Response::new(streamed(&["data: {oops\n\n"])),
            "reading an event",
        ),
    ];
    for (answer, wanted) in cases {
        let (url, _) = serve(answer).await;
        for record in play(&small(), &url, LiveOptions::default()).await {
            let error = record.error.unwrap();
            assert!(error.contains(wanted), "{wanted} is not in: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_never_answers_ends_in_errors_not_in_waiting() {
    let (url, _) = serve(|_| {
        let stalled = futures_util::stream::pending::<Result<Frame<Bytes>, std::io::Error>>();
        Response::new(StreamBody::new(stalled).boxed())
    })
    .await;
    let options = LiveOptions {
        timeout: Duration::from_millis(20),
        ..LiveOptions::default()
    };
    for record in play(&small(), &url, options).await {
        assert!(record.error.unwrap().contains("no complete answer"));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    for record in play(
        &small(),
        &format!("http://{address}"),
        LiveOptions::default(),
    )
    .await
    {
        assert_eq!(record.status, None);
        assert!(record.error.unwrap().contains(&address.to_string()));
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closes_is_opened_anew() {
    let (url, seen) = serve(|headers| {
        let mut response = good(headers);
        response
            .headers_mut()
            .insert("connection", "close".parse().unwrap());
        response
    })
    .await;
    let records = play(&small(), &url, LiveOptions::default()).await;
    assert!(records.iter().all(|r| r.error.is_none()));
    assert_eq!(seen.lock().unwrap().connections, 3);
}

#[tokio::test]
async fn the_whole_cut_plays_through() {
    let (url, _) = serve(good).await;
    let options = WorkloadOptions {
        copies: 1,
        time_scale: 0.0,
        ..WorkloadOptions::default()
    };
    let workload = Workload::build(&Cut::embedded().unwrap(), &options).unwrap();
    let options = LiveOptions {
        max_in_flight: 3,
        ..LiveOptions::default()
    };
    let records = play(&workload, &url, options).await;
    assert_eq!(records.len(), 69);
    assert!(
        records.iter().all(|r| r.error.is_none()),
        "{:?}",
        records.iter().find_map(|r| r.error.as_ref())
    );
}
