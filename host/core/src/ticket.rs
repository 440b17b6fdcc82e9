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
    /// a confirmation would change nothing
    pub(crate) settled: bool,
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

/// What happens to a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// see [`Ticket::dispatched`]
    Dispatched,
    /// see [`Ticket::output`]
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
    /// It came so far; outputs may come again and again.
    fn hear(&mut self, step: Step);
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
    pub fn come_to(&mut self, step: Step) -> bool {
        self.go(step);
        self.stage == Stage::Ended
    }

    /// A response head came that shows that the engine took the request (below 500, not 429): its
    /// bindings are confirmed.
    pub fn dispatched(&mut self) {
        self.go(Step::Dispatched);
    }

    /// The first output came: the prompt is prefilled.
    pub fn output(&mut self) {
        self.go(Step::Output);
    }

    /// The response ended.
    pub fn finish(mut self) {
        self.go(Step::Finished);
    }

    /// The request failed. Before the head everything is rolled back, and it may be sent anew; after
    /// it the bindings that it used are dropped, if they are still the same.
    pub fn fail(mut self) {
        self.go(Step::Failed);
    }

    /// The engine is too busy to take it (429, or 503 with `Retry-After`): nothing stays of it.
    pub fn refused(mut self) {
        self.go(Step::Refused);
    }

    /// The client has gone.
    pub fn cancel(self) {
        drop(self);
    }

    fn go(&mut self, step: Step) {
        if let Some(follower) = &mut self.follower
            && self.stage != Stage::Ended
        {
            follower.hear(step);
        }
        self.release(step);
        self.in_table(step, |_| true);
        self.advance(step);
    }

    /// What a step gives back of the charge.
    pub(crate) fn release(&mut self, step: Step) {
        if self.stage == Stage::Ended {
            return;
        }
        let back = if self.end_by(step).is_some() {
            std::mem::take(&mut self.charge)
        } else if step == Step::Output {
            Charge {
                prefill_tokens: std::mem::take(&mut self.charge.prefill_tokens),
                ..Charge::default()
            }
        } else {
            return;
        };
        self.fleet.ledger().release(self.target, back);
    }

    /// What it does to those keys of the table that `here` says. Changes nothing else, so that it can
    /// be repeated.
    pub(crate) fn in_table(&self, step: Step, here: impl Fn(u64) -> bool) {
        if !self.touches(step) {
            return;
        }
        let (end, confirms) = (self.end_by(step), self.confirms(step));
        let leases = || self.leases.iter().filter(|lease| here(lease.at));
        let memory = (self.memory)
            .filter(|(key, _)| here(*key) && (confirms || end == Some(End::RolledBack)));
        let core = &self.worker.core;
        let now = core.now_ms();
        // Everything that this request holds in the table, at once.
        let keys = leases().map(|lease| lease.at);
        let mut locked = (core.bindings).lock(keys.chain(memory.map(|(key, _)| key)));
        if confirms {
            for lease in leases() {
                if let Some(entry) = entry(&mut locked, lease.at) {
                    entry.confirm(lease.revision);
                }
            }
        }
        if let Some((key, number)) = memory
            && let Some(entry) = entry(&mut locked, key)
            && confirms
        {
            entry.accept(number);
        }
        let Some(end) = end else { return };
        for lease in leases() {
            // A parent's binding is another session's: its child's failure does not end it.
            let end = match (lease.key, end) {
                (Key::Parent, End::BrokenOff) => End::Normal,
                _ => end,
            };
            locked.end(lease.at, lease.revision, end, now, &core.fleet);
        }
        if let Some((key, number)) = memory
            && let Some(entry) = entry(&mut locked, key)
            && !confirms
        {
            entry.unsend(number);
        }
    }

    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// It holds nothing any more.
    pub(crate) fn disown(&mut self) {
        self.stage = Stage::Ended;
    }

    /// Whether a step changes anything in the table.
    pub(crate) fn touches(&self, step: Step) -> bool {
        let open = || self.memory.is_some() || self.leases.iter().any(|lease| !lease.settled);
        self.stage != Stage::Ended
            && (self.end_by(step).is_some() || (self.confirms(step) && open()))
    }

    fn confirms(&self, step: Step) -> bool {
        self.stage == Stage::Sent
            && matches!(step, Step::Dispatched | Step::Output | Step::Finished)
    }

    /// How far the request is then.
    pub(crate) fn advance(&mut self, step: Step) {
        self.stage = match self.stage {
            Stage::Ended => Stage::Ended,
            _ if self.end_by(step).is_some() => Stage::Ended,
            Stage::Sent | Stage::Accepted => Stage::Accepted,
        };
    }

    /// The keys of the table that it holds.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let memory = self.memory.map(|(key, _)| key);
        self.leases.iter().map(|lease| lease.at).chain(memory)
    }

    fn end_by(&self, step: Step) -> Option<End> {
        let sent = self.stage == Stage::Sent;
        match step {
            Step::Dispatched | Step::Output => None,
            Step::Finished => Some(End::Normal),
            Step::Refused => Some(End::RolledBack),
            Step::Failed if sent => Some(End::RolledBack),
            Step::Failed => Some(End::BrokenOff),
            Step::Cancelled if sent => Some(End::RolledBack),
            Step::Cancelled => Some(End::Normal),
        }
    }
}

fn entry<'a>(locked: &'a mut Locked<'_>, key: u64) -> Option<&'a mut Entry> {
    locked.shard(key)?.get_mut(key)
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.go(Step::Cancelled);
    }
}
