//! A placement set: targets in ascending order, as a bit set for each block of the ledger.

use crate::ledger::BLOCK;
use crate::types::Target;

/// The members in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) block: usize,
    /// bit n: target `64 · block + n` is a member; not 0
    pub(crate) members: u64,
    /// members in the blocks before this one
    before: u32,
}

impl Part {
    /// The target of a bit.
    pub(crate) fn target(&self, bit: u32) -> Target {
        Target::try_from(self.block * BLOCK).unwrap_or(Target::MAX) + bit
    }

    /// The place of a member in the whole set.
    pub(crate) fn place(&self, bit: u32) -> u32 {
        self.before + (self.members & ((1 << bit) - 1)).count_ones()
    }

    /// The bit of a target, if it is in this block.
    fn bit_of(&self, target: Target) -> u64 {
        let at = target as usize;
        if at / BLOCK == self.block {
            1 << (at % BLOCK)
        } else {
            0
        }
    }

    /// The members without some targets.
    pub(crate) fn without(&self, targets: &[Target]) -> u64 {
        (targets.iter()).fold(self.members, |left, &target| left & !self.bit_of(target))
    }
}

/// The set bits, from the lowest.
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(bit)
    })
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) parts: Vec<Part>,
    len: u32,
}

impl FromIterator<Target> for Places {
    /// From targets in ascending order.
    fn from_iter<T: IntoIterator<Item = Target>>(targets: T) -> Self {
        let mut places = Places::default();
        for target in targets {
            let (block, bit) = (target as usize / BLOCK, target as usize % BLOCK);
            match places.parts.last_mut() {
                Some(part) if part.block == block => part.members |= 1 << bit,
                _ => places.parts.push(Part {
                    block,
                    members: 1 << bit,
                    before: places.len,
                }),
            }
            places.len += 1;
        }
        places
    }
}

impl Places {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The target at place `turn` mod the size of the set; none: the set is empty.
    pub(crate) fn at_turn(&self, turn: u64) -> Option<Target> {
        let place = u32::try_from(turn.checked_rem(u64::from(self.len))?).ok()?;
        let part = self.parts.partition_point(|part| part.before <= place);
        let part = self.parts.get(part.checked_sub(1)?)?;
        let bit = bits(part.members).nth((place - part.before) as usize)?;
        Some(part.target(bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_the_members_across_blocks() {
        let members = [0, 3, 63, 64, 200, 4095];
        let places: Places = members.into_iter().collect();
        for (place, target) in (0..).zip(members) {
            assert_eq!(places.at_turn(place), Some(target));
            assert_eq!(places.at_turn(place + 6), Some(target), "around");
        }
        let found: Vec<(u32, Target)> = (places.parts.iter())
            .flat_map(|part| bits(part.members).map(|bit| (part.place(bit), part.target(bit))))
            .collect();
        let wanted: Vec<(u32, Target)> = (0..).zip(members).collect();
        assert_eq!(found, wanted);
        assert_eq!(Places::default().at_turn(7), None);
    }
}
