//! Where policies come from: built into the binary, or a `.wasm` file.

use anyhow::{Context, Result, anyhow, bail};
use pointsman_core::{Core, Policy, Router};
use pointsman_runtime::{Candidate, Compiled, Engine, Instance, Limits, LoadError, Prepared};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A policy and a router of it for one thread.
pub type Decider = (Policy, Box<dyn Router>);

/// A policy that the binary carries.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    pub name: &'static str,
    pub about: &'static str,
    pub wasm: &'static [u8],
    /// needs engines that it is granted, for what it is there for
    pub drives_engines: bool,
    /// the same code, linked natively
    pub native: fn(&str) -> Result<Decider, String>,
}

#[cfg(feature = "policies")]
macro_rules! built_in {
    ($name:literal, $policy:ty, $about:literal) => {
        built_in!($name, $policy, $about, false)
    };
    ($name:literal, $policy:ty, $about:literal, $drives:literal) => {
        BuiltIn {
            name: $name,
            about: $about,
            drives_engines: $drives,
            wasm: include_bytes!(concat!(env!("POINTSMAN_POLICIES"), "/", $name, ".wasm")),
            native: |config| {
                let native = pointsman_sdk::Native::<$policy>::new(config)?;
                Ok((native.policy(), Box::new(native)))
            },
        }
    };
}

/// The policies that the binary carries.
#[cfg(feature = "policies")]
pub const BUILT_IN: &[BuiltIn] = &[
    built_in!(
        "least-tokens",
        pointsman_least_tokens::LeastTokens,
        "the target with the fewest outstanding tokens, whatever the session"
    ),
    built_in!(
        "session-affinity",
        pointsman_session_affinity::SessionAffinity,
        "a session stays on the rank that holds its cache"
    ),
    built_in!(
        "parent-affinity",
        pointsman_parent_affinity::ParentAffinity,
        "and a subagent starts where its siblings are, under a load guard"
    ),
    built_in!(
        "conversation-round-robin",
        pointsman_conversation_round_robin::ConversationRoundRobin,
        "first turns in turn, later ones on their rank, under a cap"
    ),
    built_in!(
        "decode-protect",
        pointsman_decode_protect::DecodeProtect,
        "as session-affinity, and engines' schedulers leave decode its share",
        true
    ),
];

/// Built without policies.
#[cfg(not(feature = "policies"))]
pub const BUILT_IN: &[BuiltIn] = &[];

/// What a policy is fused with for Envoy.
#[cfg(feature = "policies")]
pub const ENVOY_ADAPTER: Option<&[u8]> = Some(include_bytes!(concat!(
    env!("POINTSMAN_POLICIES"),
    "/envoy-adapter.wasm"
)));

/// Built without it.
#[cfg(not(feature = "policies"))]
pub const ENVOY_ADAPTER: Option<&[u8]> = None;

/// The policy of a name.
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|policy| policy.name == name)
}

/// What a user may write where a policy is wanted.
#[derive(Clone, Debug)]
pub enum Named {
    BuiltIn(&'static BuiltIn),
    File(PathBuf),
}

impl Named {
    /// A built-in name, or the path of a `.wasm`, relative to `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Named> {
        if let Some(policy) = built_in(text) {
            return Ok(Named::BuiltIn(policy));
        }
        let path = base.join(text);
        if path.extension().is_some_and(|e| e == "wasm") || path.is_file() {
            return Ok(Named::File(path));
        }
        let names: Vec<&str> = BUILT_IN.iter().map(|policy| policy.name).collect();
        bail!(
            "policy {text:?}: wanted the path of a .wasm file or one of {}",
            names.join(", ")
        );
    }

    /// Its bytes.
    pub fn wasm(&self) -> Result<Cow<'static, [u8]>> {
        match self {
            Named::BuiltIn(policy) => Ok(Cow::Borrowed(policy.wasm)),
            Named::File(path) => std::fs::read(path)
                .map(Cow::Owned)
                .with_context(|| format!("cannot read the policy {}", path.display())),
        }
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Named::BuiltIn(policy) => f.write_str(policy.name),
            Named::File(path) => path.display().fmt(f),
        }
    }
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Loads a policy whose SHA-256 must be `pin` (empty: any), ready to decide. An error says which
/// policy, at which stage, and why.
pub fn candidate(
    engine: &Engine,
    policy: &Named,
    config: &str,
    limits: Limits,
    pin: &str,
) -> Result<Candidate> {
    let wasm = policy.wasm()?;
    let found = digest(&wasm);
    if !pin.is_empty() && !found.eq_ignore_ascii_case(pin) {
        bail!(
            "the policy {policy} is not the one that was pinned: wanted sha256 {pin}, found {found}"
        );
    }
    let compiled = staged(policy, engine.compile(&wasm))?;
    Ok(Candidate {
        prepared: Arc::new(configure(&compiled, policy, config, limits)?),
        origin: policy.to_string(),
        digest: found,
    })
}

/// Compiles it.
pub fn compile(engine: &Engine, policy: &Named) -> Result<Compiled> {
    staged(policy, engine.compile(&policy.wasm()?))
}

/// Configures it with JSON.
pub fn configure(
    compiled: &Compiled,
    policy: &Named,
    config: &str,
    limits: Limits,
) -> Result<Prepared> {
    staged(policy, compiled.configure(config, limits))
}

fn staged<T>(policy: &Named, result: Result<T, LoadError>) -> Result<T> {
    result
        .map_err(|e| anyhow!("{e}").context(format!("stage {}", e.stage().as_str())))
        .with_context(|| format!("the policy {policy} cannot be used"))
}

/// A policy's warm instance for this thread.
pub fn router(core: &Arc<Core>, prepared: Arc<Prepared>) -> Decider {
    let policy = prepared.policy().clone();
    let instance = Instance::new(prepared, core.cells(&policy.name));
    (policy, Box::new(instance))
}
