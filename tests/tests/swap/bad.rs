//! Policies that must not decide, or not for long.

use crate::operated::{Operated, Said, another};
use crate::traffic::Traffic;
use anyhow::Result;
use pointsman_tests::{Engine, guest};
use serde_json::json;
use std::sync::Arc;

fn misbehaving() -> Result<Vec<u8>> {
    Ok(std::fs::read(guest("guest"))?)
}

#[tokio::test]
async fn a_policy_that_cannot_be_used_is_refused_with_its_stage_and_the_old_one_stays() -> Result<()>
{
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    let before = host.status().await?;
    let check = async |said: Said, status, stage, cause: &str| -> Result<()> {
        assert_eq!((said.status, said.stage()), (status, stage), "{said:?}");
        assert!(said.cause().contains(cause), "{said:?}");
        let remedy = said.body["error"]["remedy"].as_str();
        assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "{said:?}");
        assert_eq!(host.status().await?["digest"], before["digest"]);
        assert_eq!(host.status().await?["generation"], 1);
        assert_eq!(host.host.chat("s", "hello").await?.status, 200);
        Ok(())
    };
    let core_module = b"\0asm\x01\0\0\0".to_vec();
    let mut half = std::fs::read(pointsman_tests::policy("parent-affinity"))?;
    half.truncate(half.len() / 2);
    let spin = "{\"does\":\"spin-in-configure\"}";
    for (wasm, config, stage, cause) in [
        (
            b"no policy".to_vec(),
            "{}",
            "parse",
            "this is not WebAssembly",
        ),
        (core_module, "{}", "parse", "core WebAssembly module"),
        (half, "{}", "compile", "not a valid component"),
        (
            misbehaving()?,
            "{\"does\":\"refuse\"}",
            "configure",
            "it refuses",
        ),
        (misbehaving()?, "{\"no\":1}", "configure", "unknown field"),
        (misbehaving()?, spin, "configure", "within its time limit"),
        (
            misbehaving()?,
            "{\"does\":\"panic-in-configure\"}",
            "configure",
            "trapped",
        ),
    ] {
        check(host.upload(wasm, config).await?, 422, stage, cause).await?;
    }
    let pinned = json!({ "policy": "parent-affinity", "sha256": "00" });
    let said = host.post("policy/swap", &pinned).await?;
    check(said, 422, "pin", "wanted sha256 00, found").await?;
    let said = host.swap("no-such").await?;
    check(said, 400, "request", "no built-in policy").await?;
    let said = host.post("policy/swap", &json!({ "polcy": "x" })).await?;
    check(said, 400, "request", "unknown field").await?;
    let large = json!({ "policy": "x".repeat(65 << 10) });
    let said = host.post("policy/swap", &large).await?;
    check(said, 413, "request", "cannot be taken").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_panics_is_taken_out_by_itself_and_no_client_notices() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start_untried("session-affinity", &[&a]).await?);
    let traffic = Traffic::start(&host, 32, 4, false);
    traffic.more(32).await?;
    let said = host.upload(misbehaving()?, "{\"does\":\"panic\"}").await?;
    assert_eq!(said.ok()?["name"], "guest", "it comes up, and then fails");
    let status = host.status_until(|status| status["rollbacks"] == 1).await?;
    assert_eq!(status["name"], "session-affinity");
    let last = status["last"].as_str().unwrap_or_default();
    let wanted = "rolled back from sent.wasm to session-affinity: the policy trapped";
    assert!(last.starts_with(wanted) && !last.contains('\n'), "{last}");

    let said = host.upload(misbehaving()?, "{\"does\":\"panic\"}").await?;
    assert_eq!(
        (said.status, said.stage()),
        (409, "swap"),
        "not again at once"
    );
    traffic.more(32).await?;
    let seen = traffic.stop().await?;
    assert!(seen.policies.contains_key("guest"), "{seen:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_policy_does_wrong_it_is_taken_out_by_itself_and_no_client_notices() -> Result<()>
{
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start_untried("session-affinity", &[&a]).await?);
    let traffic = Traffic::start(&host, 32, 4, false);
    let all = [
        ("spin", "within its time limit"),
        ("balloon", "memory"),
        ("deep-stack", "the policy trapped"),
        ("no-target", "breaks the contract"),
        ("no-reason", "breaks the contract"),
        ("bad-status", "breaks the contract"),
        ("bind-parent", "breaks the contract"),
    ];
    for ((does, why), n) in all.into_iter().zip(1..) {
        let config = format!("{{\"does\":\"{does}\"}}");
        // A file of its own: what was taken out may not come back at once.
        let said = host.upload(another(&guest("guest"), n)?, &config).await?;
        assert_eq!(said.ok()?["name"], "guest", "{does}");
        let status = host.status_until(|status| status["rollbacks"] == n).await?;
        assert_eq!(status["name"], "session-affinity", "{does}");
        let last = status["last"].as_str().unwrap_or_default();
        println!("{last}");
        assert!(
            last.starts_with("rolled back from sent.wasm"),
            "{does}: {last}"
        );
        assert!(last.contains(why) && !last.contains('\n'), "{does}: {last}");
        traffic.more(32).await?;
    }
    traffic.stop().await?;
    Ok(())
}
