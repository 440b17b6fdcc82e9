//! Between core's types and those that are generated from the WIT: the same words twice, because one side
//! is generated, once in each crate that speaks the contract, and the other knows nothing of Wasm.

/// The conversions of both directions, field by field, for the generated types that are in scope where
/// it stands: `Binding`, `Choice`, `Decision`, `Endpoint`, `Key`, `Keys`, `Load`, `Phase`, `Request`,
/// `Sums`, `Table`, `Tie` and `Weights`. It also makes the functions `request`, `core_keys` and `decision`.
#[macro_export]
macro_rules! contract_conversions {
    () => {
        // To the policy.

        pub(crate) fn request(r: &$crate::Request) -> Request {
            Request {
                phase: match r.phase {
                    $crate::Phase::Serve => Phase::Serve,
                    $crate::Phase::Prefill => Phase::Prefill,
                    $crate::Phase::Decode => Phase::Decode,
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

        impl From<$crate::Binding> for Binding {
            fn from(b: $crate::Binding) -> Binding {
                Binding {
                    target: b.target,
                    eligible: b.eligible,
                    in_flight: b.in_flight,
                }
            }
        }

        impl From<$crate::Load> for Load {
            fn from(l: $crate::Load) -> Load {
                Load {
                    requests: l.requests,
                    sessions: l.sessions,
                    prefill_tokens: l.prefill_tokens,
                    context_tokens: l.context_tokens,
                }
            }
        }

        impl From<$crate::Choice> for Choice {
            fn from(c: $crate::Choice) -> Choice {
                Choice {
                    target: c.target,
                    place: c.place,
                    score: c.score,
                }
            }
        }

        impl From<$crate::Sums> for Sums {
            fn from(s: $crate::Sums) -> Sums {
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

        impl From<$crate::Table> for Table {
            fn from(t: $crate::Table) -> Table {
                Table {
                    target: t.target,
                    requests: t.requests,
                    sessions: t.sessions,
                    prefill_tokens: t.prefill_tokens,
                    context_tokens: t.context_tokens,
                }
            }
        }

        impl From<$crate::Endpoint> for Endpoint {
            fn from(e: $crate::Endpoint) -> Endpoint {
                Endpoint {
                    name: e.name,
                    url: e.url,
                    rank: e.rank,
                    labels: e.labels,
                }
            }
        }

        // To the host.

        impl From<Key> for $crate::Key {
            fn from(key: Key) -> $crate::Key {
                match key {
                    Key::Session => $crate::Key::Session,
                    Key::Siblings => $crate::Key::Siblings,
                    Key::Parent => $crate::Key::Parent,
                    Key::Custom => $crate::Key::Custom,
                }
            }
        }

        pub(crate) fn core_keys(keys: Keys) -> $crate::Keys {
            let pairs = [
                (Keys::SESSION, $crate::Key::Session),
                (Keys::SIBLINGS, $crate::Key::Siblings),
                (Keys::PARENT, $crate::Key::Parent),
                (Keys::CUSTOM, $crate::Key::Custom),
            ];
            pairs
                .into_iter()
                .fold($crate::Keys::NONE, |set, (flag, key)| {
                    if keys.contains(flag) {
                        set.with(key)
                    } else {
                        set
                    }
                })
        }

        impl From<Weights> for $crate::Weights {
            fn from(w: Weights) -> $crate::Weights {
                $crate::Weights {
                    request: w.request,
                    session: w.session,
                    prefill_token: w.prefill_token,
                    context_token: w.context_token,
                }
            }
        }

        impl From<Tie> for $crate::Tie {
            fn from(tie: Tie) -> $crate::Tie {
                match tie {
                    Tie::Turn(turn) => $crate::Tie::Turn(turn),
                    Tie::Hash(key) => $crate::Tie::Hash(key),
                }
            }
        }

        pub(crate) fn decision(decision: Decision) -> $crate::Decision {
            match decision {
                Decision::To(r) => $crate::Decision::To($crate::Route {
                    target: r.target,
                    bind: core_keys(r.bind),
                    rebind: core_keys(r.rebind),
                    charge: r.charge,
                    reason: r.reason,
                }),
                Decision::Reject(r) => $crate::Decision::Reject($crate::Rejection {
                    status: r.status,
                    retry_after_ms: r.retry_after_ms,
                    reason: r.reason,
                }),
                Decision::Abstain(reason) => $crate::Decision::Abstain(reason),
            }
        }
    };
}
