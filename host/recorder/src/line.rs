//! The lines of a recording: JSON, one object each. The first says what the file is; the fleet comes
//! before the decisions that saw it.

use pointsman_core::{
    Answer, Bound, Explicit, Incoming, Load, Moment, Phase, Read, Shared, Snapshot, Standing,
    Target, TargetSpec,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Of the format: another one is not read.
pub(crate) const VERSION: u32 = 1;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// the first: its version
    PointsmanRecording(u32),
    /// every target, in the order of their numbers
    Fleet(Vec<Member>),
    /// one decision
    Decision(Box<Decided>),
}

/// A target and its condition.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Member {
    /// none: removed long ago
    #[serde(flatten)]
    spec: Option<TargetSpec>,
    standing: Standing,
}

/// A decision and what it saw.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Decided {
    policy: String,
    at_ms: u64,
    route: u64,
    phase: Phase,
    model: u64,
    seed: u64,
    attempt: u32,
    session: Option<u64>,
    parent: Option<u64>,
    custom: Option<u64>,
    prompt_tokens: u32,
    shared_tokens: u32,
    explicit: Option<Target>,
    tried: Vec<Target>,
    max_output_tokens: Option<u32>,
    /// of session, siblings, parent, custom
    bound: [Option<Bound>; 4],
    /// target, its requests, sessions, prefill tokens, context tokens; the others have nothing
    loads: Vec<(Target, u32, u32, u64, u64)>,
    read: Read,
    answer: Answer,
}

impl Line {
    pub(crate) fn fleet(fleet: &Snapshot) -> Line {
        let member = |(spec, standing): (Option<&Arc<TargetSpec>>, Standing)| Member {
            spec: spec.map(|spec| TargetSpec::clone(spec)),
            standing,
        };
        Line::Fleet(fleet.members().map(member).collect())
    }

    pub(crate) fn decision(moment: &Moment) -> Line {
        let incoming = &moment.incoming;
        Line::Decision(Box::new(Decided {
            policy: moment.policy.clone(),
            at_ms: moment.at_ms,
            route: incoming.route,
            phase: incoming.phase,
            model: incoming.model,
            seed: incoming.seed,
            attempt: incoming.attempt,
            session: incoming.session,
            parent: incoming.parent,
            custom: incoming.custom,
            prompt_tokens: incoming.prompt_tokens,
            shared_tokens: match incoming.shared {
                Shared::Given(tokens) => tokens,
                Shared::Chain(_) => 0,
            },
            explicit: moment.explicit(),
            tried: incoming.tried.clone(),
            max_output_tokens: moment.max_output_tokens,
            bound: moment.bound,
            loads: (moment.loads.iter())
                .map(|(t, l)| {
                    (
                        *t,
                        l.requests,
                        l.sessions,
                        l.prefill_tokens,
                        l.context_tokens,
                    )
                })
                .collect(),
            read: moment.read.clone(),
            answer: moment.answer.clone(),
        }))
    }
}

impl Decided {
    pub(crate) fn moment(self, fleet: Arc<Snapshot>) -> Moment {
        Moment {
            policy: self.policy,
            at_ms: self.at_ms,
            fleet,
            loads: (self.loads.into_iter())
                .map(
                    |(target, requests, sessions, prefill_tokens, context_tokens)| {
                        let load = Load {
                            requests,
                            sessions,
                            prefill_tokens,
                            context_tokens,
                        };
                        (target, load)
                    },
                )
                .collect(),
            incoming: Incoming {
                route: self.route,
                phase: self.phase,
                model: self.model,
                seed: self.seed,
                attempt: self.attempt,
                session: self.session,
                parent: self.parent,
                custom: self.custom,
                prompt_tokens: self.prompt_tokens,
                shared: Shared::Given(self.shared_tokens),
                explicit: self.explicit.map_or(Explicit::None, Explicit::Target),
                tried: self.tried,
                facts: None,
            },
            max_output_tokens: self.max_output_tokens,
            bound: self.bound,
            read: self.read,
            answer: self.answer,
        }
    }
}

/// The fleet of a line.
pub(crate) fn snapshot(members: Vec<Member>) -> Snapshot {
    Snapshot::of(members.into_iter().map(|m| (m.spec, m.standing)))
}
