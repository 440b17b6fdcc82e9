//! TTFT and ITL, for those targets of which somebody wants to know. Bounds that hold on any machine: what is
//! waited for here is in the times, and the times are in what the client waits.

use crate::harness::*;
use http_body_util::BodyExt;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const BODY: &str = r#"{"model":"m","messages":["12345678"]}"#;
const WAIT: Duration = Duration::from_millis(30);
/// Of the windows' quantiles.
const ERROR: f64 = 1.05;

fn measure(rig: &Running, endpoints: &[&str]) {
    let fleet = rig.core.fleet.snapshot();
    (rig.core.measured).follow(&fleet, |name| endpoints.contains(&name));
}

fn stat(rig: &Running, target: u32, name: &str) -> Option<f64> {
    (rig.core.measured).stat(target, rig.core.now_ms(), name)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[tokio::test]
async fn the_first_bytes_of_a_stream_are_its_ttft_and_events_that_come_together_share_their_gap() {
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &engine).start();
    measure(&rig, &["a"]);
    let mut client = rig.client().await;
    let began = Instant::now();
    let response = client.begin(post("/", &[], BODY)).await;
    let stream = streams.recv().await.unwrap();
    let mut body = response.into_body();
    sleep(WAIT).await;
    let first = Instant::now();
    stream.send(Ok("data: 1\n\ndata: also\n\n")).unwrap();
    body.frame().await.unwrap().unwrap();
    let ttft = stat(&rig, 0, "ttft_ms_mean").unwrap();
    assert!(ttft >= ms(WAIT) && ttft <= ms(began.elapsed()), "{ttft}");
    assert_eq!(stat(&rig, 0, "itl_ms_mean"), None, "no gap yet");
    // Neither ends an event nor begins a gap.
    stream.send(Ok(": still here\n\ndata: ha")).unwrap();
    body.frame().await.unwrap().unwrap();
    assert_eq!(stat(&rig, 0, "itl_ms_mean"), None);
    sleep(WAIT).await;
    stream.send(Ok("lf\n\ndata: 3\n\n")).unwrap();
    body.frame().await.unwrap().unwrap();
    let (both, itl) = (ms(first.elapsed()), stat(&rig, 0, "itl_ms_mean").unwrap());
    assert!(
        2.0 * itl >= ms(WAIT) && 2.0 * itl <= both,
        "{itl}, two in {both}"
    );
    let p99 = stat(&rig, 0, "itl_ms_p99").unwrap();
    assert!(
        p99 <= ERROR * itl && itl <= ERROR * p99,
        "{p99}, all are {itl}"
    );
    sleep(WAIT).await;
    stream.send(Ok("data: [DONE]\n\n")).unwrap();
    drop(stream);
    body.collect().await.unwrap();
    assert_eq!(
        stat(&rig, 0, "itl_ms_mean"),
        Some(itl),
        "its end is no token"
    );
    let metrics = rig.metrics().await;
    for kind in ["ttft", "itl"] {
        for quantile in ["0.5", "0.9", "0.99"] {
            let series = format!(
                "pointsman_target_{kind}_seconds{{target=\"a/0\",quantile=\"{quantile}\"}} 0.0"
            );
            assert!(metrics.contains(&series), "{series} in {metrics}");
        }
    }
}

#[tokio::test]
async fn time_at_an_engine_that_failed_is_no_time_of_the_one_that_answers() {
    let failing = Engine::start(|_| async {
        sleep(WAIT).await;
        say(500, "{}")
    })
    .await;
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &failing).endpoint("b", &engine);
    let rig = rig.start();
    measure(&rig, &["a", "b"]);
    let began = Instant::now();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], BODY)).await;
    assert_eq!(failing.seen().len(), 1, "it is asked first");
    let stream = streams.recv().await.unwrap();
    stream.send(Ok("data: 1\n\n")).unwrap();
    response.into_body().frame().await.unwrap().unwrap();
    let ttft = stat(&rig, 1, "ttft_ms_mean").unwrap();
    assert!(ttft <= ms(began.elapsed() - WAIT), "{ttft}");
    assert_eq!(stat(&rig, 0, "ttft_ms_mean"), None);
}

#[tokio::test]
async fn answers_that_are_no_stream_or_an_error_and_targets_that_nobody_wants_are_not_measured() {
    let engine = Engine::start(|seen| async move {
        match seen.uri.path() {
            "/json" => json("{}"),
            path => {
                let (sender, mut answer) = chunks();
                sender.send(Ok("data: 1\n\ndata: 2\n\n")).unwrap();
                if path == "/error" {
                    *answer.status_mut() = http::StatusCode::BAD_REQUEST;
                }
                answer
            }
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    rig.send(post("/stream", &[], BODY)).await;
    measure(&rig, &["a"]);
    rig.send(post("/json", &[], BODY)).await;
    rig.send(post("/error", &[], BODY)).await;
    assert_eq!(stat(&rig, 0, "ttft_ms_mean"), None);
    assert!(!rig.metrics().await.contains("_ttft_seconds{"));
    rig.send(post("/stream", &[], BODY)).await;
    assert!(stat(&rig, 0, "ttft_ms_mean").is_some());
    measure(&rig, &[]);
    assert_eq!(stat(&rig, 0, "ttft_ms_mean"), None);
}
