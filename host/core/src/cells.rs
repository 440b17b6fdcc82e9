//! Numbers that the host keeps for a policy's name, through swaps and across workers.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::PoisonError;

/// Below this number a lane or cell is an atomic of its own; above, one of a bounded map.
const FAST: usize = 64;
/// More cells than this are not kept: they read 0 and cannot be set.
const MAX_CELLS: usize = 65_536;

/// Tickets and cells of one policy name.
#[derive(Debug)]
pub struct Cells {
    lanes: [AtomicU64; FAST],
    cells: [AtomicU64; FAST],
    rest: Mutex<HashMap<(Kind, u64), u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Lane,
    Cell,
}

impl Default for Cells {
    fn default() -> Self {
        Cells {
            lanes: std::array::from_fn(|_| AtomicU64::new(0)),
            cells: std::array::from_fn(|_| AtomicU64::new(0)),
            rest: Mutex::default(),
        }
    }
}

impl Cells {
    /// 0, 1, 2, …: each call another one.
    pub fn ticket(&self, lane: u32) -> u64 {
        match self.lanes.get(lane as usize) {
            Some(lane) => lane.fetch_add(1, Relaxed),
            None => self.change(Kind::Lane, u64::from(lane), |was| Some(was.wrapping_add(1))),
        }
    }

    /// What the cell holds; 0 if never set.
    pub fn get(&self, cell: u64) -> u64 {
        match fast(&self.cells, cell) {
            Some(cell) => cell.load(Relaxed),
            None => self.change(Kind::Cell, cell, |_| None),
        }
    }

    /// Sets the cell if it holds `expected`; returns what it held.
    pub fn swap(&self, cell: u64, expected: u64, new: u64) -> u64 {
        match fast(&self.cells, cell) {
            Some(cell) => match cell.compare_exchange(expected, new, Relaxed, Relaxed) {
                Ok(was) | Err(was) => was,
            },
            None => self.change(Kind::Cell, cell, |was| (was == expected).then_some(new)),
        }
    }

    /// Others that go on from here.
    pub(crate) fn copy(&self) -> Cells {
        let copy = |all: &[AtomicU64; FAST]| {
            std::array::from_fn(|at| {
                let number = all.get(at).map_or(0, |number| number.load(Relaxed));
                AtomicU64::new(number)
            })
        };
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        Cells {
            lanes: copy(&self.lanes),
            cells: copy(&self.cells),
            rest: Mutex::new(rest.clone()),
        }
    }

    /// Sets lanes to their next ticket, and cells.
    pub(crate) fn put(&self, lanes: &[(u32, u64)], cells: &[(u64, u64)]) {
        for &(lane, next) in lanes {
            match self.lanes.get(lane as usize) {
                Some(lane) => lane.store(next, Relaxed),
                None => drop(self.change(Kind::Lane, u64::from(lane), |_| Some(next))),
            }
        }
        for &(cell, number) in cells {
            match fast(&self.cells, cell) {
                Some(cell) => cell.store(number, Relaxed),
                None => drop(self.change(Kind::Cell, cell, |_| Some(number))),
            }
        }
    }

    fn change(&self, kind: Kind, id: u64, new: impl FnOnce(u64) -> Option<u64>) -> u64 {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let was = rest.get(&(kind, id)).copied().unwrap_or(0);
        if let Some(new) = new(was)
            && (rest.len() < MAX_CELLS || rest.contains_key(&(kind, id)))
        {
            rest.insert((kind, id), new);
        }
        was
    }
}

fn fast(cells: &[AtomicU64; FAST], cell: u64) -> Option<&AtomicU64> {
    usize::try_from(cell).ok().and_then(|at| cells.get(at))
}
