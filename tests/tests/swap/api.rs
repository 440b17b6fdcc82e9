//! Who may use the admin API, and what else it does.

use crate::operated::{Operated, config, read, token_file};
use anyhow::Result;
use pointsman_tests::{Engine, Host, guest, pointsman, policy};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::process::Command;

#[tokio::test]
async fn nobody_without_the_token_learns_or_changes_anything() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    for (method, path) in [
        (Method::GET, "policy"),
        (Method::POST, "policy/swap"),
        (Method::POST, "policy/rollback"),
        (Method::GET, "targets"),
        (Method::DELETE, "bindings?session=s"),
        (Method::GET, "no/such"),
    ] {
        let said = read(host.anybody(method.clone(), path)).await?;
        assert_eq!((said.status, said.stage()), (401, "token"), "{path}");
        let said = read(host.anybody(method, path).bearer_auth("wrong")).await?;
        assert_eq!((said.status, said.stage()), (401, "token"), "{path}");
    }
    // Nor does who has it, on the clients' address.
    let url = format!("{}/api/v1/policy/swap", host.host.url);
    let request = Client::new().post(url).bearer_auth(crate::operated::TOKEN);
    let said = read(request.json(&json!({ "policy": "parent-affinity" }))).await?;
    assert_ne!(said.status, 200);
    assert_eq!(host.status().await?["generation"], 1);
    Ok(())
}

#[tokio::test]
async fn without_a_token_file_there_is_no_api() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Host::start("session-affinity", &[&a]).await?;
    let page = reqwest::get(format!("{}/api/v1/policy", host.admin)).await?;
    assert_eq!(page.status(), 404);
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_no_secret_keeps_the_host_from_starting() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    for (mode, token, why) in [
        (0o644, "secret", "is open to others"),
        (0o600, "", "is empty"),
    ] {
        let folder = tempfile::tempdir()?;
        token_file(&folder, mode, token)?;
        let file = folder.path().join("p.toml");
        std::fs::write(&file, config(&folder, "session-affinity", &[&a]))?;
        for command in ["serve", "check"] {
            let mut command = Command::new(pointsman())
                .args([command, "--config"])
                .arg(&file)
                .output()?;
            let text = String::from_utf8(std::mem::take(&mut command.stderr))?;
            assert!(!command.status.success() && text.contains(why), "{text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_baseline_says_that_it_cannot_be_replaced() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("native:round-robin", &[&a]).await?;
    let said = host.swap("session-affinity").await?;
    assert_eq!((said.status, said.stage()), (409, "policy"));
    assert_eq!(
        host.get("targets").await?["targets"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    Ok(())
}

#[tokio::test]
async fn one_policy_is_loaded_at_a_time() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    let spins = host.upload(std::fs::read(guest("slow-start"))?, crate::bad::FOR_EVER);
    let other = async {
        let said = host.swap("parent-affinity").await?;
        if said.status != 409 {
            // It was first.
            assert_eq!(said.status, 200);
        }
        anyhow::Ok(said.status)
    };
    let (spins, other) = tokio::try_join!(spins, other)?;
    let mut statuses = [spins.status, other];
    statuses.sort_unstable();
    assert!(
        statuses == [409, 422] || statuses == [200, 409],
        "{statuses:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_drained_endpoint_takes_no_new_session_and_keeps_those_it_has() -> Result<()> {
    let (a, b) = (Engine::start("a", 2).await?, Engine::start("b", 2).await?);
    let host = Operated::start("session-affinity", &[&a, &b]).await?;
    let mut on_a = None;
    for n in 0..8 {
        let session = format!("old-{n}");
        let answer = host.host.chat(&session, "hello").await?;
        if answer.target.starts_with('a') {
            on_a = Some((session, answer.target));
        }
    }
    let (session, home) = on_a.ok_or_else(|| anyhow::anyhow!("nobody on a"))?;
    let said = host
        .post("targets/drain", &json!({ "endpoint": "a" }))
        .await?
        .ok()?;
    assert_eq!(
        (&said["changed"], said["targets"].as_array().map(Vec::len)),
        (&json!(true), Some(2))
    );
    for n in 0..16 {
        let answer = host.host.chat(&format!("new-{n}"), "hello").await?;
        assert!(answer.target.starts_with('b'), "{answer:?}");
    }
    assert_eq!(host.host.chat(&session, "hello").await?.target, home);

    // Where it lives, and that it need not.
    let path = format!("bindings?session={session}&model=demo");
    let bound = host.get(&path).await?;
    assert_eq!(
        bound["bindings"],
        json!([{ "model": "demo", "target": home }])
    );
    let gone = read(host.request(Method::DELETE, &path)).await?.ok()?;
    assert_eq!(
        (&gone["were"], &gone["bindings"]),
        (&bound["bindings"], &json!([]))
    );
    assert!(
        host.host
            .chat(&session, "hello")
            .await?
            .target
            .starts_with('b')
    );

    host.post("targets/undrain", &json!({ "endpoint": "a" }))
        .await?
        .ok()?;
    let targets = host.get("targets").await?;
    let drained = |target: &Value| target["standing"]["draining"] == true;
    assert!(
        !targets["targets"]
            .as_array()
            .is_some_and(|all| all.iter().any(drained))
    );
    let said = host
        .post("targets/drain", &json!({ "target": "c/0" }))
        .await?;
    assert_eq!((said.status, said.stage()), (404, "targets"));
    let said = host.post("targets/drain", &json!({})).await?;
    assert_eq!((said.status, said.stage()), (400, "request"));
    Ok(())
}

#[tokio::test]
async fn the_command_succeeds_only_when_the_new_policy_decides() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    let out = host.policy(&["swap", "parent-affinity", "--json"]).await?;
    let said: Value = serde_json::from_slice(&out.stdout)?;
    assert!(out.status.success());
    assert_eq!(
        (&said["name"], &said["generation"]),
        (&json!("parent-affinity"), &json!(2))
    );
    let out = host.policy(&["list"]).await?;
    assert!(String::from_utf8(out.stdout)?.contains("* parent-affinity"));

    let file = policy("conversation-round-robin");
    let file = file.to_string_lossy();
    let out = host.policy(&["load", &file]).await?;
    assert!(out.status.success(), "{out:?}");
    let out = host
        .policy(&["swap", &file, "--config", "{\"fair_share_multiplier\":0}"])
        .await?;
    let why = String::from_utf8(out.stderr)?;
    assert!(
        !out.status.success() && why.contains("refused at stage configure"),
        "{why}"
    );
    let out = host.policy(&["swap", &file]).await?;
    assert!(out.status.success());
    assert_eq!(
        host.status().await?["origin"],
        "conversation-round-robin.wasm"
    );
    assert!(host.policy(&["rollback"]).await?.status.success());
    let out = host.policy(&["status"]).await?;
    assert!(String::from_utf8(out.stdout)?.contains("parent-affinity 0.1.0 decides, generation 4"));

    // Another token, and another address.
    std::fs::write(host.folder.path().join("admin.token"), "wrong")?;
    assert!(!host.policy(&["status"]).await?.status.success());
    let out = (Command::new(pointsman()).args(["policy", "status", "--admin", &host.host.url]))
        .arg("--token-file")
        .arg(host.folder.path().join("admin.token"))
        .output()?;
    assert!(!out.status.success());
    Ok(())
}
