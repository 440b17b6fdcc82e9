use pointsman_request::BadSetting;
use std::io;
use std::net::SocketAddr;
use thiserror::Error;

/// Why the proxy does not start, or stopped. What a single request meets is an answer to its client.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// the address is taken, or not of this machine
    #[error("cannot listen on {address} ({what}): {source}")]
    Listen {
        /// the setting: `listen` or `admin`
        what: &'static str,
        /// as configured
        address: SocketAddr,
        /// the system's word
        source: io::Error,
    },
    /// an endpoint that cannot be asked
    #[error("endpoint {endpoint:?}: the url {url:?} {problem}")]
    Url {
        /// its name
        endpoint: String,
        /// as configured
        url: String,
        /// what is wrong, and what would be right
        problem: &'static str,
    },
    /// two endpoints would share the names of their targets
    #[error("endpoint {0:?} is configured twice: give each endpoint a name of its own")]
    Twice(String),
    /// an endpoint without a name, or with one that could not be told from a target's
    #[error("endpoint {0:?}: a name is one or more characters without '/'")]
    Name(String),
    /// an endpoint without ranks
    #[error("endpoint {0:?} has 0 ranks: an engine has at least 1")]
    NoRanks(String),
    /// a health check that cannot be asked for
    #[error("pool {pool:?}: the health check's path {path:?} is none: it begins with '/'")]
    HealthPath {
        /// the pool's name
        pool: String,
        /// as configured
        path: String,
    },
    /// a header name or JSON pointer that is none
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// the system gave no thread or runtime
    #[error("cannot start {what}: {source}")]
    Thread {
        /// which
        what: String,
        /// the system's word
        source: io::Error,
    },
    /// a thread ended before it was told to
    #[error("{0} stopped unexpectedly; its log says why")]
    Died(String),
}
