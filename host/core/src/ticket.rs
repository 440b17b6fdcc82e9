//! A request in flight: what it holds, and giving it back exactly once.

use crate::commit::Committed;
use crate::core::{LocalFleet, Worker};
use crate::decide::Verdict;
use crate::fleet::TargetSpec;
use crate::ledger::Charge;
use crate::shard::{Memory, Shard};
use crate::types::{Key, Target};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// A request under the claim of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) key: Key,
    pub(crate) at: u64,
    pub(crate) revision: u64,
}

/// How far the request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// decided; no engine has answered: everything about it is provisional
    Sent,
    /// an engine has answered with a head
    Accepted,
    /// over: nothing is held any more
    Ended,
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// everything it did is undone
    RolledBack,
    /// its bindings begin to be idle
    Normal,
    /// the bindings that it used are dropped
    BrokenOff,
}

/// See the module. Dropped without an end, it counts as cancelled by the client.
pub struct Ticket {
    worker: Rc<Worker>,
    fleet: LocalFleet,
    target: Target,
    verdict: Verdict,
    stage: Stage,
    charge: Charge,
    leases: SmallVec<[Lease; 4]>,
    memory: Option<(u64, u64)>,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket")
            .field("target", &self.target)
            .field("stage", &self.stage)
            .field("charge", &self.charge)
            .finish_non_exhaustive()
    }
}

impl Ticket {
    pub(crate) fn new(
        worker: Rc<Worker>,
        fleet: LocalFleet,
        committed: Committed,
        verdict: Verdict,
    ) -> Ticket {
        Ticket {
            worker,
            fleet,
            target: committed.target,
            verdict,
            stage: Stage::Sent,
            charge: committed.charge,
            leases: committed.leases,
            memory: committed.memory,
        }
    }

    /// Where the request goes.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Who that is.
    pub fn spec(&self) -> Option<&Arc<TargetSpec>> {
        self.fleet.spec(self.target)
    }

    /// The targets of the same engine server, this one among them: what an unreachable server takes
    /// with it.
    pub fn neighbours(&self) -> Vec<Target> {
        let url = self.spec().map(|spec| spec.endpoint.url.as_str());
        (self.fleet.targets())
            .filter(|(_, spec)| Some(spec.endpoint.url.as_str()) == url)
            .map(|(id, _)| id)
            .collect()
    }

    /// Why it goes there.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// What it still holds on its target.
    pub fn charge(&self) -> Charge {
        self.charge
    }

    /// A response head came that shows that the engine took the request (below 500, not 429): its
    /// bindings are confirmed.
    pub fn dispatched(&mut self) {
        if self.stage != Stage::Sent {
            return;
        }
        self.stage = Stage::Accepted;
        for lease in &self.leases {
            self.with_shard(lease.at, |shard| {
                if let Some(entry) = shard.get_mut(lease.at)
                    && entry.held.revision == lease.revision
                {
                    entry.held.confirmed = true;
                    entry.before = None;
                }
            });
        }
        self.with_memory(|memory, number| {
            if memory.sent.as_ref().is_some_and(|(n, _)| *n == number) {
                memory.accepted = memory.sent.take().map(|(_, prompt)| prompt);
            }
        });
    }

    /// The first output came: the prompt is prefilled.
    pub fn output(&mut self) {
        self.dispatched();
        self.release_prefill();
    }

    /// The response ended.
    pub fn finish(mut self) {
        self.output();
        self.end(End::Normal);
    }

    /// The request failed. Before the head everything is rolled back, and it may be sent anew; after
    /// it the bindings that it used are dropped, if they are still the same.
    pub fn fail(mut self) {
        let end = match self.stage {
            Stage::Sent => End::RolledBack,
            Stage::Accepted | Stage::Ended => End::BrokenOff,
        };
        self.end(end);
    }

    /// The engine is too busy to take it (429, or 503 with `Retry-After`): nothing stays of it.
    pub fn refused(mut self) {
        self.end(End::RolledBack);
    }

    /// The client has gone.
    pub fn cancel(self) {
        drop(self);
    }

    fn end(&mut self, end: End) {
        if self.stage == Stage::Ended {
            return;
        }
        self.stage = Stage::Ended;
        self.fleet.ledger().release(self.target, self.charge);
        self.charge = Charge::default();
        for lease in std::mem::take(&mut self.leases) {
            self.end_lease(lease, end);
        }
        if end == End::RolledBack {
            self.with_memory(|memory, number| {
                if memory.sent.as_ref().is_some_and(|(n, _)| *n == number) {
                    memory.sent = None;
                }
            });
        }
    }

    fn end_lease(&self, lease: Lease, end: End) {
        let core = &self.worker.core;
        let idle_until = core.now_ms().saturating_add(core.bindings.limits().ttl_ms);
        let ledger = self.fleet.ledger();
        let mut locked = core.bindings.lock([lease.at]);
        let Some(entry) = locked.shard(lease.at).and_then(|s| s.get_mut(lease.at)) else {
            return;
        };
        if entry.held.revision != lease.revision {
            // Its claim was replaced meanwhile; it may come back if the replacement fails.
            if let Some(before) = &mut entry.before
                && before.revision == lease.revision
            {
                before.leases = before.leases.saturating_sub(1);
            }
            return;
        }
        entry.held.leases = entry.held.leases.saturating_sub(1);
        // A parent's binding is another session's: its child's failure does not end it.
        let dropped = end == End::BrokenOff && lease.key != Key::Parent;
        let undone = end == End::RolledBack && !entry.held.confirmed && entry.held.leases == 0;
        if undone && let Some(before) = entry.before.take() {
            if entry.session {
                ledger.session_gone(entry.held.target);
                ledger.session_bound(before.target);
            }
            entry.held = *before;
        } else if dropped || undone {
            locked.remove(lease.at, ledger);
            return;
        }
        if let Some(shard) = locked.shard(lease.at) {
            shard.settle(lease.at, idle_until);
        }
    }

    fn release_prefill(&mut self) {
        let prefill = Charge {
            prefill_tokens: std::mem::take(&mut self.charge.prefill_tokens),
            ..Charge::default()
        };
        self.fleet.ledger().release(self.target, prefill);
    }

    fn with_shard(&self, key: u64, change: impl FnOnce(&mut Shard)) {
        if let Some(shard) = self.worker.core.bindings.lock([key]).shard(key) {
            change(shard);
        }
    }

    fn with_memory(&self, change: impl FnOnce(&mut Memory, u64)) {
        let Some((key, number)) = self.memory else {
            return;
        };
        self.with_shard(key, |shard| {
            if let Some(memory) = shard.get_mut(key).and_then(|e| e.memory.as_mut()) {
                change(memory, number);
            }
        });
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let end = match self.stage {
            Stage::Sent => End::RolledBack,
            Stage::Accepted | Stage::Ended => End::Normal,
        };
        self.end(end);
    }
}
