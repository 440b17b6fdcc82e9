//! `interface state`: numbers kept for a policy's name, in the shared store.

use crate::shared::Shared;
use std::cell::{Cell, RefCell};

/// More lanes, or cells, than this are not kept: they read 0 and cannot be set.
const MOST: u64 = 4096;

/// What a decision that may never be used wants to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Ticket(u64),
    Swap { cell: u64, expected: u64, new: u64 },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cells {
    prefix: String,
    drafting: Cell<bool>,
    draft: RefCell<Vec<Wish>>,
}

impl Cells {
    pub(crate) fn new(policy: &str) -> Cells {
        Cells {
            prefix: format!("pointsman/state/{policy}"),
            drafting: Cell::new(false),
            draft: RefCell::default(),
        }
    }

    /// From now on changes are seen, but not made.
    pub(crate) fn begin_draft(&self) {
        self.drafting.set(true);
        self.draft.borrow_mut().clear();
    }

    /// What would have changed.
    pub(crate) fn end_draft(&self) -> Vec<Wish> {
        self.drafting.set(false);
        std::mem::take(&mut self.draft.borrow_mut())
    }

    /// Makes the changes of a draft.
    pub(crate) fn apply(&self, shared: &impl Shared, wishes: &[Wish]) {
        for wish in wishes {
            match *wish {
                Wish::Ticket(lane) => {
                    self.ticket(shared, lane);
                }
                Wish::Swap {
                    cell,
                    expected,
                    new,
                } => {
                    self.swap(shared, cell, expected, new);
                }
            }
        }
    }

    pub(crate) fn ticket(&self, shared: &impl Shared, lane: u64) -> u64 {
        let key = format!("{}/lane/{lane}", self.prefix);
        if self.drafting.get() {
            let mut draft = self.draft.borrow_mut();
            let taken = draft.iter().filter(|wish| **wish == Wish::Ticket(lane));
            let taken = taken.count() as u64;
            draft.push(Wish::Ticket(lane));
            return number(shared, &key).wrapping_add(taken);
        }
        if lane >= MOST {
            return 0;
        }
        change(shared, &key, |was| Some(was.wrapping_add(1)))
    }

    pub(crate) fn get(&self, shared: &impl Shared, cell: u64) -> u64 {
        let drafted = self.draft.borrow();
        let set = drafted.iter().rev().find_map(|wish| match wish {
            Wish::Swap { cell: c, new, .. } if *c == cell => Some(*new),
            _ => None,
        });
        set.unwrap_or_else(|| number(shared, &self.cell(cell)))
    }

    pub(crate) fn swap(&self, shared: &impl Shared, cell: u64, expected: u64, new: u64) -> u64 {
        if cell >= MOST {
            return 0;
        }
        if self.drafting.get() {
            let was = self.get(shared, cell);
            if was == expected {
                let wish = Wish::Swap {
                    cell,
                    expected,
                    new,
                };
                self.draft.borrow_mut().push(wish);
            }
            return was;
        }
        change(shared, &self.cell(cell), |was| {
            (was == expected).then_some(new)
        })
    }

    fn cell(&self, cell: u64) -> String {
        format!("{}/cell/{cell}", self.prefix)
    }
}

/// Changes a number, and returns what it was.
fn change(shared: &impl Shared, key: &str, new: impl Fn(u64) -> Option<u64>) -> u64 {
    let mut was = 0;
    shared.change(key, |value| {
        was = of(&value);
        new(was).map(|new| new.to_le_bytes().to_vec())
    });
    was
}

fn number(shared: &impl Shared, key: &str) -> u64 {
    shared.get(key).0.map_or(0, |value| of(&value))
}

fn of(value: &[u8]) -> u64 {
    value
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Memory;

    #[test]
    fn a_draft_sees_its_own_changes_and_makes_none() {
        let (shared, cells) = (Memory::default(), Cells::new("p"));
        assert_eq!(cells.ticket(&shared, 1), 0);
        assert_eq!(cells.swap(&shared, 1, 0, 5), 0);
        cells.begin_draft();
        assert_eq!(cells.ticket(&shared, 1), 1);
        assert_eq!(cells.ticket(&shared, 1), 2);
        assert_eq!(cells.swap(&shared, 1, 5, 6), 5);
        assert_eq!(cells.get(&shared, 1), 6);
        let wishes = cells.end_draft();
        assert_eq!(cells.get(&shared, 1), 5);
        cells.apply(&shared, &wishes);
        assert_eq!(cells.get(&shared, 1), 6);
        assert_eq!(cells.ticket(&shared, 1), 3);
    }
}
