//! Between the mirrored contract's types and core's.

use super::bindings::exports::pointsman::policy::fleet::{
    Choice, Endpoint, Sums, Table, Tie, Weights,
};
use super::bindings::pointsman::policy::policy::{Description, Event, Usage, Wants};
use super::bindings::pointsman::policy::types::{
    Binding, Decision, Key, Keys, Load, Phase, Request,
};
use pointsman_core as core;

pointsman_core::contract_conversions!();

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
