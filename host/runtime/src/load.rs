//! From bytes to a policy that can decide, in stages; a failure names its stage, cause and remedy.

use crate::bindings::RouterPre;
use crate::bindings::exports::pointsman::policy::policy::Description;
use crate::budget::LogBudget;
use crate::contract::{self, Mismatch};
use crate::convert;
use crate::engine::Engine;
use crate::host::State;
use crate::instance::{Limits, Live, StartError};
use pointsman_core::{Cells, Failure, Policy, Wants};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use wasmtime::component::Component;

/// A `.wasm` beyond this is refused unread, in bytes. Python policies are about 20 MB.
const MAX_WASM: usize = 64 << 20;
/// Reasons are numbered in a byte.
const MAX_REASONS: usize = 256;
/// Of a reason or a name, in bytes: they become metric labels.
const MAX_WORD: usize = 64;
/// Where a policy wants ticks and does not say how often.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// More often is not.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// How far a policy came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// reading it as a component
    Parse,
    /// world and version
    Contract,
    /// machine code
    Compile,
    /// linking its imports
    Link,
    /// instantiation and `configure`
    Configure,
    /// what it says of itself
    Description,
}

impl Stage {
    /// A word.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Parse => "parse",
            Stage::Contract => "contract",
            Stage::Compile => "compile",
            Stage::Link => "link",
            Stage::Configure => "configure",
            Stage::Description => "description",
        }
    }
}

/// Why a policy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// too large
    #[error("{0} bytes are too many for a policy: at most {MAX_WASM}")]
    TooLarge(usize),
    /// not WebAssembly
    #[error("this is not WebAssembly: wanted a component (`\\0asm` at the start), found {0}")]
    NotWasm(String),
    /// a module
    #[error(
        "this is a core WebAssembly module, a policy is a component: make it one with `pointsman policy build`"
    )]
    CoreModule,
    /// not valid
    #[error("this is not a valid component: {0}")]
    Invalid(String),
    /// not this contract
    #[error("this component does not fit the host: {0}")]
    Mismatch(#[from] Mismatch),
    /// the types of an import differ
    #[error("this component's imports do not fit {contract}: {0}", contract = crate::CONTRACT)]
    Link(String),
    /// it refuses its configuration
    #[error("the policy refuses its configuration: {0}")]
    Refused(String),
    /// it failed while it was configured
    #[error("the policy failed while it was configured: {0}")]
    Failed(Failure),
    /// what it says of itself is not usable
    #[error("the policy's description is not usable: {0}")]
    Description(String),
}

impl From<StartError> for LoadError {
    fn from(error: StartError) -> LoadError {
        match error {
            StartError::Refused(text) => LoadError::Refused(text),
            StartError::Failed(failure) => LoadError::Failed(failure),
        }
    }
}

impl LoadError {
    /// Where it stopped.
    pub fn stage(&self) -> Stage {
        match self {
            LoadError::TooLarge(_) | LoadError::NotWasm(_) | LoadError::CoreModule => Stage::Parse,
            LoadError::Invalid(_) => Stage::Compile,
            LoadError::Mismatch(_) => Stage::Contract,
            LoadError::Link(_) => Stage::Link,
            LoadError::Refused(_) | LoadError::Failed(_) => Stage::Configure,
            LoadError::Description(_) => Stage::Description,
        }
    }
}

/// A policy that was configured once: every instance of it comes up the same.
pub struct Prepared {
    pub(crate) pre: RouterPre<State>,
    pub(crate) policy: Policy,
    pub(crate) config: String,
    pub(crate) limits: Limits,
    pub(crate) wants: Wants,
    pub(crate) log: Arc<LogBudget>,
    /// between two ticks, 0 = the host's choice; none: it wants none
    pub(crate) tick_ms: Option<u32>,
    schema: String,
    /// instances that wait for a worker
    spares: Mutex<Vec<Live>>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Prepared").field("policy", &self.policy)).finish_non_exhaustive()
    }
}

impl Prepared {
    /// What it says of itself.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How often it wants a tick; none: never.
    pub fn tick_interval(&self) -> Option<Duration> {
        Some(match self.tick_ms? {
            0 => DEFAULT_INTERVAL,
            ms => Duration::from_millis(ms.into()).max(SHORTEST_INTERVAL),
        })
    }

    /// The JSON Schema of its configuration.
    pub fn config_schema(&self) -> &str {
        &self.schema
    }

    /// Brings up so many instances over `cells`, for workers that will ask: `configure` may take long,
    /// and no request is to wait for it.
    ///
    /// # Errors
    /// If one does not come up.
    pub(crate) fn ready(&self, instances: usize, cells: &Arc<Cells>) -> Result<(), LoadError> {
        for _ in 0..instances {
            let (live, _) = Live::start(self, cells.clone()).map_err(LoadError::from)?;
            self.give(live);
        }
        Ok(())
    }

    /// Whether so many instances wait.
    pub(crate) fn has(&self, instances: usize, cells: &Arc<Cells>) -> bool {
        let spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        spares.iter().filter(|live| live.is_over(cells)).count() >= instances
    }

    /// An instance that is up already.
    pub(crate) fn take(&self, cells: &Arc<Cells>) -> Option<Live> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spares.iter().position(|live| live.is_over(cells))?;
        Some(spares.swap_remove(place))
    }

    /// One that a worker needs no more: there are at most as many as were ready or are workers, and those
    /// in stock.
    pub(crate) fn give(&self, live: Live) {
        (self.spares.lock().unwrap_or_else(PoisonError::into_inner)).push(live);
    }
}

/// A policy that fits this host, not configured yet.
pub struct Compiled {
    pre: RouterPre<State>,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").finish_non_exhaustive()
    }
}

impl Engine {
    /// Parse, world and version, machine code, imports. The long part: tens of milliseconds.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn compile(&self, wasm: &[u8]) -> Result<Compiled, LoadError> {
        sort(wasm)?;
        let component = match &self.cache {
            Some(cache) => cache
                .component(&self.wasm, wasm)
                .map(|(component, _)| component),
            None => Component::from_binary(&self.wasm, wasm),
        };
        self.fit(&component.map_err(|e| LoadError::Invalid(format!("{e:#}")))?)
    }

    /// The same with code that the cache has; none: it would have to be compiled first.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn cached(&self, wasm: &[u8]) -> Result<Option<Compiled>, LoadError> {
        sort(wasm)?;
        let component = (self.cache.as_ref()).and_then(|cache| cache.cached(&self.wasm, wasm));
        component.map(|component| self.fit(&component)).transpose()
    }

    /// World, version and imports.
    fn fit(&self, component: &Component) -> Result<Compiled, LoadError> {
        contract::check(component, &self.wasm)?;
        let pre = (self.linker.instantiate_pre(component))
            .and_then(RouterPre::new)
            .map_err(|e| LoadError::Link(format!("{e:#}")))?;
        Ok(Compiled { pre })
    }

    /// Loads a policy and configures it with `config` (JSON; empty means `{}`).
    ///
    /// # Errors
    /// See [`LoadError`]; nothing of the policy stays behind.
    pub fn load(&self, wasm: &[u8], config: &str, limits: Limits) -> Result<Prepared, LoadError> {
        self.compile(wasm)?.configure(config, limits)
    }
}

impl Compiled {
    /// Configures it once, on trial, with `config` (JSON; empty means `{}`).
    ///
    /// # Errors
    /// If it refuses, traps, exceeds a limit, or describes itself in an unusable way.
    pub fn configure(&self, config: &str, limits: Limits) -> Result<Prepared, LoadError> {
        let config = match config.trim() {
            "" => "{}",
            config => config,
        };
        let mut prepared = Prepared {
            pre: self.pre.clone(),
            policy: Policy {
                name: "(being configured)".to_owned(),
                version: String::new(),
                reasons: Vec::new(),
                keys: pointsman_core::Keys::NONE,
            },
            config: config.to_owned(),
            limits,
            wants: Wants::default(),
            log: Arc::new(LogBudget::new()),
            tick_ms: None,
            schema: String::new(),
            spares: Mutex::default(),
        };
        // Numbers that it may count while it is tried are thrown away.
        let (_, description) =
            Live::start(&prepared, Arc::new(Cells::default())).map_err(LoadError::from)?;
        check(&description).map_err(LoadError::Description)?;
        prepared.policy = Policy {
            name: description.name,
            version: description.version,
            reasons: description.reasons,
            keys: convert::keys(description.keys),
        };
        prepared.tick_ms = convert::ticks(description.wants, description.tick_ms);
        prepared.wants = convert::wants(description.wants);
        prepared.schema = description.config_schema;
        Ok(prepared)
    }
}

/// Tells the kinds of file apart that people mistake for a policy.
fn sort(wasm: &[u8]) -> Result<(), LoadError> {
    if wasm.len() > MAX_WASM {
        return Err(LoadError::TooLarge(wasm.len()));
    }
    match wasm {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(LoadError::CoreModule),
        [0, b'a', b's', b'm', ..] => Ok(()),
        [0x7F, b'E', b'L', b'F', ..] => Err(LoadError::NotWasm(
            "compiled code, which is never taken from outside".to_owned(),
        )),
        [] => Err(LoadError::NotWasm("an empty file".to_owned())),
        other => {
            let start: String = other.iter().take(8).map(|b| format!("{b:02x} ")).collect();
            Err(LoadError::NotWasm(format!(
                "a file that starts with {start}"
            )))
        }
    }
}

fn check(description: &Description) -> Result<(), String> {
    let word = |what: &str, word: &str| {
        let fits = !word.is_empty()
            && word.len() <= MAX_WORD
            && word
                .chars()
                .all(|c| c.is_ascii_graphic() && !"\"\\".contains(c));
        if fits {
            Ok(())
        } else {
            Err(format!(
                "{what} {word:?}: wanted 1 to {MAX_WORD} visible ASCII characters"
            ))
        }
    };
    word("its name", &description.name)?;
    for reason in &description.reasons {
        word("reason", reason)?;
    }
    if description.reasons.is_empty() || description.reasons.len() > MAX_REASONS {
        let found = description.reasons.len();
        return Err(format!("{found} reasons: wanted 1 to {MAX_REASONS}"));
    }
    Ok(())
}
