//! What a decision costs: the policy's call alone, through WebAssembly and natively, and the whole
//! step around it (look up, ask, commit, give back). All cases are interleaved; hot figures are the
//! least of many samples, because noise only adds; cold ones are taken one call at a time after a
//! walk through 8 MiB.
//!
//! Prints JSON. Not a test: nothing here passes or fails.

use anyhow::{Context, Result};
use pointsman_core::{
    Ask, Charge, Core, Fallback, Incoming, Limits as Table, Outcome, Router, Shared, Worker, decide,
};
use pointsman_runtime::{Engine, Instance, Limits};
use pointsman_sdk::Native;
use pointsman_tests::{fleet, policy};
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 200;
const CALLS: u32 = 200;
const COLD_CALLS: usize = 2000;
const WALK: usize = 8 << 20;

struct Case {
    name: String,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
    incoming: Incoming,
    ask: Rc<Ask>,
    call_ns: f64,
    whole_ns: f64,
    cold_ns: Vec<f64>,
}

impl Case {
    fn whole(&mut self) {
        let outcome = decide(
            &self.worker,
            self.router.as_mut(),
            Fallback::LeastLoad,
            black_box(&self.incoming),
        );
        if let Outcome::Routed(ticket) = outcome {
            ticket.finish();
        }
    }
}

/// With other load on every target.
fn loaded(targets: u32) -> Arc<Core> {
    let (core, _) = fleet(targets, Table::default());
    let snapshot = core.fleet.snapshot();
    for n in 0..targets {
        let charge = Charge {
            requests: n * 31 % 17,
            prefill_tokens: u64::from(n) * 7919 % 100_003 + 5,
            context_tokens: 0,
        };
        snapshot.ledger().charge(n, charge);
    }
    core
}

fn case(
    name: String,
    core: &Arc<Core>,
    (policy, mut router): (pointsman_core::Policy, Box<dyn Router>),
    bound: bool,
) -> Case {
    let worker = Worker::new(core.clone(), policy);
    let incoming = Incoming {
        session: bound.then_some(1),
        seed: 7,
        prompt_tokens: 4000,
        shared: Shared::Given(3000),
        ..Incoming::default()
    };
    // Binds the session, so that what is measured is a later turn.
    if let Outcome::Routed(ticket) =
        decide(&worker, router.as_mut(), Fallback::LeastLoad, &incoming)
    {
        ticket.finish();
    }
    let ask = Rc::new(Ask::begin(&worker, &incoming));
    Case {
        name,
        worker,
        router,
        incoming,
        ask,
        call_ns: f64::INFINITY,
        whole_ns: f64::INFINITY,
        cold_ns: Vec::new(),
    }
}

fn per_call(calls: u32, mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
}

fn main() -> Result<()> {
    let engine = Engine::new()?;
    let wasm = std::fs::read(policy("session-affinity")).context("`make build` first")?;
    let limits = Limits {
        time_ms: 1000,
        ..Limits::default()
    };
    let prepared = Arc::new(engine.load(&wasm, "", limits)?);
    let mut cases = Vec::new();
    for (targets, bound) in [(64, true), (64, false), (4096, false)] {
        let what = if bound { "sticky" } else { "least" };
        let core = loaded(targets);
        let instance = Instance::new(prepared.clone(), core.cells("session-affinity"));
        let through_wasm = (
            prepared.policy().clone(),
            Box::new(instance) as Box<dyn Router>,
        );
        cases.push(case(
            format!("{what} over {targets}, wasm"),
            &core,
            through_wasm,
            bound,
        ));
        let native = Native::<pointsman_session_affinity::SessionAffinity>::new("")
            .map_err(anyhow::Error::msg)?;
        let native = (native.policy(), Box::new(native) as Box<dyn Router>);
        cases.push(case(
            format!("{what} over {targets}, native"),
            &core,
            native,
            bound,
        ));
    }

    for _ in 0..ROUNDS {
        for case in &mut cases {
            let (router, ask) = (&mut case.router, &case.ask);
            let call = per_call(CALLS, || {
                let _ = black_box(router.route(black_box(ask)));
            });
            case.call_ns = case.call_ns.min(call);
            case.whole_ns = case.whole_ns.min(per_call(CALLS, || case.whole()));
        }
    }
    let mut walked = vec![1_u8; WALK];
    for _ in 0..COLD_CALLS {
        for case in &mut cases {
            walked
                .iter_mut()
                .step_by(64)
                .for_each(|b| *b = b.wrapping_add(1));
            black_box(&mut walked);
            let (router, ask) = (&mut case.router, &case.ask);
            let call = per_call(1, || {
                let _ = black_box(router.route(black_box(ask)));
            });
            case.cold_ns.push(call);
        }
    }

    let mut figures = Map::new();
    for case in &mut cases {
        case.cold_ns.sort_by(f64::total_cmp);
        let at = |q: f64| {
            case.cold_ns
                .get((case.cold_ns.len() as f64 * q) as usize)
                .copied()
        };
        let figure = json!({
            "call_hot_ns": round(case.call_ns), "whole_step_hot_ns": round(case.whole_ns),
            "call_cold_p50_ns": at(0.5).map(round), "call_cold_p90_ns": at(0.9).map(round),
        });
        figures.insert(case.name.clone(), figure);
    }
    let machine = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = (machine.lines())
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let result: Value = json!({ "machine": { "cpu": model, "cores": cores }, "decision": figures });
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(())
}

fn round(ns: f64) -> f64 {
    ns.round()
}
