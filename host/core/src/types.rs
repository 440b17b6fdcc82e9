//! The words of the policy contract as plain types (see `wit/types.wit` and `wit/host.wit`).

use serde::{Deserialize, Serialize};

/// One data-parallel rank of one engine. Assigned in configuration order, never reused.
pub type Target = u32;

/// Which part of the work a pool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// prefill and decode in one engine
    Serve,
    /// prompt processing only
    Prefill,
    /// token generation only
    Decode,
}

impl Phase {
    /// All phases, in the order of their index.
    pub const ALL: [Phase; 3] = [Phase::Serve, Phase::Prefill, Phase::Decode];

    /// 0, 1, 2.
    pub fn index(self) -> usize {
        self as usize
    }

    /// As written in configuration and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Serve => "serve",
            Phase::Prefill => "prefill",
            Phase::Decode => "decode",
        }
    }
}

/// An identity of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// its own session
    Session,
    /// the children of its parent, taken together
    Siblings,
    /// its parent's own session: may be followed, never bound
    Parent,
    /// one more that the operator configures
    Custom,
}

impl Key {
    /// The keys a decision may bind, in the order in which a conflict is settled.
    pub const BINDABLE: [Key; 3] = [Key::Session, Key::Siblings, Key::Custom];
    /// Every key.
    pub const ALL: [Key; 4] = [Key::Session, Key::Siblings, Key::Parent, Key::Custom];

    /// 0 to 3, the bit of the key in [`Keys`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A set of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys(u8);

impl Keys {
    /// No key.
    pub const NONE: Keys = Keys(0);

    /// The set whose members are the set bits: 1 session, 2 siblings, 4 parent, 8 custom.
    pub fn from_bits(bits: u8) -> Keys {
        Keys(bits & 0b1111)
    }

    /// See [`Keys::from_bits`].
    pub fn bits(self) -> u8 {
        self.0
    }

    /// This set and `key`.
    #[must_use]
    pub fn with(self, key: Key) -> Keys {
        Keys(self.0 | 1 << key.index())
    }

    /// This set without `key`.
    #[must_use]
    pub fn without(self, key: Key) -> Keys {
        Keys(self.0 & !(1 << key.index()))
    }

    /// Whether `key` is a member.
    pub fn has(self, key: Key) -> bool {
        self.0 & (1 << key.index()) != 0
    }

    /// Whether there is no member.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a policy is shown of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// pool the request is for
    pub phase: Phase,
    /// 0 first; counts the retries
    pub attempt: u32,
    /// XXH3-64 of the request id: the only source of chance
    pub seed: u64,
    /// XXH3-64 of the model's name
    pub model: u64,
    /// XXH3-64 of the session id
    pub session: Option<u64>,
    /// XXH3-64 of the parent's session id
    pub parent: Option<u64>,
    /// estimate of the whole prompt
    pub prompt_tokens: u32,
    /// of those, in common with the previous prompt of this session
    pub shared_tokens: u32,
    /// the client names its target, which is eligible
    pub explicit: Option<Target>,
    /// the binding of `session`
    pub owner: Option<Binding>,
}

/// What is outstanding on a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// requests in flight
    pub requests: u32,
    /// live bindings of sessions
    pub sessions: u32,
    /// charged and not yet prefilled
    pub prefill_tokens: u64,
    /// whole prompts of the requests in flight
    pub context_tokens: u64,
}

/// Where a key is bound, as seen by one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// the target
    pub target: Target,
    /// whether it may take this request; a draining target still takes the sessions it owns
    pub eligible: bool,
    /// requests that carry this key, in flight on this target since the binding was made
    pub in_flight: u32,
}

/// The proposal to send a request to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// where to
    pub target: Target,
    /// bind these keys if unbound
    pub bind: Keys,
    /// replace these bindings
    pub rebind: Keys,
    /// prefill tokens to charge; none: the prompt, less the shared part if the session last ran there
    pub charge: Option<u32>,
    /// index into the policy's reasons
    pub reason: u8,
}

/// The proposal to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// HTTP status, 400 to 599
    pub status: u16,
    /// when to come back, in ms
    pub retry_after_ms: Option<u32>,
    /// index into the policy's reasons
    pub reason: u8,
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// send it there
    To(Route),
    /// refuse it
    Reject(Rejection),
    /// the operator's fallback decides; the reason
    Abstain(u8),
}

/// The cost of each unit of load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// of an outstanding request
    pub request: u64,
    /// of a bound session
    pub session: u64,
    /// of an outstanding prefill token
    pub prefill_token: u64,
    /// of a context token in flight
    pub context_token: u64,
}

/// Who wins among equals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// the first from place `turn` mod the size of the placement set onward, around
    Turn(u64),
    /// the highest hash of (this, the target's name): the same on every replica
    Hash(u64),
}

/// The target with the lowest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// the target
    pub target: Target,
    /// its place in the placement set, from 0
    pub place: u32,
    /// sum of weight × load, saturating
    pub score: u64,
}

/// Sums over the placement set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// how many targets
    pub targets: u32,
    /// the most outstanding requests on one of them
    pub busiest: u32,
    /// outstanding requests
    pub requests: u64,
    /// bound sessions
    pub sessions: u64,
    /// outstanding prefill tokens
    pub prefill_tokens: u64,
    /// context tokens in flight
    pub context_tokens: u64,
}

/// The placement set as columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// ascending
    pub target: Vec<Target>,
    /// outstanding requests
    pub requests: Vec<u32>,
    /// bound sessions
    pub sessions: Vec<u32>,
    /// outstanding prefill tokens
    pub prefill_tokens: Vec<u64>,
    /// context tokens in flight
    pub context_tokens: Vec<u64>,
}

/// Who a target is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// "endpoint/rank"
    pub name: String,
    /// base URL of the engine server
    pub url: String,
    /// data-parallel rank in it
    pub rank: u32,
    /// the operator's labels
    pub labels: Vec<(String, String)>,
}

impl Endpoint {
    /// The name of the engine server: "a" of "a/3".
    pub fn server(&self) -> &str {
        (self.name.rsplit_once('/')).map_or(&*self.name, |(server, _)| server)
    }
}

/// The events that a policy wants to observe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of four")]
pub struct Wants {
    /// [`Event::FirstOutput`]
    pub first_output: bool,
    /// [`Event::Finished`]
    pub finished: bool,
    /// [`Event::Failed`]
    pub failed: bool,
    /// [`Event::FleetChanged`]
    pub fleet_changed: bool,
}

/// Of a finished request; times since its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// where it ran
    pub target: Target,
    /// as the engine counted them, else the estimate
    pub prompt_tokens: u32,
    /// of those, from its cache
    pub cached_tokens: u32,
    /// as the engine counted them
    pub output_tokens: u32,
    /// until the first output, in ms
    pub first_output_ms: u32,
    /// until the end, in ms
    pub total_ms: u32,
}

/// What happens after decisions, for a policy that wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// a request's first output came from this target
    FirstOutput(Target),
    /// a request ended
    Finished(Usage),
    /// a request failed on this target
    Failed(Target),
    /// targets came, went, or changed their condition
    FleetChanged,
}
