//! A policy that keeps failing is taken out: the one before it decides, or nobody for a while.

use anyhow::{Context, Result};
use pointsman_core::{
    Core, Fallback, Incoming, Limits as Table, ManualClock, Outcome, Source, Worker, decide,
};
use pointsman_runtime::{Candidate, Engine, Limits, Protection, Slot, SwapError};
use pointsman_tests::{fleet, guest, policy};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMITS: Limits = Limits {
    time_ms: 50,
    memory_mb: 8,
};

/// Much longer than anything here takes; only ends a test that has failed.
const AT_LAST: Duration = Duration::from_secs(30);

struct Rig {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    slot: Slot,
}

/// A guest, or a policy of `plugins/`.
fn candidate(engine: &Engine, name: &str) -> Result<Candidate> {
    let wasm = std::fs::read(guest(name)).or_else(|_| std::fs::read(policy(name)))?;
    Ok(Candidate {
        prepared: Arc::new(engine.load(&wasm, "", LIMITS)?),
        origin: name.to_owned(),
        digest: name.to_owned(),
    })
}

impl Rig {
    fn new(name: &str) -> Result<Rig> {
        let engine = Engine::new()?;
        let (core, clock) = fleet(2, Table::default());
        clock.advance(1);
        let first = candidate(&engine, name)?;
        let slot = Slot::new(core.clone(), engine, first, Protection::default());
        Ok(Rig { core, clock, slot })
    }

    fn swap(&self, name: &str) -> Result<u64> {
        Ok(self.slot.swap(candidate(self.slot.engine(), name)?)?)
    }

    /// One request, as a worker would send it; the cause if the fallback decided.
    fn send(&self) -> Option<&'static str> {
        let generation = self.slot.generation();
        let (policy, mut router) = self.slot.router();
        let worker = Worker::new(self.core.clone(), policy);
        let fallback = Fallback::LeastLoad;
        let outcome = decide(&worker, router.as_mut(), fallback, &Incoming::default());
        let Outcome::Routed(ticket) = outcome else {
            return Some("refused");
        };
        let failure = ticket.verdict().failure.clone()?;
        self.slot.failed(generation, &failure);
        Some(failure.cause())
    }

    fn fails(&self, times: usize) {
        for _ in 0..times {
            assert_eq!(self.send(), Some("trap"));
        }
    }
}

#[test]
fn after_five_failures_the_policy_before_decides_again() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    assert_eq!(rig.send(), None);
    assert_eq!(rig.swap("trap-on-route")?, 2);
    rig.fails(5);
    assert_eq!(rig.send(), None, "rolled back");
    let status = rig.slot.status();
    assert_eq!(
        (status.generation, status.origin.as_str(), status.rollbacks),
        (3, "least-tokens", 1)
    );
    assert!(
        status
            .last
            .starts_with("rolled back from trap-on-route to least-tokens: the policy trapped")
    );
    Ok(())
}

#[test]
fn a_policy_that_was_taken_out_may_not_come_back_at_once_and_waits_longer_each_time() -> Result<()>
{
    let rig = Rig::new("least-tokens")?;
    for wait_ms in [1000, 2000, 4000] {
        rig.swap("trap-on-route")?;
        rig.fails(5);
        let refused = rig
            .slot
            .swap(candidate(rig.slot.engine(), "trap-on-route")?);
        let digest = "trap-on-route".to_owned();
        assert_eq!(refused, Err(SwapError::Banned { digest, wait_ms }));
        assert_eq!(
            rig.slot.status().origin,
            "least-tokens",
            "the refusal changes nothing"
        );
        rig.clock.advance(wait_ms);
    }
    Ok(())
}

#[test]
fn with_nothing_to_go_back_to_the_policy_pauses_and_tries_again() -> Result<()> {
    let rig = Rig::new("trap-on-route")?;
    rig.fails(5);
    assert_eq!(rig.send(), Some("paused"));
    rig.clock.advance(999);
    assert_eq!(rig.send(), Some("paused"));
    rig.clock.advance(1);
    rig.fails(5);
    rig.clock.advance(1999);
    assert_eq!(rig.send(), Some("paused"), "twice as long");
    rig.clock.advance(1);
    assert_eq!(rig.send(), Some("trap"));
    Ok(())
}

#[test]
fn failures_that_are_far_apart_are_no_reason() -> Result<()> {
    let rig = Rig::new("trap-on-route")?;
    for _ in 0..20 {
        rig.fails(4);
        rig.clock.advance(10_001);
    }
    assert_eq!(rig.slot.status().rollbacks, 0);
    Ok(())
}

#[test]
fn a_late_failure_of_a_replaced_policy_does_not_hurt_the_new_one() -> Result<()> {
    let rig = Rig::new("trap-on-route")?;
    let old = rig.slot.generation();
    rig.swap("least-tokens")?;
    for _ in 0..10 {
        rig.slot.failed(old, &pointsman_core::Failure::Stack);
    }
    assert_eq!(rig.slot.status().origin, "least-tokens");
    Ok(())
}

#[test]
fn the_operator_may_go_back_and_forth() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    assert_eq!(rig.slot.rollback(), Err(SwapError::NoPrevious));
    rig.swap("log-flood")?;
    rig.slot.rollback()?;
    assert_eq!(rig.slot.status().origin, "least-tokens");
    rig.slot.rollback()?;
    assert_eq!(rig.slot.status().origin, "log-flood");
    Ok(())
}

#[test]
fn a_bad_policy_that_is_swapped_in_twice_does_not_push_the_good_one_out() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    rig.swap("trap-on-route")?;
    rig.swap("trap-on-route")?;
    rig.fails(5);
    assert_eq!(rig.slot.status().origin, "least-tokens");
    Ok(())
}

#[test]
fn a_slow_burn_is_taken_out_by_its_fifth_failure_and_decides_well_between_them() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    rig.swap("trap-on-nth")?;
    let failed: Vec<u32> = (1..=500).filter(|_| rig.send().is_some()).collect();
    assert_eq!(failed, [50, 100, 150, 200, 250]);
    assert_eq!(rig.slot.status().origin, "least-tokens");
    Ok(())
}

#[test]
fn a_burn_that_is_slow_enough_stays_and_costs_the_requests_that_it_fails() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    rig.swap("trap-on-nth")?;
    for _ in 0..20 {
        let failed: Vec<u32> = (1..=50).filter(|_| rig.send().is_some()).collect();
        assert_eq!(failed, [50]);
        rig.clock.advance(2501);
    }
    assert_eq!(rig.slot.status().origin, "trap-on-nth");
    Ok(())
}

#[test]
fn no_request_waits_for_configure() -> Result<()> {
    // It counts in a cell how often it was configured; the trial has cells of its own.
    let rig = Rig::new("least-tokens")?;
    rig.slot.set_workers(2);
    let next = candidate(rig.slot.engine(), "slow-start")?;
    let configured = || rig.core.cells("slow-start").get(0);
    rig.slot.ready(&next)?;
    assert_eq!(configured(), 3, "one for each worker, one in stock");
    rig.slot.swap(next)?;
    let workers = [rig.slot.router(), rig.slot.router()];
    assert_eq!(configured(), 3, "they found theirs");
    drop(workers);
    rig.slot.rollback()?;
    rig.slot.rollback()?;
    let _workers = [rig.slot.router(), rig.slot.router()];
    assert_eq!(configured(), 3, "and when it comes back");
    Ok(())
}

#[test]
fn after_a_trap_no_request_waits_for_configure_either() -> Result<()> {
    let rig = Rig::new("least-tokens")?;
    rig.slot.set_workers(1);
    let wasm = std::fs::read(guest("trap-on-nth"))?;
    let next = Candidate {
        prepared: Arc::new(rig.slot.engine().load(&wasm, "{\"n\": 2}", LIMITS)?),
        origin: "trap-on-nth".to_owned(),
        digest: "trap-on-nth".to_owned(),
    };
    rig.slot.ready(&next)?;
    rig.slot.swap(next)?;
    let configured = || rig.core.cells("trap-on-nth").get(0);
    let until = |wanted| {
        let began = Instant::now();
        while configured() != wanted && began.elapsed() < AT_LAST {
            std::thread::yield_now();
        }
        assert_eq!(configured(), wanted);
    };
    let generation = rig.slot.generation();
    let (policy, mut router) = rig.slot.router();
    let worker = Worker::new(rig.core.clone(), policy);
    let mut send = || match decide(
        &worker,
        router.as_mut(),
        Fallback::LeastLoad,
        &Incoming::default(),
    ) {
        Outcome::Routed(ticket) => ticket.verdict().failure.clone(),
        Outcome::Refused(_) => None,
    };
    assert_eq!(configured(), 2, "its own, and one in stock");
    for traps in 1..=3 {
        assert_eq!(send(), None);
        assert_eq!(configured(), 1 + traps, "it was up already");
        let failure = send().context("it does not trap")?;
        rig.slot.failed(generation, &failure);
        // Beside the requests, the next one comes up.
        until(2 + traps);
    }
    Ok(())
}
