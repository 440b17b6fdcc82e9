//! Whose the open profiling windows are. A policy that is replaced by another one can end its own no more:
//! the host does it.

use super::Seat;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The longest window, in ms: what is forgotten ends.
pub const LONGEST_MS: u64 = 60 * 60 * 1000;

/// The policy that opened the window of an endpoint; not those of operators.
#[derive(Debug, Default)]
pub struct Windows(Mutex<BTreeMap<String, String>>);

impl Windows {
    /// The policy has opened one there.
    pub fn open(&self, policy: &str, endpoint: &str) {
        self.lock().insert(endpoint.to_owned(), policy.to_owned());
    }

    /// It has ended, or is an operator's from now on.
    pub fn forget(&self, endpoint: &str) {
        self.lock().remove(endpoint);
    }

    /// Where the policy has opened some, which it will not end; they are forgotten.
    pub fn end(&self, policy: &str) -> Vec<String> {
        let mut all = self.lock();
        let its: Vec<String> = (all.iter())
            .filter(|(_, owner)| *owner == policy)
            .map(|(endpoint, _)| endpoint.clone())
            .collect();
        its.iter().for_each(|endpoint| drop(all.remove(endpoint)));
        its
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends those that are still open, where nobody waits for it: a driver may take its time.
pub fn close(policy: &str, seats: Vec<(String, Arc<Seat>)>) {
    let open: Vec<_> = (seats.into_iter())
        .filter(|(_, seat)| seat.desk.profile().open)
        .collect();
    if open.is_empty() {
        return;
    }
    let policy = policy.to_owned();
    let close = move || {
        for (engine, seat) in open {
            match seat.desk.profile_stop() {
                Ok(_) => tracing::info!(policy, engine, "its profiling window ends with it"),
                Err(error) => {
                    tracing::warn!(policy, engine, %error, "its profiling window does not end");
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new()
        .name("engine-windows".into())
        .spawn(close)
    {
        tracing::error!(%error, "no thread to end profiling windows: they end with their time");
    }
}
