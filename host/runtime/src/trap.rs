//! What went wrong in a policy's call, by cause.

use crate::host::State;
use crate::instance::Limits;
use pointsman_core::Failure;
use wasmtime::{Error, Store, Trap};

pub(crate) fn classify(error: &Error, store: &Store<State>, limits: Limits, ms: u64) -> Failure {
    // A refused growth shows as whatever the guest does next; the limiter knows better.
    if store.data().memory.exceeded {
        return Failure::Memory {
            limit_mb: limits.memory_mb,
        };
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => Failure::Timeout { limit_ms: ms },
        Some(Trap::StackOverflow) => Failure::Stack,
        Some(trap) => Failure::Trap(trap.to_string()),
        None => Failure::Trap(format!("{:#}", error.root_cause())),
    }
}
