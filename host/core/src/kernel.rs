//! Choosing the least loaded target: one scan over the placement set.

use crate::hash::splitmix64;
use crate::ledger::{Ledger, Slot};
use crate::types::{Choice, Sums, Table, Target, Tie, Weights};
use std::sync::atomic::Ordering::Relaxed;

/// A placement set: targets in ascending order, and the hash of each one's name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    pub(crate) ids: &'a [Target],
    pub(crate) names: &'a [u64],
}

/// Conditions on the target beyond being in the set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limit {
    /// not this one
    pub(crate) except: Option<Target>,
    /// fewer outstanding requests than this
    pub(crate) below: Option<u32>,
}

/// The lowest score; among equals as `tie` says.
pub(crate) fn least(
    places: Places<'_>,
    ledger: &Ledger,
    cost: Weights,
    tie: Tie,
    limit: Limit,
) -> Option<Choice> {
    if cost == Weights::default() {
        return scan(places, ledger, tie, limit, |_| 0);
    }
    if cost.session == 0 && cost.context_token == 0 {
        return scan(places, ledger, tie, limit, |s| {
            requests_and_prefill(s, &cost)
        });
    }
    scan(places, ledger, tie, limit, |s| {
        requests_and_prefill(s, &cost)
            .saturating_add(u64::from(s.sessions.load(Relaxed)).saturating_mul(cost.session))
            .saturating_add(
                s.context_tokens
                    .load(Relaxed)
                    .saturating_mul(cost.context_token),
            )
    })
}

#[inline]
fn requests_and_prefill(slot: &Slot, cost: &Weights) -> u64 {
    u64::from(slot.requests.load(Relaxed))
        .saturating_mul(cost.request)
        .saturating_add(
            slot.prefill_tokens
                .load(Relaxed)
                .saturating_mul(cost.prefill_token),
        )
}

#[inline]
fn scan(
    places: Places<'_>,
    ledger: &Ledger,
    tie: Tie,
    limit: Limit,
    score: impl Fn(&Slot) -> u64,
) -> Option<Choice> {
    let n = places.ids.len();
    let start = match tie {
        Tie::Turn(turn) => usize::try_from(turn % (n.max(1) as u64)).unwrap_or(0),
        Tie::Hash(_) => 0,
    };
    let mut best: Option<(Choice, u64)> = None;
    for at in (start..n).chain(0..start) {
        let Some(&target) = places.ids.get(at) else {
            continue;
        };
        let Some(slot) = ledger.slot(target) else {
            continue;
        };
        if limit.except == Some(target)
            || limit
                .below
                .is_some_and(|below| slot.requests.load(Relaxed) >= below)
        {
            continue;
        }
        let score = score(slot);
        if best.is_some_and(|(b, _)| score > b.score) {
            continue;
        }
        // The hash is worked out only for those that tie for the lead.
        let rank = match tie {
            Tie::Turn(_) => 0,
            Tie::Hash(key) => splitmix64(key ^ places.names.get(at).copied().unwrap_or(0)),
        };
        if best.is_none_or(|(b, best_rank)| score < b.score || rank > best_rank) {
            let place = u32::try_from(at).unwrap_or(u32::MAX);
            best = Some((
                Choice {
                    target,
                    place,
                    score,
                },
                rank,
            ));
        }
    }
    best.map(|(choice, _)| choice)
}

/// Sums over the set.
pub(crate) fn totals(places: Places<'_>, ledger: &Ledger) -> Sums {
    let mut sums = Sums::default();
    for slot in places.ids.iter().filter_map(|&t| ledger.slot(t)) {
        let load = slot.load();
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
pub(crate) fn columns(places: Places<'_>, ledger: &Ledger) -> Table {
    let mut table = Table::default();
    for &target in places.ids {
        let load = ledger.load(target);
        table.target.push(target);
        table.requests.push(load.requests);
        table.sessions.push(load.sessions);
        table.prefill_tokens.push(load.prefill_tokens);
        table.context_tokens.push(load.context_tokens);
    }
    table
}
