//! Between the contract's generated types and the plain ones of core: one place, field by field.

use crate::bindings::exports::pointsman::policy::policy as wp;
use crate::bindings::pointsman::policy::{engine as we, fleet as wf, types as wt};
use crate::driving;
use pointsman_core as core;

pub(crate) fn request(r: &core::Request) -> wt::Request {
    wt::Request {
        phase: match r.phase {
            core::Phase::Serve => wt::Phase::Serve,
            core::Phase::Prefill => wt::Phase::Prefill,
            core::Phase::Decode => wt::Phase::Decode,
        },
        attempt: r.attempt,
        seed: r.seed,
        model: r.model,
        session: r.session,
        parent: r.parent,
        prompt_tokens: r.prompt_tokens,
        shared_tokens: r.shared_tokens,
        explicit: r.explicit,
        owner: r.owner.map(binding),
    }
}

pub(crate) fn binding(b: core::Binding) -> wt::Binding {
    wt::Binding {
        target: b.target,
        eligible: b.eligible,
        in_flight: b.in_flight,
    }
}

pub(crate) fn load(l: core::Load) -> wt::Load {
    wt::Load {
        requests: l.requests,
        sessions: l.sessions,
        prefill_tokens: l.prefill_tokens,
        context_tokens: l.context_tokens,
    }
}

pub(crate) fn key(k: wt::Key) -> core::Key {
    match k {
        wt::Key::Session => core::Key::Session,
        wt::Key::Siblings => core::Key::Siblings,
        wt::Key::Parent => core::Key::Parent,
        wt::Key::Custom => core::Key::Custom,
    }
}

pub(crate) fn keys(k: wt::Keys) -> core::Keys {
    [
        (wt::Keys::SESSION, core::Key::Session),
        (wt::Keys::SIBLINGS, core::Key::Siblings),
        (wt::Keys::PARENT, core::Key::Parent),
        (wt::Keys::CUSTOM, core::Key::Custom),
    ]
    .into_iter()
    .filter(|(flag, _)| k.contains(*flag))
    .fold(core::Keys::NONE, |keys, (_, key)| keys.with(key))
}

pub(crate) fn decision(d: wt::Decision) -> core::Decision {
    match d {
        wt::Decision::To(r) => core::Decision::To(core::Route {
            target: r.target,
            bind: keys(r.bind),
            rebind: keys(r.rebind),
            charge: r.charge,
            reason: r.reason,
        }),
        wt::Decision::Reject(r) => core::Decision::Reject(core::Rejection {
            status: r.status,
            retry_after_ms: r.retry_after_ms,
            reason: r.reason,
        }),
        wt::Decision::Abstain(reason) => core::Decision::Abstain(reason),
    }
}

pub(crate) fn weights(w: wf::Weights) -> core::Weights {
    core::Weights {
        request: w.request,
        session: w.session,
        prefill_token: w.prefill_token,
        context_token: w.context_token,
    }
}

pub(crate) fn tie(t: wf::Tie) -> core::Tie {
    match t {
        wf::Tie::Turn(turn) => core::Tie::Turn(turn),
        wf::Tie::Hash(hash) => core::Tie::Hash(hash),
    }
}

pub(crate) fn choice(c: core::Choice) -> wf::Choice {
    wf::Choice {
        target: c.target,
        place: c.place,
        score: c.score,
    }
}

pub(crate) fn sums(s: core::Sums) -> wf::Sums {
    wf::Sums {
        targets: s.targets,
        busiest: s.busiest,
        requests: s.requests,
        sessions: s.sessions,
        prefill_tokens: s.prefill_tokens,
        context_tokens: s.context_tokens,
    }
}

pub(crate) fn table(t: core::Table) -> wf::Table {
    wf::Table {
        target: t.target,
        requests: t.requests,
        sessions: t.sessions,
        prefill_tokens: t.prefill_tokens,
        context_tokens: t.context_tokens,
    }
}

pub(crate) fn endpoint(e: core::Endpoint) -> wf::Endpoint {
    wf::Endpoint {
        name: e.name,
        url: e.url,
        rank: e.rank,
        labels: e.labels,
    }
}

pub(crate) fn wants(w: wp::Wants) -> core::Wants {
    core::Wants {
        first_output: w.contains(wp::Wants::FIRST_OUTPUT),
        finished: w.contains(wp::Wants::FINISHED),
        failed: w.contains(wp::Wants::FAILED),
        fleet_changed: w.contains(wp::Wants::FLEET_CHANGED),
    }
}

pub(crate) fn event(e: core::Event) -> wp::Event {
    match e {
        core::Event::FirstOutput(target) => wp::Event::FirstOutput(target),
        core::Event::Failed(target) => wp::Event::Failed(target),
        core::Event::FleetChanged => wp::Event::FleetChanged,
        core::Event::Finished(u) => wp::Event::Finished(wp::Usage {
            target: u.target,
            prompt_tokens: u.prompt_tokens,
            cached_tokens: u.cached_tokens,
            output_tokens: u.output_tokens,
            first_output_ms: u.first_output_ms,
            total_ms: u.total_ms,
        }),
    }
}

/// The interval of the ticks that it wants; 0: it does not say.
pub(crate) fn ticks(w: wp::Wants, tick_ms: Option<u32>) -> Option<u32> {
    w.contains(wp::Wants::TICK).then(|| tick_ms.unwrap_or(0))
}

pub(crate) fn failure(f: driving::Failure) -> we::Failure {
    match f {
        driving::Failure::Denied => we::Failure::Denied,
        driving::Failure::Unknown => we::Failure::Unknown,
        driving::Failure::Unavailable(why) => we::Failure::Unavailable(why),
    }
}

pub(crate) fn knob(k: driving::Knob) -> we::Knob {
    we::Knob {
        name: k.name,
        unit: k.unit,
        low: k.low,
        high: k.high,
        value: k.value,
    }
}

pub(crate) fn kernel(k: driving::Kernel) -> we::Kernel {
    we::Kernel {
        name: k.name,
        low_m: k.low_m,
        high_m: k.high_m,
        ranks: k.ranks,
        chosen: k.chosen,
        nanoseconds: k.nanoseconds,
    }
}

pub(crate) fn roles(r: we::Roles) -> Vec<core::Phase> {
    let all = [
        (we::Roles::SERVE, core::Phase::Serve),
        (we::Roles::PREFILL, core::Phase::Prefill),
        (we::Roles::DECODE, core::Phase::Decode),
    ];
    let those = all.into_iter().filter(|(role, _)| r.contains(*role));
    those.map(|(_, phase)| phase).collect()
}
