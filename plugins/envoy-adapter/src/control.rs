//! For tests alone: requests to the adapter itself, which move the clock, the fleet and the loads, and
//! look at the state. Only where the plugin's configuration has `test`.

use crate::fleet::{DOWN, DRAINING, REMOVED, stand};
use crate::rows::Change;
use crate::shared::Shared;
use crate::site::Site;
use pointsman_core::{Key, Phase, Scope, Target, hash_text};
use serde::Deserialize;
use serde_json::{Value, json};

/// What a test wants done; several things are done in the order of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    end_session: Option<String>,
    stand: Option<Stand>,
    advance_ms: Option<u64>,
    load: Option<Load>,
    look: Vec<Target>,
    bound: Option<Bound>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stand {
    target: Target,
    down: Option<bool>,
    draining: Option<bool>,
    removed: Option<bool>,
}

/// What others hold, more or less than before.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    target: Target,
    requests: i64,
    prefill_tokens: i64,
    context_tokens: i64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bound {
    session: Option<String>,
    siblings: Option<String>,
    phase: String,
    model: String,
}

/// Whether a request is one of these.
pub fn is_control<S: Shared>(site: &Site<S>, path: &str) -> bool {
    let test = site.config.test.as_ref();
    test.is_some_and(|test| path.split('?').next() == Some(test.path.as_str()))
}

/// Does what `json` says, and answers in JSON. `vm`: who answers.
pub fn control<S: Shared>(site: &Site<S>, json: &str, vm: u64, wall_ms: u64) -> (u32, String) {
    match serde_json::from_str(json) {
        Ok(wanted) => (200, act(site, &wanted, vm, wall_ms).to_string()),
        Err(error) => (400, json!({ "error": error.to_string() }).to_string()),
    }
}

fn act<S: Shared>(site: &Site<S>, wanted: &Wanted, vm: u64, wall_ms: u64) -> Value {
    if let Some(session) = &wanted.end_session {
        site.end_session(hash_text(session));
    }
    if let Some(standing) = &wanted.stand {
        let bit = |bits: u8, bit: u8, set: Option<bool>| match set {
            None => bits,
            Some(true) => bits | bit,
            Some(false) => bits & !bit,
        };
        stand(&site.shared, standing.target, |bits| {
            let bits = bit(bits, DOWN, standing.down);
            let bits = bit(bits, DRAINING, standing.draining);
            bit(bits, REMOVED, standing.removed)
        });
    }
    if let Some(ms) = wanted.advance_ms {
        site.advance(ms);
        site.tell(wall_ms);
        (0..site.core.pieces()).for_each(|piece| site.sweep(piece));
    }
    if let Some(load) = &wanted.load {
        let change = Change {
            target: load.target,
            requests: load.requests,
            sessions: 0,
            prefill_tokens: load.prefill_tokens,
            context_tokens: load.context_tokens,
        };
        site.count(&[change]);
    }
    site.bring_loads();
    let fleet = site.core.fleet.snapshot();
    let loads = wanted.look.iter().map(|target| {
        let load = fleet.ledger().load(*target);
        json!({
            "requests": load.requests, "sessions": load.sessions,
            "prefill_tokens": load.prefill_tokens, "context_tokens": load.context_tokens,
        })
    });
    let loads: Vec<Value> = loads.collect();
    let bound = wanted.bound.as_ref().and_then(|bound| find(site, bound));
    let test = site.config.test.as_ref();
    json!({
        "loads": loads, "bound": bound, "vm": vm, "policy": site.worker.policy().name,
        "ended": site.ended(), "label": test.map(|test| test.label.as_str()),
    })
}

fn find<S: Shared>(site: &Site<S>, bound: &Bound) -> Option<Target> {
    let phase = Phase::ALL
        .into_iter()
        .find(|phase| phase.as_str() == bound.phase)?;
    let scope = Scope::new(site.route, phase, hash_text(&bound.model));
    let (key, id) = match (&bound.session, &bound.siblings) {
        (Some(session), _) => (Key::Session, session),
        (None, Some(parent)) => (Key::Siblings, parent),
        (None, None) => return None,
    };
    site.bound(scope, key, hash_text(id))
}
