//! The policy's file changes while the host runs.

use crate::operated::Operated;
use anyhow::Result;
use pointsman_tests::{Engine, policy};
use serde_json::Value;

fn says(status: &Value, what: &str) -> bool {
    status["file"]
        .as_str()
        .is_some_and(|file| file.contains(what))
}

#[tokio::test]
async fn a_file_that_is_renamed_into_place_decides_and_half_of_one_or_none_does_not() -> Result<()>
{
    let a = Engine::start("a", 2).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.wasm");
    std::fs::copy(policy("session-affinity"), &file)?;
    let host = Operated::start_in(folder, &file.to_string_lossy(), &[&a]).await?;
    assert_eq!(host.status().await?["name"], "session-affinity");

    let beside = host.folder.path().join(".policy.wasm.new");
    std::fs::copy(policy("parent-affinity"), &beside)?;
    std::fs::rename(&beside, &file)?;
    let now = host
        .status_until(|status| status["name"] == "parent-affinity")
        .await?;
    assert_eq!(now["generation"], 2);

    // In place, half of it, and then the rest.
    let whole = std::fs::read(policy("least-tokens"))?;
    std::fs::write(&file, &whole[..whole.len() / 2])?;
    let now = host
        .status_until(|status| says(status, "is not taken"))
        .await?;
    assert_eq!(
        (&now["name"], &now["generation"]),
        (&"parent-affinity".into(), &2.into())
    );
    std::fs::write(&file, &whole)?;
    let now = host
        .status_until(|status| status["name"] == "least-tokens")
        .await?;
    assert_eq!(now["generation"], 3);

    std::fs::remove_file(&file)?;
    let now = host.status_until(|status| says(status, "is gone")).await?;
    assert_eq!(
        (&now["name"], &now["generation"]),
        (&"least-tokens".into(), &3.into())
    );
    assert_eq!(host.host.chat("s", "hello").await?.status, 200);

    std::fs::copy(policy("session-affinity"), &beside)?;
    std::fs::rename(&beside, &file)?;
    host.status_until(|status| status["name"] == "session-affinity")
        .await?;
    Ok(())
}
