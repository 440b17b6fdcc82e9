//! `pointsman config`, and who may.

use crate::edited::{Edited, names};
use crate::operated::{TOKEN, read};
use anyhow::Result;
use pointsman_tests::Engine;
use reqwest::Method;
use serde_json::Value;

#[tokio::test]
async fn the_client_reloads_and_shows_and_only_who_has_the_token_may() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let b = Engine::start("b", 2).await?;
    let edited = Edited::start("session-affinity", &[&a]).await?;
    for (method, path) in [(Method::GET, "config"), (Method::POST, "config/reload")] {
        let said = read(edited.0.anybody(method, path)).await?;
        assert_eq!((said.status, said.stage()), (401, "token"));
    }
    edited.write(&edited.text("session-affinity", &[&a, &b]))?;
    let output = edited.pointsman(&["config", "reload"]).await?;
    let text = String::from_utf8(output.stdout)?;
    assert!(
        output.status.success() && text.contains("added     b"),
        "{text}"
    );
    let output = edited.pointsman(&["config", "reload", "--json"]).await?;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(names(&said["endpoints"]["kept"]), ["a", "b"]);
    let output = edited.pointsman(&["config", "show"]).await?;
    let text = String::from_utf8(output.stdout)?;
    assert!(text.contains(&b.url) && !text.contains(TOKEN), "{text}");
    let now = edited.0.get("config").await?;
    assert_eq!(now["pools"][0]["endpoints"][1]["name"], "b");
    assert_eq!(now["reloads"], 2);
    Ok(())
}
