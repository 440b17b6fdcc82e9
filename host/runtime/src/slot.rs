//! The policy that decides now. Replacing it moves the generation; workers follow with their next
//! request, and the old one is dropped after its last call.

use crate::engine::Engine;
use crate::instance::Instance;
use crate::load::Prepared;
use arc_swap::ArcSwap;
use pointsman_core::{Core, Policy, Router, Source};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Debug)]
pub struct Slot {
    core: Arc<Core>,
    /// Keeps the deadlines' clock going while there are instances.
    engine: Engine,
    now: ArcSwap<Prepared>,
    generation: AtomicU64,
}

impl Slot {
    /// With its first policy, as generation 1.
    pub fn new(core: Arc<Core>, engine: Engine, policy: Arc<Prepared>) -> Slot {
        Slot {
            core,
            engine,
            now: ArcSwap::new(policy),
            generation: AtomicU64::new(1),
        }
    }

    /// The engine of its policies, to load another one with.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The policy that decides now.
    pub fn prepared(&self) -> Arc<Prepared> {
        self.now.load_full()
    }

    /// Puts another policy in place. State stays: it belongs to the host.
    pub fn replace(&self, policy: Arc<Prepared>) -> u64 {
        self.now.store(policy);
        self.generation.fetch_add(1, Ordering::Release) + 1
    }
}

impl Source for Slot {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        let prepared = self.prepared();
        let cells = self.core.cells(&prepared.policy().name);
        let mut instance = Instance::new(prepared.clone(), cells);
        // It came up when it was loaded; should it not now, the first question says why.
        if let Err(failure) = instance.warm() {
            tracing::error!(policy = prepared.policy().name, "{failure}");
        }
        (prepared.policy().clone(), Box::new(instance))
    }
}
