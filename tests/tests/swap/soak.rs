//! Replacements for as long as nobody looks: nothing may grow.

use crate::operated::Operated;
use crate::traffic::Traffic;
use anyhow::{Result, ensure};
use pointsman_tests::Engine;
use std::sync::Arc;

const SWAPS: usize = 2000;
/// Until every table, pool and arena has the size that it stays at.
const WARM_UP: usize = 100;
const CLIENTS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_replacements_leave_memory_threads_and_descriptors_as_they_were() -> Result<()>
{
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    let mut traffic = Traffic::start(&host, CLIENTS, 1, true);
    let mut names = ["parent-affinity", "session-affinity"].into_iter().cycle();
    let mut usages = Vec::new();
    for n in 1..=WARM_UP + SWAPS {
        let name = names.next().unwrap_or_default();
        host.swap(name).await?.ok()?;
        traffic.swapped();
        traffic.sees(name).await?;
        if n >= WARM_UP && (n - WARM_UP).is_multiple_of(SWAPS / 4) {
            usages.push(host.host.process.usage()?);
        }
    }
    let seen = traffic.stop().await?;
    usages.iter().for_each(|usage| println!("{usage:?}"));
    println!("{seen:?}");
    let (first, last) = (usages[0], usages[usages.len() - 1]);
    // Threads for work that blocks come and go: a few wait for some seconds when theirs is done. Each
    // has an arena of malloc's.
    let more = last.threads.saturating_sub(first.threads);
    ensure!(more <= 8, "threads: {usages:?}");
    ensure!(
        last.resident_kb < first.resident_kb + (8 << 10) + more * (2 << 10),
        "memory grows: {usages:?}"
    );
    // Connections come and go: of each client one to the host and one on to the engine.
    ensure!(
        last.files <= first.files + 2 * (CLIENTS + 1),
        "descriptors: {usages:?}"
    );
    Ok(())
}
