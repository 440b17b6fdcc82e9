//! The table, over pieces in the store: decisions, steps and ends, each again until nobody else was
//! first.

use crate::config::Fallback;
use crate::rows::Change;
use crate::shared::{Cas, Shared};
use crate::site::Site;
use pointsman_core::{
    Core, Incoming, Key, Outcome, Piece, Router, Scope, Step, Target, Ticket, decide,
};
use smallvec::SmallVec;
use std::fmt::Write;

/// Scopes in which sessions may be bound.
const MAX_SCOPES: usize = 1024;
const SCOPES: &str = "pointsman/scopes";

/// The target of each session of a piece.
type Sessions = SmallVec<[Target; 16]>;

/// A piece that was brought in, to be stored again.
struct Brought {
    piece: Piece,
    /// in the store
    key: String,
    image: Vec<u8>,
    cas: Option<Cas>,
    sessions: Sessions,
}

/// A decision that is true, and the pieces as they were before it.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    pub(crate) before: Vec<(Piece, Vec<u8>)>,
    /// of the loads
    pub(crate) changes: Vec<Change>,
}

impl<S: Shared> Site<S> {
    fn fallback(&self) -> pointsman_core::Fallback {
        match self.config.fallback {
            Fallback::LeastLoad => pointsman_core::Fallback::LeastLoad,
            Fallback::Reject => pointsman_core::Fallback::Reject,
        }
    }

    /// Decides, and makes the decision true for all threads: again, if another one was first with one
    /// of the request's keys.
    pub(crate) fn decide(&self, router: &mut dyn Router, incoming: &Incoming) -> Decided {
        loop {
            let brought: Vec<Brought> = (self.worker.pieces(incoming).into_iter())
                .map(|piece| self.bring(piece))
                .collect();
            self.forget_loads();
            let outcome = decide(&self.worker, router, self.fallback(), incoming);
            let ticket = match outcome {
                Outcome::Refused(_) => None,
                Outcome::Routed(ref ticket) => Some(ticket),
            };
            match self.store(&brought) {
                Ok(changes) => {
                    let charged = ticket.map(|t| Change::charged(t.target(), t.charge()));
                    let changes: Vec<Change> = changes.into_iter().chain(charged).collect();
                    self.count(&changes);
                    self.know(incoming);
                    let before = brought.into_iter().map(|b| (b.piece, b.image)).collect();
                    return Decided {
                        outcome,
                        before,
                        changes,
                    };
                }
                // Nothing of it was stored: what it says of the table was never true.
                Err(stored) => {
                    if let Outcome::Routed(ticket) = outcome {
                        for piece in stored {
                            self.alter(piece, |_| ticket.step_in(Step::Refused, piece));
                        }
                        ticket.forget();
                    }
                }
            }
        }
    }

    /// What a second attempt would be decided as, had the first one failed and its `changes` been taken
    /// back. Nothing of it stays.
    pub(crate) fn try_decide(
        &self,
        router: &mut dyn Router,
        incoming: &Incoming,
        before: &[(Piece, Vec<u8>)],
        changes: &[Change],
    ) -> Option<Target> {
        for (piece, image) in before {
            let _ = self.core.bring(*piece, image);
        }
        // What the first decision stored is not asked for again.
        self.fresh.set(false);
        self.bring_loads();
        let fleet = self.core.fleet.snapshot();
        for change in changes {
            let load = fleet.ledger().load(change.target);
            fleet.ledger().put(change.target, change.undone().of(load));
        }
        let outcome = decide(&self.worker, router, self.fallback(), incoming);
        for (piece, _) in before {
            self.core.leave(*piece);
        }
        self.forget_loads();
        match outcome {
            Outcome::Refused(_) => None,
            Outcome::Routed(ticket) => {
                let target = ticket.target();
                ticket.forget();
                Some(target)
            }
        }
    }

    /// Something happened to a request in flight.
    pub(crate) fn step(&self, ticket: &mut Ticket, step: Step) {
        if ticket.changes_table(step) {
            for piece in ticket.pieces() {
                self.alter(piece, |_| ticket.step_in(step, piece));
            }
        }
        let held = ticket.charge();
        ticket.step(step);
        self.count(&[Change::between(ticket.target(), held, ticket.charge())]);
    }

    /// The session is over, in every phase and model.
    pub(crate) fn end_session(&self, session: u64) {
        let (scopes, _) = self.shared.get(SCOPES);
        for scope in scopes_in(&scopes.unwrap_or_default()) {
            let scope = Scope::from_bits(scope);
            let piece = self.core.piece_of(scope, Key::Session, session);
            self.alter(piece, |core| core.unbind(scope, session));
        }
    }

    /// Where an identity is bound.
    pub(crate) fn bound(&self, scope: Scope, key: Key, identity: u64) -> Option<Target> {
        let piece = self.core.piece_of(scope, key, identity);
        self.bring(piece);
        let bound = self.core.bound(scope, key, identity);
        self.core.leave(piece);
        bound
    }

    /// Removes the bindings of a piece whose time is over.
    pub(crate) fn sweep(&self, piece: Piece) {
        self.alter(piece, |core| {
            core.sweep_piece(piece);
        });
    }

    /// Changes one piece, until nobody else changed it meanwhile.
    fn alter(&self, piece: Piece, change: impl Fn(&Core)) {
        loop {
            let brought = [self.bring(piece)];
            change(&self.core);
            if let Ok(changes) = self.store(&brought) {
                return self.count(&changes);
            }
        }
    }

    fn bring(&self, piece: Piece) -> Brought {
        let key = key_of(piece);
        let (image, cas) = self.shared.get(&key);
        let image = image.unwrap_or_default();
        // Another version's piece begins anew.
        let _ = self.core.bring(piece, &image);
        Brought {
            piece,
            key,
            sessions: self.core.sessions_of(piece),
            image,
            cas,
        }
    }

    /// Stores what changed, and returns how the numbers of sessions did. In the error case somebody
    /// was faster with a piece: those that were stored already, whose sessions are counted.
    fn store(&self, brought: &[Brought]) -> Result<Vec<Change>, Vec<Piece>> {
        let mut changes = Vec::new();
        let mut stored = Vec::new();
        let mut lost = false;
        for one in brought {
            let image = self.core.image(one.piece);
            let same = image == one.image;
            if !lost && !same {
                if self.shared.set(&one.key, &image, one.cas) {
                    stored.push(one.piece);
                    let now = self.core.sessions_of(one.piece);
                    if now != one.sessions {
                        let less = one.sessions.iter().map(|t| Change::session(*t, -1));
                        let more = now.iter().map(|t| Change::session(*t, 1));
                        changes.extend(less.chain(more));
                    }
                } else {
                    lost = true;
                }
            }
            self.core.leave(one.piece);
        }
        let changes = rows_by_target(changes);
        if lost {
            self.count(&changes);
            return Err(stored);
        }
        Ok(changes)
    }

    /// Lets all VMs know of a scope, so that the end of a session reaches it.
    fn know(&self, incoming: &Incoming) {
        let scope = incoming.scope().to_bits();
        if incoming.session.is_none() || !self.scopes.borrow_mut().insert(scope) {
            return;
        }
        self.shared.change(SCOPES, |mut value| {
            let known: Vec<u64> = scopes_in(&value).collect();
            if known.contains(&scope) || known.len() >= MAX_SCOPES {
                return None;
            }
            value.extend(scope.to_le_bytes());
            Some(value)
        });
    }
}

fn rows_by_target(changes: Vec<Change>) -> Vec<Change> {
    let mut sums: Vec<Change> = Vec::new();
    for change in changes {
        match sums.iter_mut().find(|sum| sum.target == change.target) {
            Some(sum) => *sum = sum.plus(change),
            None => sums.push(change),
        }
    }
    sums.retain(|change| !change.is_nothing());
    sums
}

pub(crate) fn key_of(piece: Piece) -> String {
    let mut key = String::with_capacity(32);
    // Writing to a text does not fail.
    let _ = write!(key, "pointsman/bindings/{piece}");
    key
}

fn scopes_in(value: &[u8]) -> impl Iterator<Item = u64> {
    let (scopes, _) = value.as_chunks::<8>();
    scopes.iter().map(|bytes| u64::from_le_bytes(*bytes))
}
