//! What the file says.

use crate::edited::{Edited, names};
use anyhow::Result;
use pointsman_tests::{Engine, guest, policy};
use serde_json::{Value, json};

#[tokio::test]
async fn a_file_that_cannot_be_used_changes_nothing_and_says_where_it_is_wrong() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let b = Engine::start("b", 2).await?;
    let edited = Edited::start("session-affinity", &[&a]).await?;
    let home = edited.chat("s").await?.target;
    let good = edited.text("parent-affinity", &[&a, &b]);
    let trap = guest("trap-on-configure").display().to_string();
    for (text, stage, why) in [
        (
            good.replace("[cache]", "[cache"),
            "configuration",
            "line 10, column 7",
        ),
        (
            good.replace("fallback", "fallbck"),
            "configuration",
            "unknown field",
        ),
        (good.replace(&b.url, "https://b"), "configuration", "https"),
        (
            good.replace("name = \"b\"", "name = \"a\""),
            "configuration",
            "another endpoint",
        ),
        (
            good.replace("parent-affinity", "nowhere.wasm"),
            "configuration",
            "nowhere.wasm",
        ),
        (
            good.replace("fallback", "config = { group = \"cousins\" }\nfallback"),
            "configure",
            "cousins",
        ),
        (
            good.replace("fallback", "sha256 = \"00\"\nfallback"),
            "pin",
            "wanted sha256 00",
        ),
        (edited.text(&trap, &[&a, &b]), "configure", "trapped"),
    ] {
        edited.write(&text)?;
        let said = edited.reload().await?;
        assert_eq!((said.status, said.stage()), (422, stage), "{said:?}");
        assert!(said.cause().contains(why), "{why}: {said:?}");
        let output = edited.pointsman(&["config", "reload"]).await?;
        let error = String::from_utf8(output.stderr)?;
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(why), "{error}");
        let now = edited.hangup_bad().await?;
        assert!(now["last"].as_str().unwrap().contains(why), "{now}");
        assert_eq!(now["reloads"], 0);
        assert_eq!(edited.targets().await?, ["a/0", "a/1"]);
        let policy = edited.0.status().await?;
        assert_eq!(
            (&policy["name"], &policy["generation"]),
            (&json!("session-affinity"), &json!(1))
        );
    }
    assert_eq!(edited.chat("s").await?.target, home);
    let said = edited.becomes(&good).await?;
    assert_eq!(said["policy"]["name"], "parent-affinity");
    assert_eq!(edited.targets().await?.len(), 4);
    assert_eq!(edited.chat("s").await?.target, home);
    Ok(())
}

#[tokio::test]
async fn the_policy_follows_the_file_and_what_needs_a_restart_is_named() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let edited = Edited::start("session-affinity", &[&a]).await?;
    let text = |policy: &str| edited.text(policy, &[&a]);
    let generation = async |wanted: u64| -> Result<()> {
        assert_eq!(edited.0.status().await?["generation"], wanted);
        Ok(())
    };

    // What an operator has swapped in stays, as long as the file says nothing else.
    edited.0.swap("least-tokens").await?.ok()?;
    let said = edited.reload().await?.ok()?;
    assert_eq!(
        (&said["policy"], &said["needs_restart"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(edited.0.status().await?["name"], "least-tokens");
    let other = text("parent-affinity")
        .replace("threads = 2", "threads = 3")
        .replace(
            "fallback = \"least-load\"",
            "fallback = \"reject\"\nconfig = { group = \"parent\" }",
        );
    let said = edited
        .becomes(&format!("{other}[limits]\nclient = \"9s\"\n"))
        .await?;
    assert_eq!(said["policy"]["name"], "parent-affinity");
    let waits = ["listen.threads", "policy.fallback", "limits.client"];
    assert_eq!(names(&said["needs_restart"]), waits);
    assert_eq!(
        names(&edited.0.get("config").await?["needs_restart"]),
        waits
    );
    generation(3).await?;

    // A file is followed from then on, with what is said beside it; a built-in one ends that.
    let file = edited.0.folder.path().join("policy.wasm");
    std::fs::copy(policy("least-tokens"), &file)?;
    let said = edited.becomes(&text(&file.to_string_lossy())).await?;
    assert_eq!(said["needs_restart"], json!([]));
    assert_eq!(edited.0.status().await?["name"], "least-tokens");
    let beside = edited.0.folder.path().join(".new");
    std::fs::copy(policy("conversation-round-robin"), &beside)?;
    std::fs::rename(&beside, &file)?;
    let now = edited
        .0
        .status_until(|status| status["name"] == "conversation-round-robin")
        .await?;
    assert_eq!(now["generation"], 5);
    edited.becomes(&text("session-affinity")).await?;
    let now = edited.0.status().await?;
    assert_eq!(
        (&now["name"], &now["generation"]),
        (&json!("session-affinity"), &json!(6))
    );
    assert!(
        now["file"].as_str().unwrap().contains("none is followed"),
        "{now}"
    );

    edited.write(&text("native:no-such"))?;
    assert_eq!(edited.reload().await?.stage(), "configuration");
    let said = edited.becomes(&text("native:round-robin")).await?;
    assert_eq!(names(&said["needs_restart"]), ["policy.use"]);
    generation(6).await?;
    Ok(())
}
