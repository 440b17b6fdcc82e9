//! Endpoints come and go.

use crate::edited::{Edited, SOON, names};
use crate::traffic::Traffic;
use anyhow::{Result, ensure};
use pointsman_tests::Engine;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_come_and_go_and_no_request_no_stream_and_no_other_session_notices() -> Result<()> {
    let a = Engine::start_with("a", 2, "127.0.0.1:0", "0.2").await?;
    let b = Engine::start_with("b", 2, "127.0.0.1:0", "2").await?;
    let edited = Edited::start("session-affinity", &[&a]).await?;
    let host = &edited.0.host;
    let traffic = Traffic::start(&edited.0, 8, 4, false);
    traffic.more(16).await?;
    let old: Vec<String> = (0..8).map(|n| format!("old-{n}")).collect();
    let mut homes = Vec::new();
    for session in &old {
        homes.push(edited.chat(session).await?.target);
    }

    let said = edited
        .becomes(&edited.text("session-affinity", &[&a, &b]))
        .await?;
    traffic.swapped();
    assert_eq!(names(&said["endpoints"]["added"]), ["b"]);
    assert_eq!(names(&said["endpoints"]["kept"]), ["a"]);
    assert_eq!(edited.targets().await?, ["a/0", "a/1", "b/0", "b/1"]);
    for (session, home) in old.iter().zip(&homes) {
        let answer = edited.chat(session).await?;
        assert_eq!((&answer.target, answer.reason.as_str()), (home, "owner"));
    }
    // A long stream to an engine that is about to go.
    let body = json!({
        "model": "demo", "max_tokens": 200, "stream": true,
        "messages": [{ "role": "user", "content": "moves" }],
    });
    let request = host.request_with("moves", &body);
    let stream = request.header("x-pointsman-target", "b/1").send().await?;
    assert_eq!(stream.headers()["x-pointsman-target"], "b/1");

    edited.write(&edited.text("session-affinity", &[&a]))?;
    let now = edited.hangup().await?;
    traffic.swapped();
    assert!(now["last"].as_str().unwrap().contains("by SIGHUP"), "{now}");
    let metrics = host.metrics().await?;
    let on_b = metrics.sum("pointsman_target_requests", &["b/1"]);
    assert_eq!(on_b, 1.0, "the stream is still there");
    let moved = edited.chat("moves").await?;
    assert!(moved.target.starts_with("a/"), "{moved:?}");
    assert_eq!(moved.reason, "rebound");
    for (session, home) in old.iter().zip(&homes) {
        let answer = edited.chat(session).await?;
        assert_eq!((&answer.target, answer.reason.as_str()), (home, "owner"));
    }
    let text = String::from_utf8(stream.bytes().await?.to_vec())?;
    assert!(text.trim_end().ends_with("data: [DONE]"), "cut: {text}");
    assert!(text.matches("\"content\"").count() >= 200, "{text}");
    assert_eq!(edited.chat("moves").await?.target, moved.target);

    traffic.more(32).await?;
    let seen = traffic.stop().await?;
    println!("{seen:?}");
    host.metrics_until(SOON, |m| m.outstanding() == 0.0 && !m.has("target=\"b/"))
        .await?;
    assert_eq!(edited.targets().await?, ["a/0", "a/1"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_reloads_leave_memory_threads_and_descriptors_as_they_were() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let b = Engine::start("b", 4).await?;
    let c = Engine::start("c", 4).await?;
    let edited = Edited::start("session-affinity", &[&a, &b]).await?;
    let health = "health = { interval = \"20ms\" }\n";
    let fleets = [[&a, &b], [&a, &c]]
        .map(|engines| format!("{}{health}", edited.text("session-affinity", &engines)));
    let traffic = Traffic::start(&edited.0, 8, 4, false);
    let reloads = async |times: usize| -> Result<()> {
        for text in fleets.iter().cycle().skip(1).take(times) {
            let said = edited.becomes(text).await?;
            ensure!(said["reloaded"] == true, "{said}");
            traffic.swapped();
            traffic.more(8).await?;
        }
        Ok(())
    };
    reloads(40).await?;
    let before = edited.0.host.process.usage()?;
    reloads(200).await?;
    let after = edited.0.host.process.usage()?;
    println!("{before:?} {after:?}");
    ensure!(
        after.resident_kb < before.resident_kb + (8 << 10),
        "{before:?} {after:?}"
    );
    ensure!(after.threads <= before.threads + 2, "{before:?} {after:?}");
    ensure!(after.files <= before.files + 16, "{before:?} {after:?}");
    let seen = traffic.stop().await?;
    println!("{seen:?}");
    assert!(
        seen.crossed >= 4,
        "streams must be open meanwhile: {seen:?}"
    );
    let metrics = edited
        .0
        .host
        .metrics_until(SOON, |m| m.outstanding() == 0.0)
        .await?;
    assert_eq!(metrics.sum("pointsman_target_up", &[]), 6.0);
    Ok(())
}
