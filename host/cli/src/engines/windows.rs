//! Whose the open profiling windows are. A policy that is replaced by another one can end its own no more:
//! the host does it.

use super::Seat;
use pointsman_engine::Opener;
use std::sync::Arc;
use std::thread;

/// The longest window, in ms: what is forgotten ends.
pub const LONGEST_MS: u64 = 60 * 60 * 1000;

/// A policy, as the one whose window it is.
pub fn opener(policy: &str) -> Opener {
    Opener {
        by: format!("policy {policy}"),
        number: 0,
    }
}

/// Ends those of this policy, where nobody waits for it: a driver may take its time.
pub fn close(policy: &str, seats: Vec<(String, Arc<Seat>)>) {
    let its = opener(policy);
    let open: Vec<_> = (seats.into_iter())
        .filter(|(_, seat)| {
            let open = seat.desk.profile().open;
            open.is_some_and(|open| open.opener == its)
        })
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
