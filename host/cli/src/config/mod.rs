//! `pointsman.toml`.

mod deployment;
mod differs;
mod driving;
mod kept;
mod settings;

pub use deployment::Deployment;
pub use driving::{Driver, DriverKind, Grant};
pub use kept::{Profile, Recorder};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The whole file. Unknown keys are refused with line and column.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    #[serde(default)]
    pub listen: Listen,
    #[serde(default)]
    pub admin: Admin,
    #[serde(default)]
    pub policy: Policy,
    #[serde(default)]
    pub cache: Cache,
    #[serde(default)]
    pub recorder: Recorder,
    #[serde(default)]
    pub profile: Profile,
    #[serde(default)]
    pub session: Session,
    #[serde(default)]
    pub bindings: Bindings,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub retry: Retry,
    #[serde(rename = "pool")]
    pub pools: Vec<Pool>,
    #[serde(rename = "grant", default)]
    pub grants: Vec<Grant>,
    /// the folder of the file: paths in it are relative to that
    #[serde(skip)]
    pub base: PathBuf,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    pub address: SocketAddr,
    /// worker threads, 0 = one per core
    pub threads: usize,
}

impl Default for Listen {
    fn default() -> Self {
        Listen {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            threads: 0,
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    pub address: SocketAddr,
    /// of mode 600, with a bearer token in it; without it the admin API is off. /metrics and /healthz
    /// need none
    pub token_file: Option<PathBuf>,
}

impl Default for Admin {
    fn default() -> Self {
        Admin {
            address: SocketAddr::from(([127, 0, 0, 1], 8081)),
            token_file: None,
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// a built-in name or the path of a .wasm
    pub r#use: String,
    /// of the .wasm; empty = any
    pub sha256: String,
    pub config: toml::Table,
    /// of one decision, 1 to 10,000
    pub time_limit_ms: u64,
    /// 1 to 4096
    pub memory_limit_mb: u64,
    pub fallback: Fallback,
}

impl Default for Policy {
    fn default() -> Self {
        let limits = pointsman_runtime::Limits::default();
        Policy {
            r#use: "session-affinity".to_owned(),
            sha256: String::new(),
            config: toml::Table::new(),
            time_limit_ms: limits.time_ms,
            memory_limit_mb: limits.memory_mb,
            fallback: Fallback::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    #[default]
    LeastLoad,
    Reject,
}

/// Where compiled policies are kept: once per node and user.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    pub enabled: bool,
    /// only this user may enter it (mode 0700); default: `pointsman` in the user's cache folder
    pub folder: Option<PathBuf>,
    /// looked at first; what it has is copied
    pub shared: Option<PathBuf>,
}

impl Default for Cache {
    fn default() -> Self {
        Cache {
            enabled: true,
            folder: None,
            shared: None,
        }
    }
}

/// How a request's identities are found. A list that is given replaces the default one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Session {
    pub headers: Option<Vec<String>>,
    pub parent_headers: Option<Vec<String>>,
    pub final_headers: Option<Vec<String>>,
    /// JSON pointers, after the headers
    pub body: Option<Vec<String>>,
    pub cookies: Option<Vec<String>>,
    /// sent on to the engines
    pub forward: Option<Vec<String>>,
    /// the header in which a client may name its target; "" = it may not
    pub explicit_header: Option<String>,
    /// whether `x-pointsman-explain: 1` is answered
    pub explain: Option<bool>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bindings {
    /// 1 to 100,000,000
    pub max: usize,
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    pub when_full: WhenFull,
}

impl Default for Bindings {
    fn default() -> Self {
        let limits = pointsman_core::Limits::default();
        Bindings {
            max: limits.max,
            ttl: Duration::from_millis(limits.ttl_ms),
            when_full: WhenFull::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    #[default]
    Place,
    Reject,
}

impl From<WhenFull> for pointsman_core::WhenFull {
    fn from(when: WhenFull) -> Self {
        match when {
            WhenFull::Place => pointsman_core::WhenFull::PlaceUnbound,
            WhenFull::Reject => pointsman_core::WhenFull::Reject,
        }
    }
}

/// Bounds of the data plane; what is not given keeps the proxy's default. Sizes are in bytes, numbers
/// are for one thread, durations are texts such as "2s".
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// of a JSON body that is read for identity and estimate; larger ones pass uninspected.
    /// 0 to 1 GiB, default 8 MiB
    pub inspect_bytes: Option<usize>,
    /// of all bodies read at one time; beyond it bodies pass uninspected. 0 to 1 TiB, default 512 MiB
    pub inspect_total_bytes: Option<usize>,
    /// of a request's body; larger ones get 413. 1 to 1 TiB, default 1 GiB
    pub body_bytes: Option<u64>,
    /// of a request's head; larger ones get 431. 8 KiB to 16 MiB, default 64 KiB
    pub header_bytes: Option<usize>,
    /// requests in flight; more get 503 at once. 1 to 1,000,000, default 8192
    pub requests_per_thread: Option<usize>,
    /// client connections; more get 503 at once. 1 to 1,000,000, default 16,384
    pub connections_per_thread: Option<usize>,
    /// idle connections kept to one engine. 0 to 65,536, default 256
    pub idle_connections_per_thread: Option<usize>,
    /// to open a connection to an engine. Default "2s"
    #[serde(with = "humantime_serde")]
    pub connect: Option<Duration>,
    /// until the engine's response head. "0s" = none, the default: a long prompt may take minutes
    #[serde(with = "humantime_serde")]
    pub first_byte: Option<Duration>,
    /// between two pieces of a response. "0s" = none, default "300s"
    #[serde(with = "humantime_serde")]
    pub idle: Option<Duration>,
    /// for a client: to send a head (so also to stay idle), between two pieces of its body, without
    /// taking any of its answer. Default "60s"
    #[serde(with = "humantime_serde")]
    pub client: Option<Duration>,
    /// an idle connection to an engine is kept so long: less than the engine's own limit. Default "3s"
    #[serde(with = "humantime_serde")]
    pub idle_connection: Option<Duration>,
    /// for requests in flight when the host is told to stop. Default "30s"
    #[serde(with = "humantime_serde")]
    pub shutdown: Option<Duration>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// of one request, the first among them, 1 to 16
    pub attempts: u32,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 3 }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    pub name: String,
    #[serde(default)]
    pub role: Role,
    #[serde(default)]
    pub dialect: Dialect,
    pub endpoints: Vec<Endpoint>,
    /// without it an endpoint counts as healthy until its breaker says otherwise
    pub health: Option<Health>,
    #[serde(default)]
    pub breaker: Breaker,
    /// of the engines' schedulers and kernels; without it no policy can be granted them
    pub driver: Option<Driver>,
    /// what its engines are started with: combinations that cannot work are refused
    #[serde(default)]
    pub deployment: Deployment,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    #[default]
    Serve,
    Prefill,
    Decode,
}

impl From<Role> for pointsman_core::Phase {
    fn from(role: Role) -> Self {
        match role {
            Role::Serve => pointsman_core::Phase::Serve,
            Role::Prefill => pointsman_core::Phase::Prefill,
            Role::Decode => pointsman_core::Phase::Decode,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    Vllm,
    Sglang,
    Atom,
    #[default]
    Openai,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    pub name: String,
    pub url: String,
    /// 1 to 1024
    #[serde(default = "one")]
    pub ranks: u32,
    /// none: it serves every model
    pub models: Option<Vec<String>>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Health {
    pub path: String,
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
}

impl Default for Health {
    fn default() -> Self {
        Health {
            path: "/health".to_owned(),
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Breaker {
    /// in a row, 0 = off
    pub failures: u32,
    /// until it is tried again; doubles
    #[serde(with = "humantime_serde")]
    pub cooldown: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Breaker {
            failures: 5,
            cooldown: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// Reads and checks a file. Errors name line and column, or the key with what was wanted of it.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        Config::parse(&text, base)
            .with_context(|| format!("the configuration {} cannot be used", path.display()))
    }

    /// The same, of a text.
    pub fn parse(text: &str, base: PathBuf) -> Result<Config> {
        let mut config: Config = toml::from_str(text)?;
        config.base = base;
        config.check()?;
        Ok(config)
    }
}
