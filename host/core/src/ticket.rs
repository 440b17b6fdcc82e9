//! A request in flight: what it holds, and giving it back exactly once.

use crate::bindings::Locked;
use crate::commit::Committed;
use crate::core::{LocalFleet, Worker};
use crate::decide::Verdict;
use crate::entry::{End, Entry};
use crate::fleet::TargetSpec;
use crate::ledger::Charge;
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

/// What becomes of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// see [`Ticket::dispatched`]
    Dispatched,
    /// see [`Ticket::output`]; more than once
    Output,
    /// see [`Ticket::finish`]
    Finished,
    /// see [`Ticket::fail`]
    Failed,
    /// see [`Ticket::refused`]
    Refused,
    /// see [`Ticket::cancel`]
    Cancelled,
}

/// Hears what becomes of a request.
pub trait Follower {
    /// It came so far.
    fn hear(&mut self, progress: Progress);
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
    /// the session's key and the number of what was noted of its prompt
    memory: Option<(u64, u64)>,
    follower: Option<Box<dyn Follower>>,
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
            follower: None,
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

    /// From now on the follower hears what becomes of the request.
    pub fn follow(&mut self, follower: Box<dyn Follower>) {
        self.follower = Some(follower);
    }

    /// Comes so far; true: it is over, and to be dropped.
    pub fn come_to(&mut self, progress: Progress) -> bool {
        match progress {
            Progress::Dispatched => self.dispatched(),
            Progress::Output => self.output(),
            Progress::Finished => {
                self.output();
                self.end(progress);
            }
            Progress::Failed | Progress::Refused | Progress::Cancelled => self.end(progress),
        }
        self.stage == Stage::Ended
    }

    fn tell(&mut self, progress: Progress) {
        if let Some(follower) = &mut self.follower {
            follower.hear(progress);
        }
    }

    /// A response head came that shows that the engine took the request (below 500, not 429): its
    /// bindings are confirmed.
    pub fn dispatched(&mut self) {
        if self.stage != Stage::Sent {
            return;
        }
        self.stage = Stage::Accepted;
        self.tell(Progress::Dispatched);
        let mut locked = self.lock(self.memory);
        for lease in &self.leases {
            if let Some(entry) = entry(&mut locked, lease.at) {
                entry.confirm(lease.revision);
            }
        }
        if let Some((key, number)) = self.memory
            && let Some(entry) = entry(&mut locked, key)
        {
            entry.accept(number);
        }
    }

    /// The first output came: the prompt is prefilled.
    pub fn output(&mut self) {
        self.dispatched();
        self.tell(Progress::Output);
        self.release_prefill();
    }

    /// The response ended.
    pub fn finish(mut self) {
        self.come_to(Progress::Finished);
    }

    /// The request failed. Before the head everything is rolled back, and it may be sent anew; after
    /// it the bindings that it used are dropped, if they are still the same.
    pub fn fail(mut self) {
        self.come_to(Progress::Failed);
    }

    /// The engine is too busy to take it (429, or 503 with `Retry-After`): nothing stays of it.
    pub fn refused(mut self) {
        self.come_to(Progress::Refused);
    }

    /// The client has gone.
    pub fn cancel(self) {
        drop(self);
    }

    fn end(&mut self, last: Progress) {
        let end = match (self.stage, last) {
            (Stage::Ended, _) => return,
            (Stage::Sent, _) | (_, Progress::Refused) => End::RolledBack,
            (Stage::Accepted, Progress::Failed) => End::BrokenOff,
            (Stage::Accepted, _) => End::Normal,
        };
        self.stage = Stage::Ended;
        self.tell(last);
        self.fleet.ledger().release(self.target, self.charge);
        self.charge = Charge::default();
        let core = &self.worker.core;
        let now = core.now_ms();
        let unsent = self.memory.filter(|_| end == End::RolledBack);
        let mut locked = self.lock(unsent);
        for lease in &self.leases {
            // A parent's binding is another session's: its child's failure does not end it.
            let end = match (lease.key, end) {
                (Key::Parent, End::BrokenOff) => End::Normal,
                _ => end,
            };
            locked.end(lease.at, lease.revision, end, now, &core.fleet);
        }
        if let Some((key, number)) = unsent
            && let Some(entry) = entry(&mut locked, key)
        {
            entry.unsend(number);
        }
    }

    /// Everything that this request holds in the table, at once.
    fn lock(&self, memory: Option<(u64, u64)>) -> Locked<'_> {
        let leased = self.leases.iter().map(|lease| lease.at);
        let bindings = &self.worker.core.bindings;
        bindings.lock(leased.chain(memory.map(|(key, _)| key)))
    }

    fn release_prefill(&mut self) {
        let prefill = Charge {
            prefill_tokens: std::mem::take(&mut self.charge.prefill_tokens),
            ..Charge::default()
        };
        self.fleet.ledger().release(self.target, prefill);
    }
}

fn entry<'a>(locked: &'a mut Locked<'_>, key: u64) -> Option<&'a mut Entry> {
    locked.shard(key)?.get_mut(key)
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.come_to(Progress::Cancelled);
    }
}
