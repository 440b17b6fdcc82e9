//! Between the mirrored contract's types and core's: the same words twice, because one side is generated
//! from the WIT and the other knows nothing of Wasm.

use super::bindings::exports::pointsman::policy::fleet::{
    Choice, Endpoint, Sums, Table, Tie, Weights,
};
use super::bindings::pointsman::policy::policy::{Description, Event, Usage, Wants};
use super::bindings::pointsman::policy::types::{
    Binding, Decision, Key, Keys, Load, Phase, Request,
};
use pointsman_core as core;

// To the policy.

pub(super) fn request(r: &core::Request) -> Request {
    Request {
        phase: match r.phase {
            core::Phase::Serve => Phase::Serve,
            core::Phase::Prefill => Phase::Prefill,
            core::Phase::Decode => Phase::Decode,
        },
        attempt: r.attempt,
        seed: r.seed,
        model: r.model,
        session: r.session,
        parent: r.parent,
        prompt_tokens: r.prompt_tokens,
        shared_tokens: r.shared_tokens,
        explicit: r.explicit,
        owner: r.owner.map(Into::into),
    }
}

impl From<core::Binding> for Binding {
    fn from(b: core::Binding) -> Binding {
        Binding {
            target: b.target,
            eligible: b.eligible,
            in_flight: b.in_flight,
        }
    }
}

impl From<core::Load> for Load {
    fn from(l: core::Load) -> Load {
        Load {
            requests: l.requests,
            sessions: l.sessions,
            prefill_tokens: l.prefill_tokens,
            context_tokens: l.context_tokens,
        }
    }
}

impl From<core::Choice> for Choice {
    fn from(c: core::Choice) -> Choice {
        Choice {
            target: c.target,
            place: c.place,
            score: c.score,
        }
    }
}

impl From<core::Sums> for Sums {
    fn from(s: core::Sums) -> Sums {
        Sums {
            targets: s.targets,
            busiest: s.busiest,
            requests: s.requests,
            sessions: s.sessions,
            prefill_tokens: s.prefill_tokens,
            context_tokens: s.context_tokens,
        }
    }
}

impl From<core::Table> for Table {
    fn from(t: core::Table) -> Table {
        Table {
            target: t.target,
            requests: t.requests,
            sessions: t.sessions,
            prefill_tokens: t.prefill_tokens,
            context_tokens: t.context_tokens,
        }
    }
}

impl From<core::Endpoint> for Endpoint {
    fn from(e: core::Endpoint) -> Endpoint {
        Endpoint {
            name: e.name,
            url: e.url,
            rank: e.rank,
            labels: e.labels,
        }
    }
}

// To the host.

impl From<Key> for core::Key {
    fn from(key: Key) -> core::Key {
        match key {
            Key::Session => core::Key::Session,
            Key::Siblings => core::Key::Siblings,
            Key::Parent => core::Key::Parent,
            Key::Custom => core::Key::Custom,
        }
    }
}

pub(super) fn core_keys(keys: Keys) -> core::Keys {
    let pairs = [
        (Keys::SESSION, core::Key::Session),
        (Keys::SIBLINGS, core::Key::Siblings),
        (Keys::PARENT, core::Key::Parent),
        (Keys::CUSTOM, core::Key::Custom),
    ];
    pairs
        .into_iter()
        .fold(core::Keys::NONE, |set, (flag, key)| {
            if keys.contains(flag) {
                set.with(key)
            } else {
                set
            }
        })
}

impl From<Weights> for core::Weights {
    fn from(w: Weights) -> core::Weights {
        core::Weights {
            request: w.request,
            session: w.session,
            prefill_token: w.prefill_token,
            context_token: w.context_token,
        }
    }
}

impl From<Tie> for core::Tie {
    fn from(tie: Tie) -> core::Tie {
        match tie {
            Tie::Turn(turn) => core::Tie::Turn(turn),
            Tie::Hash(key) => core::Tie::Hash(key),
        }
    }
}

pub(super) fn decision(decision: Decision) -> core::Decision {
    match decision {
        Decision::To(r) => core::Decision::To(core::Route {
            target: r.target,
            bind: core_keys(r.bind),
            rebind: core_keys(r.rebind),
            charge: r.charge,
            reason: r.reason,
        }),
        Decision::Reject(r) => core::Decision::Reject(core::Rejection {
            status: r.status,
            retry_after_ms: r.retry_after_ms,
            reason: r.reason,
        }),
        Decision::Abstain(reason) => core::Decision::Abstain(reason),
    }
}

// What it says of itself.

pub(super) fn description(description: Description) -> (core::Policy, core::Wants) {
    let wants = |flag| description.wants.contains(flag);
    let wants = core::Wants {
        first_output: wants(Wants::FIRST_OUTPUT),
        finished: wants(Wants::FINISHED),
        failed: wants(Wants::FAILED),
        fleet_changed: wants(Wants::FLEET_CHANGED),
    };
    let policy = core::Policy {
        name: description.name,
        version: description.version,
        reasons: description.reasons,
        keys: core_keys(description.keys),
    };
    (policy, wants)
}

pub(super) fn event(event: core::Event) -> Event {
    match event {
        core::Event::FirstOutput(target) => Event::FirstOutput(target),
        core::Event::Finished(usage) => Event::Finished(Usage {
            target: usage.target,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.output_tokens,
            first_output_ms: usage.first_output_ms,
            total_ms: usage.total_ms,
        }),
        core::Event::Failed(target) => Event::Failed(target),
        core::Event::FleetChanged => Event::FleetChanged,
    }
}
