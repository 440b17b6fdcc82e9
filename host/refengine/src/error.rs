//! What can go wrong before the first request.

use std::net::SocketAddr;

/// The engine could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong; nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address could not be listened on.
    #[error("cannot listen on {address}: {source}; choose a free address, or port 0 for any")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A rank's thread could not be started; none is left.
    #[error(
        "cannot start the thread of rank {rank}: {cause}; have fewer ranks, or raise the limits on \
         threads and memory (ulimit -u, ulimit -v)"
    )]
    Thread {
        /// Which one.
        rank: usize,
        /// What the operating system said.
        cause: std::io::Error,
    },
}

/// One setting is out of range. To blame: whoever wrote the configuration.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("engine setting `{setting}`: wanted {wanted}, found {found}")]
pub struct ConfigError {
    /// The setting's name.
    pub setting: &'static str,
    /// What would have been right.
    pub wanted: String,
    /// What was there.
    pub found: String,
}

impl ConfigError {
    pub(crate) fn new(
        setting: &'static str,
        wanted: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        Self {
            setting,
            wanted: wanted.into(),
            found: found.to_string(),
        }
    }
}
