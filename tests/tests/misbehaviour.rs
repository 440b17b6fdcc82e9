//! Policies that misbehave: told apart by cause, and harmless to the request and to the next one.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

use anyhow::Result;
use pointsman_core::{
    Core, Event, Failure, Fallback, Incoming, Limits as Table, Outcome, Ticket, Worker, decide,
};
use pointsman_runtime::{Engine, Instance, Limits, LoadError, Stage};
use pointsman_tests::{fleet, guest, policy};
use std::rc::Rc;
use std::sync::Arc;

const LIMITS: Limits = Limits {
    time_ms: 100,
    memory_mb: 8,
};

struct Rig {
    core: Arc<Core>,
    worker: Rc<Worker>,
    instance: Instance,
}

impl Rig {
    fn new(engine: &Engine, name: &str, config: &str) -> Result<Rig> {
        let wasm = std::fs::read(guest(name))?;
        let prepared = Arc::new(engine.load(&wasm, config, LIMITS)?);
        let (core, _) = fleet(2, Table::default());
        let cells = core.cells(name);
        Ok(Rig {
            worker: Worker::new(core.clone(), prepared.policy().clone()),
            core,
            instance: Instance::new(prepared, cells),
        })
    }

    fn send(&mut self) -> Ticket {
        let incoming = Incoming {
            session: Some(1),
            ..Incoming::default()
        };
        match decide(
            &self.worker,
            &mut self.instance,
            Fallback::LeastLoad,
            &incoming,
        ) {
            Outcome::Routed(ticket) => ticket,
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
}

#[test]
fn case_43_each_misbehaviour_has_its_cause_and_the_fallback_decides_every_time() -> Result<()> {
    let engine = Engine::new()?;
    for (name, config, cause) in [
        ("trap-on-route", "", "trap"),
        ("spin", "", "timeout"),
        ("balloon", "", "memory"),
        ("trap-on-nth", "{\"n\": 1}", "trap"),
        ("bad-answer", "{\"answer\": \"no-target\"}", "bad-answer"),
        ("bad-answer", "{\"answer\": \"no-reason\"}", "bad-answer"),
        ("bad-answer", "{\"answer\": \"bad-status\"}", "bad-answer"),
        ("bad-answer", "{\"answer\": \"bind-parent\"}", "bad-answer"),
    ] {
        let mut rig = Rig::new(&engine, name, config)?;
        // Twice: the instance that failed is replaced, and fails again by itself.
        for _ in 0..2 {
            let ticket = rig.send();
            let failure = ticket.verdict().failure.clone();
            assert_eq!(failure.map(|f| f.cause()), Some(cause), "{name} {config}");
            assert!(ticket.verdict().fallback);
        }
        assert!(rig.core.bindings().is_empty());
    }
    Ok(())
}

#[test]
fn a_policy_that_recurses_without_end_is_stopped() -> Result<()> {
    let mut rig = Rig::new(&Engine::new()?, "deep-stack", "")?;
    // The guest's own stack ends in its memory before wasmtime's does, or the other way round.
    let failure = rig.send().verdict().failure.clone();
    assert!(
        matches!(failure, Some(Failure::Stack | Failure::Trap(_))),
        "{failure:?}"
    );
    Ok(())
}

#[test]
fn a_flood_of_log_lines_hurts_nobody() -> Result<()> {
    let mut rig = Rig::new(&Engine::new()?, "log-flood", "")?;
    assert_eq!(rig.send().verdict().failure, None);
    Ok(())
}

#[test]
fn a_policy_observes_what_it_wants() -> Result<()> {
    use pointsman_core::Router;
    let mut rig = Rig::new(&Engine::new()?, "observer", "")?;
    let fleet = rig.worker.overview();
    assert!(rig.instance.wants().first_output && rig.instance.wants().fleet_changed);
    rig.instance.observe(Event::FirstOutput(0), &fleet)?;
    rig.instance.observe(Event::FirstOutput(1), &fleet)?;
    rig.instance.observe(Event::Failed(1), &fleet)?;
    let cells = rig.core.cells("observer");
    assert_eq!([0, 1, 2, 3].map(|cell| cells.get(cell)), [2, 0, 1, 0]);
    Ok(())
}

#[test]
fn what_is_no_policy_is_refused_at_its_stage_and_the_text_says_what_to_do() -> Result<()> {
    let engine = Engine::new()?;
    let wasm = std::fs::read(policy("conversation-round-robin"))?;
    let of = |name: &str| std::fs::read(guest(name));
    let (traps, starts) = (of("trap-on-configure")?, of("slow-start")?);
    let (foreign, newer) = (of("wrong-world")?, of("newer-minor")?);
    let refused = |wasm: &[u8], config: &str| -> (Stage, String) {
        let error: LoadError = engine.load(wasm, config, LIMITS).unwrap_err();
        (error.stage(), error.to_string())
    };
    let half = wasm.get(..wasm.len() / 2).unwrap_or_default();
    let cases: [(&[u8], &str, Stage, &str); 11] = [
        (b"", "", Stage::Parse, "an empty file"),
        (b"hello there", "", Stage::Parse, "not WebAssembly"),
        (b"\x7FELF....", "", Stage::Parse, "compiled code"),
        (
            b"\0asm\x01\0\0\0",
            "",
            Stage::Parse,
            "pointsman policy build",
        ),
        (half, "", Stage::Compile, "not a valid component"),
        (
            &foreign,
            "",
            Stage::Contract,
            "does not export pointsman:policy/policy@0.1.0",
        ),
        (
            &newer,
            "",
            Stage::Contract,
            "needs pointsman:policy/fleet@0.2.0, this host speaks pointsman:policy@0.1.0",
        ),
        (
            &wasm,
            "{\"fair_share_multiplier\": 0}",
            Stage::Configure,
            "fair_share_multiplier",
        ),
        (&traps, "", Stage::Configure, "trapped"),
        (
            &starts,
            "{\"rounds\": 4294967295}",
            Stage::Configure,
            "time limit",
        ),
        (&wasm, "{\"doess\": 1}", Stage::Configure, "doess"),
    ];
    for (wasm, config, stage, text) in cases {
        let (found, message) = refused(wasm, config);
        assert_eq!(found, stage, "{message}");
        assert!(message.contains(text), "no {text:?} in {message:?}");
    }
    Ok(())
}

#[test]
fn the_four_policies_refuse_unknown_and_impossible_configuration_in_words() -> Result<()> {
    let engine = Engine::new()?;
    let cases = [
        ("least-tokens", "{\"request_tokens\": 1}", "request_tokens"),
        ("session-affinity", "{\"placement\": \"random\"}", "random"),
        (
            "session-affinity",
            "{\"when_owner_busy\": 7}",
            "when_owner_busy",
        ),
        (
            "parent-affinity",
            "{\"guard_load_ratio\": -1}",
            "guard_load_ratio",
        ),
        (
            "conversation-round-robin",
            "{\"fair_share_multiplier\": 0}",
            "fair_share_multiplier",
        ),
        ("conversation-round-robin", "not json", "expected"),
    ];
    for (name, config, text) in cases {
        let wasm = std::fs::read(policy(name))?;
        let message = match engine.load(&wasm, config, LIMITS) {
            Err(LoadError::Refused(message)) => message,
            other => panic!("{name} {config}: {other:?}"),
        };
        assert!(message.contains(text), "{name}: no {text:?} in {message:?}");
        assert!(
            engine.load(&wasm, "", LIMITS).is_ok(),
            "{name}: the empty configuration"
        );
    }
    Ok(())
}
