//! A policy is tried on the last decisions before it decides, and on recordings before that.

use crate::operated::{Operated, config, token_file};
use crate::traffic::Traffic;
use anyhow::{Context, Result};
use pointsman_tests::{Engine, Host, guest, pointsman};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

fn check(policy: &str, recording: &Path) -> Result<(Output, Value)> {
    let output = (Command::new(pointsman()).args(["--json", "policy", "check", policy]))
        .arg("--recording")
        .arg(recording)
        .output()?;
    let said = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    Ok((output, said))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_fails_on_recorded_decisions_never_decides() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    for n in 0..8 {
        assert_eq!(host.host.chat(&format!("s{n}"), "hello").await?.status, 200);
    }
    let traffic = Traffic::start(&host, 8, 2, false);
    let all = [
        ("trap-on-route", "the policy trapped"),
        ("spin", "within its time limit"),
        ("balloon", "limit of"),
        ("bad-answer", "breaks the contract"),
    ];
    for (name, why) in all {
        let said = host.upload(std::fs::read(guest(name))?, "{}").await?;
        assert_eq!((said.status, said.stage()), (422, "canary"), "{said:?}");
        assert!(said.cause().contains(why), "{said:?}");
        assert!(said.cause().contains("recorded decisions"), "{said:?}");
    }
    traffic.more(16).await?;
    let seen = traffic.stop().await?;
    assert_eq!(
        seen.policies.keys().collect::<Vec<_>>(),
        ["session-affinity"]
    );
    let status = host.status().await?;
    assert_eq!(
        (&status["generation"], &status["rollbacks"]),
        (&json!(1), &json!(0))
    );
    Ok(())
}

#[tokio::test]
async fn the_share_of_decisions_that_would_change_is_reported() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Operated::start("conversation-round-robin", &[&a]).await?;
    for turn in 0..3 {
        for n in 0..4 {
            let text = "hello ".repeat(turn + 1);
            assert_eq!(host.host.chat(&format!("s{n}"), &text).await?.status, 200);
        }
    }
    // The same policy would have said the same, whatever its numbers are by now.
    let same = host.swap("conversation-round-robin").await?.ok()?["canary"].clone();
    assert_eq!(
        (&same["decisions"], &same["changed"]),
        (&json!(12), &json!(0))
    );
    // One that always takes the first of four ranks would not.
    let said = host
        .upload(std::fs::read(guest("observer"))?, "{}")
        .await?
        .ok()?;
    let canary = &said["canary"];
    assert_eq!(
        (&canary["decisions"], &canary["changed"]),
        (&json!(12), &json!(9)),
        "{said:#}"
    );
    assert_eq!(canary["changed_share"], 0.75);
    let changes = canary["changes"].as_array().context("changes")?;
    let count = |before: &str| {
        let of = |change: &&Value| change["before"] == before && change["after"] == "first";
        (changes.iter().find(of)).and_then(|change| change["count"].as_u64())
    };
    assert_eq!(
        (count("owner"), count("placed")),
        (Some(6), Some(3)),
        "{canary:#}"
    );
    Ok(())
}

#[tokio::test]
async fn what_a_host_recorded_another_policy_can_be_tried_on_offline() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let folder = tempfile::tempdir()?;
    token_file(&folder, 0o600, crate::operated::TOKEN)?;
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings)?;
    let text = config(&folder, "session-affinity", &[&a]);
    let more = format!("[recorder]\nfolder = {recordings:?}\n");
    let host = Operated::of(Host::start_config(&(more + &text)).await?, folder);

    let wrong = [
        (json!({ "file": "../x" }), 400),
        (json!({ "file": ".x" }), 400),
        (json!({ "file": "x", "decisions": 0 }), 400),
        (json!({ "fil": "x" }), 400),
    ];
    for (wanted, status) in wrong {
        let said = host.post("recorder/start", &wanted).await?;
        assert_eq!(said.status, status, "{wanted}: {said:?}");
    }
    let started = host.policy(&["record", "start", "all.jsonl"]).await?;
    assert!(started.status.success(), "{started:?}");
    let again = host
        .post("recorder/start", &json!({ "file": "two" }))
        .await?;
    assert_eq!(
        (again.status, again.stage()),
        (409, "recorder"),
        "one at a time"
    );
    for turn in 0..5 {
        for n in 0..6 {
            let text = "hello ".repeat(turn + 1);
            host.host.chat(&format!("s{n}"), &text).await?;
        }
    }
    let stopped = host.post("recorder/stop", &json!({})).await?.ok()?;
    assert_eq!(
        (&stopped["written"], &stopped["lost"]),
        (&json!(30), &json!(0))
    );
    assert_eq!(
        (&stopped["recording"], &stopped["ended"]),
        (&json!(false), &json!("stopped"))
    );
    let again = host
        .post("recorder/start", &json!({ "file": "all.jsonl" }))
        .await?;
    assert_eq!(again.status, 409, "what is there is not written over");

    let all = recordings.join("all.jsonl");
    let (output, said) = check("session-affinity", &all)?;
    assert!(output.status.success(), "{output:?}");
    let recording = &said["recording"];
    assert_eq!(
        (&recording["decisions"], &recording["changed"]),
        (&json!(30), &json!(0))
    );
    let (output, said) = check("conversation-round-robin", &all)?;
    assert!(output.status.success() && said["ok"] == true, "{output:?}");

    // Half a line at its end is what a host leaves that was killed; the rest counts.
    let whole = std::fs::read(&all)?;
    let half = recordings.join("half.jsonl");
    std::fs::write(&half, &whole[..whole.len() - 10])?;
    let (output, said) = check("session-affinity", &half)?;
    assert!(output.status.success(), "{output:?}");
    let recording = &said["recording"];
    assert_eq!(
        (&recording["decisions"], &recording["torn"]),
        (&json!(29), &json!(true))
    );
    // In the middle it is an error, with its line.
    let lines: Vec<&[u8]> = whole.split_inclusive(|&byte| byte == b'\n').collect();
    let broken = [lines[..4].concat(), b"{\n".to_vec(), lines[4..].concat()].concat();
    std::fs::write(&half, broken)?;
    let (output, _) = check("session-affinity", &half)?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("line 5"),
        "{text}"
    );

    // What memory holds needs no folder.
    let recent = recordings.join("recent.jsonl");
    let path = recent.to_string_lossy();
    let fetched = host.policy(&["record", "recent", "--out", &path]).await?;
    assert!(fetched.status.success(), "{fetched:?}");
    let (_, said) = check("session-affinity", &recent)?;
    assert_eq!(said["recording"]["changed"], 0, "{said:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_killed_while_it_records_leaves_what_can_be_read_and_starts_again()
-> Result<()> {
    let a = Engine::start("a", 4).await?;
    let folder = tempfile::tempdir()?;
    token_file(&folder, 0o600, crate::operated::TOKEN)?;
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings)?;
    let more = format!("[recorder]\nfolder = {recordings:?}\n");
    let text = more + &config(&folder, "session-affinity", &[&a]);
    let mut held = Some(folder);
    let mut torn = 0;
    for round in 0..5_u64 {
        let host = Host::start_config(&text).await?;
        let folder = held.take().context("the folder")?;
        let mut host = Operated::of(host, folder);
        let name = format!("{round}.jsonl");
        (host
            .post("recorder/start", &json!({ "file": name }))
            .await?)
            .ok()?;
        let file = recordings.join(&name);
        // Until some of it is on disk: another amount each time.
        let mut sessions = 0_u64;
        while std::fs::metadata(&file)?.len() < 3000 * (round + 1) {
            let texts = (0..8).map(|n| (format!("s{}", sessions + n), "hello".to_owned()));
            let chats: Vec<_> = texts.collect();
            let sent = chats
                .iter()
                .map(|(session, text)| host.host.chat(session, text));
            for answer in futures_util::future::join_all(sent).await {
                assert_eq!(answer?.status, 200);
            }
            sessions += 8;
        }
        host.host.process.kill().await?;
        let (output, said) = check("session-affinity", &file)?;
        assert!(output.status.success(), "{output:?}");
        assert!(
            said["recording"]["decisions"].as_u64() > Some(0),
            "{said:#}"
        );
        torn += u32::from(said["recording"]["torn"] == true);
        held = Some(host.folder);
    }
    println!("{torn} of 5 ended in half a line");
    Ok(())
}
