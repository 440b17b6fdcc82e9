//! Mission E7: every rank that sees the same requests in the same order decides the same, without
//! talking. A policy that does not would deadlock the engines' collectives.

use anyhow::Result;
use pointsman_core::{
    Core, Fallback, Incoming, Limits as Table, ManualClock, Outcome, Shared, Ticket, Worker,
    decide, splitmix64,
};
use pointsman_runtime::{Engine, Instance, Limits};
use pointsman_tests::{fleet, policy};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

const INSTANCES: usize = 8;
const REQUESTS: u64 = 100_000;
const SESSIONS: u64 = 5000;

/// One rank's own copy of everything.
struct Rank {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    worker: Rc<Worker>,
    instance: Instance,
    in_flight: VecDeque<Ticket>,
}

impl Rank {
    /// One step of the common history; returns the decision.
    fn step(&mut self, n: u64) -> Option<(u32, Option<String>)> {
        let random = splitmix64(n);
        self.clock.advance(random % 50);
        if n.is_multiple_of(1000) {
            self.core.sweep();
        }
        if n.is_multiple_of(997) {
            let target = u32::try_from(random % 8).unwrap_or(0);
            self.core.fleet.set(&[target], |s| s.healthy = !s.healthy);
        }
        while self.in_flight.len() > 64 {
            match (self.in_flight.pop_front(), random % 16) {
                (Some(ticket), 0) => ticket.fail(),
                (Some(ticket), 1) => ticket.cancel(),
                (Some(ticket), _) => ticket.finish(),
                (None, _) => break,
            }
        }
        let prompt_tokens = u32::try_from(random % 100_000).unwrap_or(0);
        let session = splitmix64(random) % SESSIONS;
        let incoming = Incoming {
            seed: random,
            session: (!random.is_multiple_of(10)).then_some(session),
            parent: random.is_multiple_of(3).then_some(session / 8),
            prompt_tokens,
            shared: Shared::Given(prompt_tokens / 2),
            ..Incoming::default()
        };
        match decide(
            &self.worker,
            &mut self.instance,
            Fallback::LeastLoad,
            &incoming,
        ) {
            Outcome::Refused(_) => None,
            Outcome::Routed(mut ticket) => {
                assert_eq!(ticket.verdict().failure, None);
                if random & 1 == 0 {
                    ticket.output();
                }
                let decision = (ticket.target(), ticket.verdict().reason.clone());
                self.in_flight.push_back(ticket);
                Some(decision)
            }
        }
    }
}

fn ranks(engine: &Engine, name: &str) -> Result<Vec<Rank>> {
    let wasm = std::fs::read(policy(name))?;
    let limits = Limits {
        time_ms: 1000,
        ..Limits::default()
    };
    let prepared = Arc::new(engine.load(&wasm, "", limits)?);
    let table = Table {
        max: 4096,
        ttl_ms: 60_000,
        ..Table::default()
    };
    let rank = || {
        let (core, clock) = fleet(8, table);
        let cells = core.cells(name);
        Rank {
            worker: Worker::new(core.clone(), prepared.policy().clone()),
            instance: Instance::new(prepared.clone(), cells),
            core,
            clock,
            in_flight: VecDeque::new(),
        }
    };
    Ok((0..INSTANCES).map(|_| rank()).collect())
}

#[test]
fn case_44_eight_instances_decide_a_hundred_thousand_requests_alike() -> Result<()> {
    let engine = Engine::new()?;
    for name in [
        "conversation-round-robin",
        "session-affinity",
        "parent-affinity",
        "least-tokens",
    ] {
        let mut ranks = ranks(&engine, name)?;
        let mut targets = [0_u32; 8];
        for n in 0..REQUESTS {
            let decisions: Vec<_> = ranks.iter_mut().map(|rank| rank.step(n)).collect();
            let first = decisions.first().cloned().flatten();
            assert!(
                decisions.iter().all(|d| *d == first),
                "{name}, request {n}: {decisions:?}"
            );
            if let Some((target, _)) = first {
                targets[target as usize] += 1;
            }
        }
        assert!(
            targets.iter().all(|&n| n > 1000),
            "{name}: all in one place: {targets:?}"
        );
    }
    Ok(())
}
