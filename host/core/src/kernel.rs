//! Choosing the least loaded target: one scan over the placement set, block by block.

use crate::hash::splitmix64;
use crate::ledger::{BLOCK, Block, Ledger};
use crate::places::{Part, Places, bits};
use crate::types::{Choice, Sums, Table, Target, Tie, Weights};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::Relaxed;

/// The fleet as one request sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) places: &'a Places,
    pub(crate) ledger: &'a Ledger,
    /// the hash of each target's name
    pub(crate) names: &'a [u64],
    /// not these: they keep their places, so that turns do not jump
    pub(crate) tried: &'a [Target],
}

/// Weights up to these cannot overflow a score: a target's tokens stay below 2⁴⁴, its requests and
/// sessions below 2³².
const SMALL_TOKEN_WEIGHT: u64 = 1 << 18;
const SMALL_COUNT_WEIGHT: u64 = 1 << 30;

/// Those of one part that lead: a bit each.
type Leaders<'a> = SmallVec<[(&'a Part, u64); 8]>;

impl<'a> Field<'a> {
    /// The lowest score among those that have fewer than `below` requests, without `except`; among
    /// equals as `tie` says.
    pub(crate) fn least(
        &self,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice> {
        let open = |part: &Part| {
            let mut members = part.without(self.tried);
            if let Some(except) = except {
                members &= part.without(&[except]);
            }
            match below {
                Some(below) => members & self.fewer(part, below),
                None => members,
            }
        };
        let (leaders, score) = if cost == Weights::default() {
            let all = (self.places.parts.iter()).map(|part| (part, open(part)));
            (all.filter(|(_, set)| *set != 0).collect(), 0)
        } else if cost.request <= SMALL_COUNT_WEIGHT
            && cost.session <= SMALL_COUNT_WEIGHT
            && cost.prefill_token <= SMALL_TOKEN_WEIGHT
            && cost.context_token <= SMALL_TOKEN_WEIGHT
        {
            if cost.session == 0 && cost.context_token == 0 && cost.prefill_token == 1 {
                let least = |block: &Block| Some(least_unit(block, cost.request));
                self.lead(open, least, |block, upto, out| two(block, &cost, upto, out))
            } else if cost.session == 0 && cost.context_token == 0 {
                self.lead(
                    open,
                    |_| None,
                    |block, upto, out| two(block, &cost, upto, out),
                )
            } else {
                self.lead(
                    open,
                    |_| None,
                    |block, upto, out| four(block, &cost, upto, out),
                )
            }
        } else {
            self.lead(
                open,
                |_| None,
                |block, upto, out| saturating(block, &cost, upto, out),
            )
        };
        let (part, bit) = self.first(&leaders, tie)?;
        Some(Choice {
            target: part.target(bit),
            place: part.place(bit),
            score,
        })
    }

    /// Those with the lowest score, and that score. `least` may know the lowest score of a whole block
    /// without those of its targets: most blocks do not lead, and need no more.
    fn lead(
        &self,
        open: impl Fn(&Part) -> u64,
        least: impl Fn(&Block) -> Option<u64>,
        score: impl Fn(&Block, usize, &mut [u64; BLOCK]),
    ) -> (Leaders<'a>, u64) {
        let mut leaders = Leaders::new();
        let mut best = u64::MAX;
        let mut scores = [0; BLOCK];
        for part in &self.places.parts {
            let open = open(part);
            let Some(block) = self.ledger.block(part.block).filter(|_| open != 0) else {
                continue;
            };
            // Of the first block every score is wanted.
            let led = best != u64::MAX && open == u64::MAX;
            if led && least(block).is_some_and(|least| least > best) {
                continue;
            }
            let upto = (u64::BITS - open.leading_zeros()) as usize;
            score(block, upto, &mut scores);
            let least = least_of(&scores, open);
            if least > best {
                continue;
            }
            if least < best {
                leaders.clear();
                best = least;
            }
            let equal = (scores.iter().take(upto).zip(0..))
                .fold(0, |set, (&s, bit)| set | u64::from(s == least) << bit);
            leaders.push((part, equal & open));
        }
        (leaders, best)
    }

    /// The winner among equals.
    fn first(&self, leaders: &[(&'a Part, u64)], tie: Tie) -> Option<(&'a Part, u32)> {
        let all =
            || (leaders.iter()).flat_map(|&(part, set)| bits(set).map(move |bit| (part, bit)));
        match tie {
            Tie::Turn(turn) => {
                let start = self.places.at_turn(turn)?;
                all()
                    .find(|(part, bit)| part.target(*bit) >= start)
                    .or_else(|| all().next())
            }
            Tie::Hash(key) => {
                let hash = |(part, bit): &(&Part, u32)| {
                    let name = self.names.get(part.target(*bit) as usize);
                    splitmix64(key ^ name.copied().unwrap_or(0))
                };
                // The first of equal hashes, which only equal names have.
                (all().map(|member| (hash(&member), member)))
                    .reduce(|a, b| if b.0 > a.0 { b } else { a })
                    .map(|(_, member)| member)
            }
        }
    }

    /// Those in a part's block with fewer than `below` requests.
    fn fewer(&self, part: &Part, below: u32) -> u64 {
        let requests = self.ledger.block(part.block).map(|block| &block.requests);
        (requests.into_iter().flatten().zip(0..)).fold(0, |set, (requests, bit)| {
            set | u64::from(requests.load(Relaxed) < below) << bit
        })
    }

    /// Everybody, in order.
    fn members(&self) -> impl Iterator<Item = Target> {
        (self.places.parts.iter())
            .flat_map(|part| bits(part.without(self.tried)).map(move |bit| part.target(bit)))
    }

    /// Sums over the set.
    pub(crate) fn totals(&self) -> Sums {
        let mut sums = Sums::default();
        for target in self.members() {
            let load = self.ledger.load(target);
            sums.targets += 1;
            sums.busiest = sums.busiest.max(load.requests);
            sums.requests += u64::from(load.requests);
            sums.sessions += u64::from(load.sessions);
            sums.prefill_tokens = sums.prefill_tokens.saturating_add(load.prefill_tokens);
            sums.context_tokens = sums.context_tokens.saturating_add(load.context_tokens);
        }
        sums
    }

    /// The set as columns.
    pub(crate) fn columns(&self) -> Table {
        let mut table = Table::default();
        for target in self.members() {
            let load = self.ledger.load(target);
            table.target.push(target);
            table.requests.push(load.requests);
            table.sessions.push(load.sessions);
            table.prefill_tokens.push(load.prefill_tokens);
            table.context_tokens.push(load.context_tokens);
        }
        table
    }
}

/// Scores of the first `upto` targets of a block; overflow is excluded by the caller.
fn two(block: &Block, cost: &Weights, upto: usize, out: &mut [u64; BLOCK]) {
    let loads = block.requests.iter().zip(&block.prefill_tokens);
    for (out, (requests, prefill)) in out.iter_mut().zip(loads).take(upto) {
        let requests = u64::from(requests.load(Relaxed)).wrapping_mul(cost.request);
        let prefill = prefill.load(Relaxed).wrapping_mul(cost.prefill_token);
        *out = requests.wrapping_add(prefill);
    }
}

fn four(block: &Block, cost: &Weights, upto: usize, out: &mut [u64; BLOCK]) {
    two(block, cost, upto, out);
    let loads = block.sessions.iter().zip(&block.context_tokens);
    for (out, (sessions, context)) in out.iter_mut().zip(loads).take(upto) {
        let sessions = u64::from(sessions.load(Relaxed)).wrapping_mul(cost.session);
        let context = context.load(Relaxed).wrapping_mul(cost.context_token);
        *out = out.wrapping_add(sessions).wrapping_add(context);
    }
}

/// With weights of any size.
fn saturating(block: &Block, cost: &Weights, upto: usize, out: &mut [u64; BLOCK]) {
    let counts = block.requests.iter().zip(&block.sessions);
    let tokens = block.prefill_tokens.iter().zip(&block.context_tokens);
    for (out, (counts, tokens)) in out.iter_mut().zip(counts.zip(tokens)).take(upto) {
        *out = [
            (u64::from(counts.0.load(Relaxed)), cost.request),
            (u64::from(counts.1.load(Relaxed)), cost.session),
            (tokens.0.load(Relaxed), cost.prefill_token),
            (tokens.1.load(Relaxed), cost.context_token),
        ]
        .iter()
        .fold(0, |sum: u64, (load, weight)| {
            sum.saturating_add(load.saturating_mul(*weight))
        });
    }
}

/// The lowest score of a block where a prefill token costs 1, as it mostly does, and nothing but
/// requests and prefill tokens counts: one multiplication a target, and nothing is written down.
fn least_unit(block: &Block, request: u64) -> u64 {
    let (requests, _) = block.requests.as_chunks::<4>();
    let (prefill, _) = block.prefill_tokens.as_chunks::<4>();
    let least = (requests.iter().zip(prefill)).fold([u64::MAX; 4], |least, (requests, prefill)| {
        let mut loads = requests.iter().zip(prefill).zip(least);
        std::array::from_fn(|_| {
            loads
                .next()
                .map_or(u64::MAX, |((requests, prefill), least)| {
                    let requests = u64::from(requests.load(Relaxed)).wrapping_mul(request);
                    requests.wrapping_add(prefill.load(Relaxed)).min(least)
                })
        })
    });
    least.into_iter().min().unwrap_or(u64::MAX)
}

fn least_of(scores: &[u64; BLOCK], open: u64) -> u64 {
    if open != u64::MAX {
        let open = bits(open)
            .filter_map(|bit| scores.get(bit as usize))
            .copied();
        return open.min().unwrap_or(u64::MAX);
    }
    // Four chains instead of one: each minimum waits for the one before it.
    let (quads, _) = scores.as_chunks::<4>();
    let least = quads.iter().fold([u64::MAX; 4], |least, quad| {
        let mut pairs = least.into_iter().zip(quad);
        std::array::from_fn(|_| pairs.next().map_or(u64::MAX, |(a, &b)| a.min(b)))
    });
    least.into_iter().min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Charge;
    use proptest::prelude::*;

    /// What `least` promises, one target at a time.
    fn plainly(
        field: &Field<'_>,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice> {
        let all: Vec<Target> = (field.places.parts.iter())
            .flat_map(|part| bits(part.members).map(|bit| part.target(bit)))
            .collect();
        let n = all.len();
        let candidates: Vec<(u32, Target)> = (0..).zip(all.iter().copied()).collect();
        let score = |target: Target| {
            let load = field.ledger.load(target);
            [
                (u64::from(load.requests), cost.request),
                (u64::from(load.sessions), cost.session),
                (load.prefill_tokens, cost.prefill_token),
                (load.context_tokens, cost.context_token),
            ]
            .iter()
            .fold(0_u64, |sum, (l, w)| {
                sum.saturating_add(l.saturating_mul(*w))
            })
        };
        let rank = |place: u32, target: Target| match tie {
            Tie::Turn(turn) => (u64::from(place) + n as u64 - turn % n as u64) % n as u64,
            Tie::Hash(key) => !splitmix64(key ^ field.names[target as usize]),
        };
        (candidates.into_iter())
            .filter(|(_, t)| !field.tried.contains(t) && except != Some(*t))
            .filter(|(_, t)| below.is_none_or(|b| field.ledger.load(*t).requests < b))
            .min_by_key(|&(place, t)| (score(t), rank(place, t), place))
            .map(|(place, target)| Choice {
                target,
                place,
                score: score(target),
            })
    }

    fn weight() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(1), Just(512), any::<u64>()]
    }

    proptest! {
        #[test]
        fn the_block_wise_scan_chooses_what_a_plain_one_does(
            members in prop::collection::btree_set(0_u32..300, 0..150),
            loads in prop::collection::vec((0_u32..4, 0_u64..3, 0_u64..3), 300),
            weights in (weight(), weight(), weight(), weight()),
            tie in prop_oneof![any::<u64>().prop_map(Tie::Turn), any::<u64>().prop_map(Tie::Hash)],
            except in prop::option::of(0_u32..300),
            below in prop::option::of(0_u32..4),
            tried in prop::collection::vec(0_u32..300, 0..3),
        ) {
            let mut ledger = Ledger::default();
            ledger.grow(300);
            for (target, (requests, prefill_tokens, context_tokens)) in (0..).zip(loads) {
                ledger.charge(target, Charge { requests, prefill_tokens, context_tokens });
                if target % 3 == 0 {
                    ledger.session_bound(target);
                }
            }
            let places: Places = members.into_iter().collect();
            let names: Vec<u64> = (0..300).map(splitmix64).collect();
            let field = Field { places: &places, ledger: &ledger, names: &names, tried: &tried };
            let cost = Weights {
                request: weights.0,
                session: weights.1,
                prefill_token: weights.2,
                context_token: weights.3,
            };
            prop_assert_eq!(
                field.least(cost, tie, except, below),
                plainly(&field, cost, tie, except, below)
            );
        }
    }
}
