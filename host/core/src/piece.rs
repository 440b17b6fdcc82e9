//! The table in pieces that are kept elsewhere, for workers that share no memory: each piece is taken
//! in, decided over with the same rules as ever, and given back if nobody else changed it meanwhile.
//!
//! ```text
//! bring the pieces of Worker::pieces(incoming) ─► decide ─► Core::image of each ─► store, or again
//! bring one of Ticket::pieces ─► Ticket::step_in ─► Core::image ─► store, or again;  Ticket::step
//! ```
//!
//! Not [`crate::Bindings`] over a trait: the table in memory would pay for what only this one needs.

use crate::ask::Incoming;
use crate::core::{Core, Worker};
use crate::hash::Scope;
use crate::image::Image;
use crate::shard::Shard;
use crate::ticket::{Step, Ticket};
use crate::types::{Key, Target};
use smallvec::SmallVec;
use thiserror::Error;

/// The first byte of an image. Another one is from another version: its sessions begin anew.
const FORMAT: u8 = 1;
/// About how long an image is, in bytes: of itself, and for each binding.
const HEADER: usize = 16;
const ENTRY: usize = 96;

/// A piece's number, from 0.
pub type Piece = usize;

/// Bytes that are no piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the stored piece of the table is damaged, or of another version")]
pub struct BadImage;

impl Core {
    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.bindings.shards()
    }

    /// The piece in which an identity is bound.
    pub fn piece_of(&self, scope: Scope, key: Key, identity: u64) -> Piece {
        self.bindings.shard_of(scope.key(key, identity))
    }

    /// Takes a piece in; an empty image is an empty piece. Leases that are over are dropped, and the
    /// image is not to be trusted: what does not parse is refused, and the piece is empty then.
    ///
    /// # Errors
    /// See [`BadImage`].
    pub fn bring(&self, piece: Piece, image: &[u8]) -> Result<(), BadImage> {
        let shard = match image.split_first() {
            None => Some(Shard::default()),
            Some((&FORMAT, rest)) => Shard::read(&mut Image(rest), self.now_ms()),
            Some(_) => None,
        };
        let result = shard.as_ref().map(|_| ()).ok_or(BadImage);
        self.bindings.exchange(piece, shard.unwrap_or_default());
        result
    }

    /// A piece, to be kept elsewhere.
    pub fn image(&self, piece: Piece) -> Vec<u8> {
        let mut image = Vec::new();
        self.bindings.with_shard(piece, |shard| {
            image.reserve(HEADER + shard.len() * ENTRY);
            image.push(FORMAT);
            shard.write(&mut image);
        });
        image
    }

    /// Forgets a piece here, but nothing that counts it.
    pub fn leave(&self, piece: Piece) {
        self.bindings.exchange(piece, Shard::default());
    }

    /// The target of each session that is bound in a piece: their sum over all pieces is the number of
    /// sessions of each target.
    pub fn sessions_of(&self, piece: Piece) -> SmallVec<[Target; 16]> {
        let mut targets = SmallVec::new();
        self.bindings
            .with_shard(piece, |shard| targets.extend(shard.sessions()));
        targets
    }

    /// As [`Core::sweep`], of one piece.
    pub fn sweep_piece(&self, piece: Piece) -> usize {
        self.bindings.sweep_shard(piece, self.now_ms(), &self.fleet)
    }
}

impl Worker {
    /// The pieces that a decision about a request needs, each once, ascending.
    pub fn pieces(&self, incoming: &Incoming) -> SmallVec<[Piece; 4]> {
        let keys = self.keys(incoming.scope(), incoming);
        each_once(self, keys.into_iter().flatten())
    }
}

impl Ticket {
    /// The pieces that it holds something in, each once, ascending.
    pub fn pieces(&self) -> SmallVec<[Piece; 4]> {
        each_once(self.worker(), self.keys())
    }

    /// What a step does in one piece. It changes nothing of the ticket, so that it can be repeated;
    /// [`Ticket::step`] comes after the last piece.
    pub fn step_in(&self, step: Step, piece: Piece) {
        let bindings = &self.worker().core.bindings;
        self.in_table(step, |key| bindings.shard_of(key) == piece);
    }

    /// Whether a step changes anything in the table.
    pub fn changes_table(&self, step: Step) -> bool {
        self.touches(step)
    }

    /// What a step does outside of the table.
    pub fn step(&mut self, step: Step) {
        self.release(step);
        self.advance(step);
    }

    /// Ends it without giving anything back: what it did was never stored.
    pub fn forget(mut self) {
        self.disown();
    }
}

fn each_once(worker: &Worker, keys: impl Iterator<Item = u64>) -> SmallVec<[Piece; 4]> {
    let mut pieces: SmallVec<[Piece; 4]> =
        keys.map(|key| worker.core.bindings.shard_of(key)).collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}
