//! A host's state without a network, for tests that call it in process.

use pointsman_core::{Core, Endpoint, Limits, ManualClock, Roles, TargetSpec};
use std::sync::Arc;

/// A fleet of `targets` ranks, eight to an engine, and the clock that it goes by.
pub fn fleet(targets: u32, limits: Limits) -> (Arc<Core>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let core = Arc::new(Core::new(limits, clock.clone()));
    for n in 0..targets {
        let (engine, rank) = (n / 8, n % 8);
        core.fleet.add(TargetSpec {
            endpoint: Endpoint {
                name: format!("e{engine}/{rank}"),
                url: format!("http://e{engine}"),
                rank,
                labels: Vec::new(),
            },
            roles: Roles::ALL,
            models: None,
        });
    }
    (core, clock)
}
