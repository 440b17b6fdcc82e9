//! The plugin's configuration: JSON that `pointsman envoy config` writes.

use pointsman_core::{Limits, Phase, WhenFull};
use pointsman_request::{Dialect, Harness, Session};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All of it. Unknown keys are refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// the route's name: bindings of one route never meet those of another
    #[serde(default = "route")]
    pub route: String,
    /// the policy's own configuration
    #[serde(default)]
    pub policy: serde_json::Map<String, serde_json::Value>,
    /// who decides when the policy does not
    #[serde(default)]
    pub fallback: Fallback,
    /// the engines; at least one
    pub endpoints: Vec<Endpoint>,
    /// whom a request belongs to; none: the host's own lists
    #[serde(default)]
    pub session: Option<Identity>,
    /// the header with which a client names its target; empty: it cannot
    #[serde(default = "explicit_header")]
    pub explicit_header: String,
    /// whether `x-pointsman-explain: 1` is answered
    #[serde(default = "yes")]
    pub explain: bool,
    /// the affinity table
    #[serde(default)]
    pub bindings: Bindings,
    /// how often a request is sent at most; more than 1: a second choice goes with the first
    #[serde(default = "attempts")]
    pub attempts: u32,
    /// whether Envoy notes on each answer how often its request was sent
    /// (`include_attempt_count_in_response`): then it need not be asked who answered
    #[serde(default)]
    pub counts_attempts: bool,
    /// whether JSON bodies are read before the decision
    #[serde(default)]
    pub read_body: bool,
    /// bodies above this size, in bytes, are not: their requests are decided on headers alone
    #[serde(default = "inspect_bytes")]
    pub inspect_bytes: usize,
    /// for tests only, never where clients can reach it
    #[serde(default)]
    pub test: Option<Test>,
}

fn route() -> String {
    "default".to_owned()
}

fn explicit_header() -> String {
    "x-pointsman-target".to_owned()
}

fn yes() -> bool {
    true
}

fn attempts() -> u32 {
    3
}

fn inspect_bytes() -> usize {
    8 << 20
}

/// See [`pointsman_core::Fallback`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// the owner, else the least loaded
    #[default]
    LeastLoad,
    /// 503
    Reject,
}

/// The work of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// prefill and decode
    #[default]
    Serve,
    /// prompts
    Prefill,
    /// tokens
    Decode,
    /// every one
    All,
}

impl Role {
    /// As the core has it.
    pub fn roles(self) -> pointsman_core::Roles {
        match self {
            Role::Serve => pointsman_core::Roles::only(Phase::Serve),
            Role::Prefill => pointsman_core::Roles::only(Phase::Prefill),
            Role::Decode => pointsman_core::Roles::only(Phase::Decode),
            Role::All => pointsman_core::Roles::ALL,
        }
    }
}

/// See [`Dialect`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speaks {
    /// header `X-data-parallel-rank`
    Vllm,
    /// body field `routed_dp_rank`
    Sglang,
    /// body field `data_parallel_rank`
    Atom,
    /// no rank
    #[default]
    Openai,
}

impl From<Speaks> for Dialect {
    fn from(speaks: Speaks) -> Dialect {
        match speaks {
            Speaks::Vllm => Dialect::Vllm,
            Speaks::Sglang => Dialect::Sglang,
            Speaks::Atom => Dialect::Atom,
            Speaks::Openai => Dialect::OpenAi,
        }
    }
}

/// Ranks behind one address.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// of the engine: its targets are "name/0", "name/1", …
    pub name: String,
    /// `ip:port`, as Envoy's cluster has it
    pub address: String,
    /// ranks behind the address, at least 1
    #[serde(default = "one")]
    pub ranks: u32,
    /// the number of the first of them: more than 0 where an engine has an address for each
    #[serde(default)]
    pub first_rank: u32,
    /// the work it does
    #[serde(default)]
    pub role: Role,
    /// how it is told the rank
    #[serde(default)]
    pub dialect: Speaks,
    /// names of models; none: every model
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// shown to policies
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Tells it from another one that had the same name before: bindings to that are not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// not part of the fleet yet
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
}

fn one() -> u32 {
    1
}

/// See [`Session`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// pairs of lists: headers of the session, headers of its parent
    pub harnesses: Vec<(Vec<String>, Vec<String>)>,
    /// headers that end a session
    pub final_headers: Vec<String>,
    /// cookie names
    #[serde(default)]
    pub cookies: Vec<String>,
    /// JSON pointers; looked at only where bodies are read
    #[serde(default)]
    pub body: Vec<String>,
    /// of all header names above, those that engines see; none: all
    #[serde(default)]
    pub forward: Option<Vec<String>>,
}

impl From<&Session> for Identity {
    fn from(session: &Session) -> Identity {
        let pair = |harness: &Harness| (harness.session.clone(), harness.parent.clone());
        Identity {
            harnesses: session.harnesses.iter().map(pair).collect(),
            final_headers: session.final_headers.clone(),
            cookies: session.cookies.clone(),
            body: session.body.clone(),
            forward: session.forward.clone(),
        }
    }
}

impl From<&Identity> for Session {
    fn from(identity: &Identity) -> Session {
        let harness = |(session, parent): &(Vec<String>, Vec<String>)| Harness {
            session: session.clone(),
            parent: parent.clone(),
        };
        Session {
            harnesses: identity.harnesses.iter().map(harness).collect(),
            final_headers: identity.final_headers.clone(),
            cookies: identity.cookies.clone(),
            body: identity.body.clone(),
            forward: identity.forward.clone(),
        }
    }
}

/// The affinity table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bindings {
    /// sessions and groups that are remembered, about; 1 to 1,048,576
    pub max: usize,
    /// gone when idle this long, in ms
    pub ttl_ms: u64,
    /// refuse instead of placing unbound where there is no room
    pub reject_when_full: bool,
    /// a request counts as in flight at most this long, in ms: longer than any takes
    pub lease_ms: u64,
}

impl Default for Bindings {
    fn default() -> Bindings {
        let limits = Limits::default();
        Bindings {
            max: limits.max,
            ttl_ms: limits.ttl_ms,
            reject_when_full: false,
            lease_ms: 6 * 3_600_000,
        }
    }
}

impl Bindings {
    /// As the core has it.
    pub fn limits(&self) -> Limits {
        Limits {
            max: self.max,
            ttl_ms: self.ttl_ms,
            when_full: if self.reject_when_full {
                WhenFull::Reject
            } else {
                WhenFull::PlaceUnbound
            },
        }
    }
}

/// What tests may do: headers `x-pointsman-test-…` say what a request's body would, and requests to
/// [`Test::path`] move the clock, the fleet and the loads, and look at the state.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// the path of requests to the adapter itself
    pub path: String,
    /// told back by it: which configuration this is
    #[serde(default)]
    pub label: String,
}

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, for the operator.
    pub fn read(json: &[u8]) -> Result<Config, String> {
        let config: Config = serde_json::from_slice(json)
            .map_err(|error| format!("the plugin's configuration: {error}"))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if self.endpoints.is_empty() {
            return Err("endpoints is empty: wanted at least one engine".to_owned());
        }
        for endpoint in &self.endpoints {
            let name = &endpoint.name;
            if name.is_empty() || name.contains('/') {
                return Err(format!(
                    "endpoint {name:?}: wanted a name without \"/\", which separates the rank"
                ));
            }
            if endpoint.address.parse::<std::net::SocketAddr>().is_err() {
                return Err(format!(
                    "endpoint {name:?}: address {:?}: wanted ip:port, as in \"10.0.0.1:8000\"",
                    endpoint.address
                ));
            }
            if !(1..=1024).contains(&endpoint.ranks) {
                return Err(format!(
                    "endpoint {name:?}: ranks = {}: wanted 1 to 1024",
                    endpoint.ranks
                ));
            }
        }
        if !(1..=1 << 20).contains(&self.bindings.max) {
            return Err(format!(
                "bindings.max = {}: wanted 1 to 1048576",
                self.bindings.max
            ));
        }
        Ok(())
    }
}
