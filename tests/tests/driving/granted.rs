//! A policy sets what it is granted, and nothing else.

use crate::{AT_LAST, GRANT_A, REFERENCE, config, settings, turn_off, until_protected};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, driver_in_c, policy, root};
use std::time::Duration;

#[tokio::test]
async fn a_policy_drives_the_engines_that_it_is_granted_and_no_other() -> Result<()> {
    let (b, a) = (Engine::start("b", 2).await?, Engine::start("a", 2).await?);
    // The one that is denied comes first: the policy has met it whenever it has set the other.
    let host = Host::start_config(&config(&[&b, &a], REFERENCE, GRANT_A)).await?;
    until_protected(&a).await?;
    turn_off(&a).await?;
    until_protected(&a).await?;
    ensure!(settings(&b).await?["prefill_delayer"] == false);
    assert_eq!(host.chat("s", "hello").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_policy_of_another_name_is_granted_nothing_and_one_that_is_swapped_in_drives()
-> Result<()> {
    let a = Engine::start("a", 1).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.wasm");
    std::fs::copy(policy("session-affinity"), &file)?;
    let text = config(&[&a], REFERENCE, GRANT_A)
        .replace(
            &policy("decode-protect").display().to_string(),
            &file.display().to_string(),
        )
        .replace("config = { tick_ms = 10, max_queue_ms = 700 }", "");
    let host = Host::start_config(&text).await?;
    assert_eq!(host.chat("s", "hello").await?.reason, "placed");
    let beside = folder.path().join(".new");
    std::fs::copy(policy("decode-protect"), &beside)?;
    std::fs::rename(&beside, &file)?;
    // With its own defaults now: an interval of 10, no maximum of its own.
    let looking = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while settings(&a).await?["prefill_decode_interval"] != 10 {
            look.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(AT_LAST, looking)
        .await
        .context("it is not set")??;
    assert_eq!(
        host.chat("s", "hello").await?.reason,
        "owner",
        "its sessions stay"
    );
    Ok(())
}

#[tokio::test]
async fn an_engine_that_hangs_stalls_no_request_and_the_others_are_driven() -> Result<()> {
    let (stuck, a) = (
        Engine::start("stuck", 1).await?,
        Engine::start("a", 1).await?,
    );
    let driver = "driver = { kind = \"reference\", deadline = \"20ms\" }";
    let grant = "[[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]";
    let host = Host::start_config(&config(&[&stuck, &a], driver, grant)).await?;
    until_protected(&a).await?;
    stuck.process.signal("STOP").await?;
    turn_off(&a).await?;
    until_protected(&a).await?;
    let there = host
        .request("s", "hello")
        .header("x-pointsman-target", "a/0");
    assert_eq!(there.send().await?.status(), 200);
    stuck.process.signal("CONT").await?;
    turn_off(&stuck).await?;
    until_protected(&stuck).await
}

#[tokio::test]
async fn a_driver_in_c_is_told_which_engine_it_drives() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("driver.so");
    let options = [
        format!("-DURL=\"{}\"", a.url),
        format!("-DFOLDER=\"{}\"", folder.path().display()),
    ];
    driver_in_c(&root().join("tests/drivers/told.c"), &options, &library)?;
    let driver = format!(
        "driver = {{ kind = \"library\", library = {library:?}, config = {{ mine = 3 }} }}"
    );
    let _host = Host::start_config(&config(&[&a], &driver, GRANT_A)).await?;
    let said = folder.path().join("said");
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !said.exists() {
            look.tick().await;
        }
    };
    tokio::time::timeout(AT_LAST, looking)
        .await
        .context("it is not set")?;
    assert_eq!(std::fs::read_to_string(said)?, "10");
    Ok(())
}
