//! However a request ends, nothing of it stays outstanding.

use crate::{BEGIN, engine, pool, whole};
use anyhow::{Result, ensure};
use pointsman_tests::{Envoy, Gauges, Scripted, Step};

/// Of both targets together: requests, and sessions.
fn sums(gauges: &[Gauges]) -> (u64, u64) {
    let sum = |of: fn(&Gauges) -> u64| gauges.iter().map(of).sum();
    (sum(|g| g.requests), sum(|g| g.sessions))
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_gives_everything_back_and_its_session_stays() -> Result<()> {
    let stream = || Scripted::start(false, |_| vec![Step::Send(BEGIN.to_vec()), Step::Hang]);
    let (a, b) = (stream().await?, stream().await?);
    let envoy = Envoy::start("session-affinity", &pool("openai", 1, &[&a, &b])).await?;
    let mut answer = envoy.chat(&[("x-session-id", "s")]).send().await?;
    ensure!(answer.chunk().await?.is_some_and(|chunk| chunk == "token"));
    ensure!(sums(&envoy.gauges(2).await?) == (1, 1));
    drop(answer);
    ensure!(sums(&envoy.until_idle(2).await?) == (0, 1));
    Ok(())
}

#[tokio::test]
async fn an_engine_that_resets_in_mid_stream_unbinds_the_session() -> Result<()> {
    let stream = || Scripted::start(false, |_| vec![Step::Send(BEGIN.to_vec()), Step::Reset]);
    let (a, b) = (stream().await?, stream().await?);
    let envoy = Envoy::start("session-affinity", &pool("openai", 1, &[&a, &b])).await?;
    let answer = envoy.chat(&[("x-session-id", "s")]).send().await;
    // The reset may overtake the head.
    if let Ok(answer) = answer {
        ensure!(answer.bytes().await.is_err());
    }
    ensure!(sums(&envoy.until_idle(2).await?) == (0, 0));
    Ok(())
}

#[tokio::test]
async fn an_engine_that_is_too_busy_is_passed_on_and_nothing_stays() -> Result<()> {
    let busy = || Scripted::start(false, |_| whole("429 Too Many Requests"));
    let (a, b) = (busy().await?, busy().await?);
    let envoy = Envoy::start("session-affinity", &pool("openai", 1, &[&a, &b])).await?;
    let answer = envoy.chat(&[("x-session-id", "s")]).send().await?;
    ensure!(answer.status() == 429);
    ensure!(sums(&envoy.until_idle(2).await?) == (0, 0));
    Ok(())
}

#[tokio::test]
async fn an_engine_that_gives_no_answer_is_left_for_the_policys_second_choice() -> Result<()> {
    for bad in ["reset", "500"] {
        let good = engine().await?;
        let script = move |_: &pointsman_tests::Seen| match bad {
            "reset" => vec![Step::Reset],
            _ => whole("500 Internal Server Error"),
        };
        let bad = Scripted::start(false, script).await?;
        let envoy = Envoy::start("session-affinity", &pool("openai", 1, &[&bad, &good])).await?;
        // Until one is placed on the bad engine first; then it goes on where it was served.
        let mut retried = 0;
        for n in 0..20 {
            let session = format!("s{n}");
            for turn in 0..2 {
                let headers = [("x-session-id", &*session), ("x-pointsman-explain", "1")];
                let answer = envoy.chat(&headers).send().await?;
                ensure!(answer.status() == 200, "{}", answer.status());
                let target = answer.headers().get("x-pointsman-target");
                ensure!(target.is_some_and(|target| target == "b/0"), "{target:?}");
                let tries = bad.take().len();
                ensure!(
                    turn == 0 || tries == 0,
                    "{session} went to the bad engine again"
                );
                retried += tries;
            }
        }
        ensure!(retried > 0, "no request went to the bad engine");
        ensure!(sums(&envoy.until_idle(2).await?) == (0, 20));
    }
    Ok(())
}

#[tokio::test]
async fn when_every_engine_fails_the_client_sees_it_and_nothing_stays() -> Result<()> {
    let dead = || Scripted::start(false, |_| vec![Step::Reset]);
    let (a, b) = (dead().await?, dead().await?);
    let envoy = Envoy::start("parent-affinity", &pool("openai", 1, &[&a, &b])).await?;
    let headers = [("x-session-id", "c"), ("x-parent-session-id", "p")];
    let answer = envoy.chat(&headers).send().await?;
    ensure!(answer.status().is_server_error(), "{}", answer.status());
    ensure!(sums(&envoy.until_idle(2).await?) == (0, 0));
    Ok(())
}
