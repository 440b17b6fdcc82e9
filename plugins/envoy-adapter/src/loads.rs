//! What is outstanding on each target, over all worker threads: sums in blocks of 64 targets, changed
//! with compare-and-set.
//!
//! A thread's VM that traps takes its requests with it, and nobody is told of their end. So each VM
//! keeps a copy of its own part beside the sums, and a sign of life; what a VM without one had
//! outstanding is taken from the sums by another. A VM that was only silent finds itself missing, and
//! adds its part again.

use crate::rows::{self, Change, ROWS, block_of};
use crate::shared::{Cas, Shared};
use pointsman_core::{Ledger, Load};
use std::cell::{Cell, RefCell};

/// Between two signs of life, in ms.
const BEAT_MS: u64 = 1000;
/// Silent this long, in ms, a VM counts as gone.
const GONE_MS: u64 = 30_000;
/// VMs at one time. Those beyond are not watched over.
const MAX_VMS: usize = 1024;
const VMS: &str = "pointsman/vms";

/// One VM's view.
#[derive(Debug)]
pub(crate) struct Loads {
    targets: usize,
    /// who this VM is among all
    vm: u64,
    slot: Cell<Option<usize>>,
    /// of the targets of this configuration, and of others that bindings still speak of
    blocks: RefCell<Vec<Block>>,
    beaten_ms: Cell<u64>,
}

/// 64 targets.
#[derive(Debug)]
struct Block {
    /// the key of their sums
    sums: String,
    /// the key of this VM's part of them
    part: String,
    /// this VM's part
    own: Vec<u8>,
    /// the sums, where this VM has just seen or stored them
    known: Option<Known>,
}

/// Sums of this moment.
#[derive(Debug)]
struct Known {
    value: Vec<u8>,
    /// none: absent, or stored by this VM, which is not told the number
    cas: Option<Cas>,
}

impl Block {
    fn new(number: usize, slot: Option<usize>) -> Block {
        Block {
            sums: sums(number),
            part: slot.map_or_else(String::new, |slot| part(slot, number)),
            own: Vec::new(),
            known: None,
        }
    }
}

fn sums(block: usize) -> String {
    format!("pointsman/load/{block}")
}

/// The keys of a VM that is gone are taken over by its successors: the store cannot forget.
fn part(slot: usize, block: usize) -> String {
    format!("pointsman/part/{slot}/{block}")
}

impl Loads {
    pub(crate) fn new(targets: usize, vm: u64) -> Loads {
        let blocks = (0..targets.div_ceil(ROWS)).map(|number| Block::new(number, None));
        Loads {
            targets,
            vm,
            slot: Cell::new(None),
            blocks: RefCell::new(blocks.collect()),
            beaten_ms: Cell::new(0),
        }
    }

    /// Brings the sums of all targets into the ledger: those that are known are not asked for.
    pub(crate) fn bring(&self, shared: &impl Shared, ledger: &Ledger) {
        let mut blocks = self.blocks.borrow_mut();
        for (first, block) in (0..self.targets).step_by(ROWS).zip(&mut *blocks) {
            let known = block.known.get_or_insert_with(|| {
                let (value, cas) = shared.get(&block.sums);
                Known {
                    value: value.unwrap_or_default(),
                    cas,
                }
            });
            // The value ends with the last row that ever changed; what this VM counted only for
            // itself must go from the others too.
            let rows = rows::read(&known.value).chain(std::iter::repeat(Load::default()));
            let targets = first..self.targets.min(first + ROWS);
            for (load, target) in rows.zip(targets) {
                ledger.put(u32::try_from(target).unwrap_or(u32::MAX), load);
            }
        }
    }

    /// From now on others may have changed the sums.
    pub(crate) fn forget(&self) {
        for block in &mut *self.blocks.borrow_mut() {
            block.known = None;
        }
    }

    /// Adds changes of this VM's requests, and of sessions.
    pub(crate) fn add(&self, shared: &impl Shared, changes: &[Change], wall_ms: u64) {
        if changes.iter().all(Change::is_nothing) {
            return;
        }
        self.beat_if_due(shared, wall_ms);
        let mut blocks = self.blocks.borrow_mut();
        let slot = self.slot.get();
        let numbers = || changes.iter().map(|change| block_of(change.target));
        let most = numbers().max().unwrap_or(0);
        while blocks.len() <= most {
            let number = blocks.len();
            blocks.push(Block::new(number, slot));
        }
        for (number, block) in blocks.iter_mut().enumerate() {
            let here = || (changes.iter()).filter(|change| block_of(change.target) == number);
            if here().all(Change::is_nothing) {
                continue;
            }
            let seen = (block.known.take()).and_then(|known| Some((known.value, known.cas?)));
            let stored = shared.change_seen(&block.sums, seen, |mut value| {
                here().for_each(|change| rows::apply(&mut value, *change));
                Some(value)
            });
            block.known = stored.map(|value| Known { value, cas: None });
            let mut own = here().map(|change| change.of_requests());
            if slot.is_some() && own.any(|change| !change.is_nothing()) {
                here().for_each(|change| rows::apply(&mut block.own, change.of_requests()));
                shared.set(&block.part, &block.own, None);
            }
        }
    }

    /// Gives a sign of life, and takes the parts of those that are gone from the sums.
    pub(crate) fn beat(&self, shared: &impl Shared, wall_ms: u64) {
        self.beaten_ms.set(wall_ms);
        self.forget();
        let had = self.slot.get();
        let (mut gone, mut slot) = (Vec::new(), None);
        shared.change(VMS, |value| {
            let mut vms = Vms::read(&value);
            gone.clear();
            for (at, (vm, seen)) in vms.0.iter_mut().enumerate() {
                if *vm != 0 && *vm != self.vm && *seen + GONE_MS < wall_ms {
                    *vm = 0;
                    gone.push(at);
                }
            }
            slot = vms.seat(self.vm, wall_ms, &gone);
            Some(vms.write())
        });
        for slot in gone {
            self.bury(shared, slot);
        }
        self.slot.set(slot);
        if slot != had {
            // New, or taken for dead meanwhile: then the sums lack this VM's part.
            self.add_again(shared, slot, had.is_some());
        }
    }

    fn beat_if_due(&self, shared: &impl Shared, wall_ms: u64) {
        if self.slot.get().is_none() || wall_ms >= self.beaten_ms.get() + BEAT_MS {
            self.beat(shared, wall_ms);
        }
    }

    fn bury(&self, shared: &impl Shared, slot: usize) {
        for block in 0..self.blocks.borrow().len() {
            let key = part(slot, block);
            let (Some(value), _) = shared.get(&key) else {
                continue;
            };
            let left = changes(block, &value);
            shared.set(&key, &[], None);
            add_to(shared, block, left.into_iter().map(Change::undone));
        }
    }

    fn add_again(&self, shared: &impl Shared, slot: Option<usize>, was_buried: bool) {
        for (number, block) in self.blocks.borrow_mut().iter_mut().enumerate() {
            *block = Block {
                own: std::mem::take(&mut block.own),
                ..Block::new(number, slot)
            };
            if block.own.is_empty() {
                continue;
            }
            if slot.is_some() {
                shared.set(&block.part, &block.own, None);
            }
            if was_buried {
                add_to(shared, number, changes(number, &block.own).into_iter());
            }
        }
    }
}

fn changes(block: usize, value: &[u8]) -> Vec<Change> {
    let first = u32::try_from(block * ROWS).unwrap_or(u32::MAX);
    let charge = |load: pointsman_core::Load| pointsman_core::Charge {
        requests: load.requests,
        prefill_tokens: load.prefill_tokens,
        context_tokens: load.context_tokens,
    };
    (rows::read(value).zip(first..))
        .map(|(load, target)| Change::charged(target, charge(load)))
        .filter(|change| !change.is_nothing())
        .collect()
}

fn add_to(shared: &impl Shared, block: usize, changes: impl Iterator<Item = Change> + Clone) {
    shared.change(&sums(block), |mut value| {
        (changes.clone()).for_each(|change| rows::apply(&mut value, change));
        Some(value)
    });
}

/// The VMs by slot: who, and when last seen; 0: free.
struct Vms(Vec<(u64, u64)>);

impl Vms {
    fn read(value: &[u8]) -> Vms {
        let (numbers, _) = value.as_chunks::<8>();
        let numbers: Vec<u64> = numbers.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let (pairs, _) = numbers.as_chunks::<2>();
        Vms(pairs.iter().map(|[vm, seen]| (*vm, *seen)).collect())
    }

    fn write(&self) -> Vec<u8> {
        let numbers = self.0.iter().flat_map(|(vm, seen)| [*vm, *seen]);
        numbers.flat_map(u64::to_le_bytes).collect()
    }

    /// The slot of a VM, now seen. `not` are being cleared.
    fn seat(&mut self, vm: u64, now: u64, not: &[usize]) -> Option<usize> {
        let own = self.0.iter().position(|(other, _)| *other == vm);
        let free = || {
            let mut slots = self.0.iter().enumerate();
            let found = slots.find(|(at, (other, _))| *other == 0 && !not.contains(at));
            found.map(|(at, _)| at)
        };
        let at = own.or_else(free).unwrap_or(self.0.len());
        if at >= MAX_VMS {
            return None;
        }
        if at == self.0.len() {
            self.0.push((0, 0));
        }
        if let Some(seat) = self.0.get_mut(at) {
            *seat = (vm, now);
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::Memory;
    use pointsman_core::Charge;

    fn one() -> Change {
        let charge = Charge {
            requests: 1,
            prefill_tokens: 10,
            context_tokens: 20,
        };
        Change::charged(3, charge)
    }

    fn requests(shared: &Memory) -> u32 {
        let (value, _) = shared.get(&sums(0));
        rows::read(&value.unwrap()).nth(3).unwrap().requests
    }

    #[test]
    fn what_a_vm_that_is_gone_had_outstanding_is_taken_back() {
        let shared = Memory::default();
        let (a, b) = (Loads::new(8, 1), Loads::new(8, 2));
        a.add(&shared, &[one(), Change::session(3, 1)], 0);
        b.add(&shared, &[one()], 0);
        assert_eq!(requests(&shared), 2);
        b.beat(&shared, GONE_MS);
        assert_eq!(requests(&shared), 2, "silent, but not long enough");
        b.beat(&shared, GONE_MS + 1);
        assert_eq!(requests(&shared), 1);
        let (value, _) = shared.get(&sums(0));
        let load = rows::read(&value.unwrap()).nth(3).unwrap();
        assert_eq!(load.sessions, 1, "sessions are the table's");
    }

    #[test]
    fn a_vm_that_was_only_silent_adds_its_part_again_and_ends_at_nothing() {
        let shared = Memory::default();
        let (a, b) = (Loads::new(8, 1), Loads::new(8, 2));
        a.add(&shared, &[one()], 0);
        b.beat(&shared, GONE_MS + 1);
        assert_eq!(requests(&shared), 0);
        // Somebody new takes its slot meanwhile.
        let c = Loads::new(8, 3);
        c.add(&shared, &[one()], GONE_MS + 1);
        assert_eq!(requests(&shared), 1);
        a.add(&shared, &[one()], 2 * GONE_MS);
        assert_eq!(requests(&shared), 3);
        a.add(&shared, &[one().undone(), one().undone()], 2 * GONE_MS);
        c.add(&shared, &[one().undone()], 2 * GONE_MS);
        assert_eq!(requests(&shared), 0);
    }
}
