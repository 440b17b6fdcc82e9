//! Loads as bytes: rows of 64 targets in one value.

use pointsman_core::{Charge, Load, Target};

/// Targets in one value.
pub(crate) const ROWS: usize = 64;
const BYTES: usize = 24;

/// How the load of a target changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) target: Target,
    pub(crate) requests: i64,
    pub(crate) sessions: i64,
    pub(crate) prefill_tokens: i64,
    pub(crate) context_tokens: i64,
}

impl Change {
    /// What a request adds.
    pub(crate) fn charged(target: Target, charge: Charge) -> Change {
        let tokens = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        Change {
            target,
            requests: i64::from(charge.requests),
            sessions: 0,
            prefill_tokens: tokens(charge.prefill_tokens),
            context_tokens: tokens(charge.context_tokens),
        }
    }

    /// A session more or fewer.
    pub(crate) fn session(target: Target, by: i64) -> Change {
        Change {
            target,
            sessions: by,
            ..Change::default()
        }
    }

    /// What becomes of a request's charge.
    pub(crate) fn between(target: Target, was: Charge, is: Charge) -> Change {
        Change::charged(target, is).plus(Change::charged(target, was).undone())
    }

    /// Both, of one target.
    pub(crate) fn plus(self, other: Change) -> Change {
        Change {
            target: self.target,
            requests: self.requests + other.requests,
            sessions: self.sessions + other.sessions,
            prefill_tokens: self.prefill_tokens.saturating_add(other.prefill_tokens),
            context_tokens: self.context_tokens.saturating_add(other.context_tokens),
        }
    }

    /// The other way around.
    pub(crate) fn undone(self) -> Change {
        Change {
            target: self.target,
            requests: -self.requests,
            sessions: -self.sessions,
            prefill_tokens: -self.prefill_tokens,
            context_tokens: -self.context_tokens,
        }
    }

    /// Without the sessions, which belong to the table and not to a request.
    pub(crate) fn of_requests(self) -> Change {
        Change {
            sessions: 0,
            ..self
        }
    }

    /// What a load is then; never less than nothing.
    pub(crate) fn of(self, load: Load) -> Load {
        let count = |n: u32, by: i64| n.saturating_add_signed(i32::try_from(by).unwrap_or(0));
        Load {
            requests: count(load.requests, self.requests),
            sessions: count(load.sessions, self.sessions),
            prefill_tokens: (load.prefill_tokens).saturating_add_signed(self.prefill_tokens),
            context_tokens: (load.context_tokens).saturating_add_signed(self.context_tokens),
        }
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self
            == Change {
                target: self.target,
                ..Change::default()
            }
    }
}

/// The value that a target's row is in.
pub(crate) fn block_of(target: Target) -> usize {
    target as usize / ROWS
}

/// The rows of a value, from the first on.
pub(crate) fn read(value: &[u8]) -> impl Iterator<Item = Load> {
    let (rows, _) = value.as_chunks::<BYTES>();
    rows.iter().map(row)
}

fn row(bytes: &[u8; BYTES]) -> Load {
    let [
        a0,
        a1,
        a2,
        a3,
        b0,
        b1,
        b2,
        b3,
        c0,
        c1,
        c2,
        c3,
        c4,
        c5,
        c6,
        c7,
        d0,
        d1,
        d2,
        d3,
        d4,
        d5,
        d6,
        d7,
    ] = *bytes;
    Load {
        requests: u32::from_le_bytes([a0, a1, a2, a3]),
        sessions: u32::from_le_bytes([b0, b1, b2, b3]),
        prefill_tokens: u64::from_le_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
        context_tokens: u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]),
    }
}

/// Applies a change to the value that its target's row is in. A load never falls below nothing.
pub(crate) fn apply(value: &mut Vec<u8>, change: Change) {
    let at = change.target as usize % ROWS;
    if value.len() < (at + 1) * BYTES {
        value.resize((at + 1) * BYTES, 0);
    }
    let (rows, _) = value.as_chunks_mut::<BYTES>();
    if let Some(bytes) = rows.get_mut(at) {
        let load = change.of(row(bytes));
        let new = (load.requests.to_le_bytes().into_iter())
            .chain(load.sessions.to_le_bytes())
            .chain(load.prefill_tokens.to_le_bytes())
            .chain(load.context_tokens.to_le_bytes());
        bytes
            .iter_mut()
            .zip(new)
            .for_each(|(byte, new)| *byte = new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_was_added_and_never_less_than_nothing() {
        let mut value = Vec::new();
        let charge = Charge {
            requests: 2,
            prefill_tokens: 7,
            context_tokens: 9,
        };
        apply(&mut value, Change::charged(65, charge));
        apply(&mut value, Change::session(65, 1));
        let load = |value: &[u8]| read(value).nth(1).unwrap();
        assert_eq!(
            load(&value),
            Load {
                requests: 2,
                sessions: 1,
                prefill_tokens: 7,
                context_tokens: 9
            }
        );
        for _ in 0..2 {
            apply(&mut value, Change::charged(65, charge).undone());
        }
        assert_eq!(
            load(&value),
            Load {
                sessions: 1,
                ..Load::default()
            }
        );
    }
}
