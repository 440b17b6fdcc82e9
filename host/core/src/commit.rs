//! A decision made true, as one transaction under the locks of its keys: or not at all.

use crate::ask::{Ask, Incoming};
use crate::bindings::{Locked, WhenFull};
use crate::core::Core;
use crate::entry::Held;
use crate::ledger::Charge;
use crate::prompt::{Prompt, Shared};
use crate::ticket::Lease;
use crate::types::{Key, Keys, Route, Target};
use smallvec::SmallVec;
use thiserror::Error;

/// An answer that breaks the contract: counted, and the fallback decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BadAnswer {
    /// a target that may not take the request
    #[error(
        "target {0} may not take this request: choose from the placement set, or the owner if it is eligible"
    )]
    NotEligible(Target),
    /// another target than the client's
    #[error(
        "target {found}, but the client named target {wanted}: an explicit target must be taken"
    )]
    NotExplicit {
        /// the client's
        wanted: Target,
        /// the policy's
        found: Target,
    },
    /// a binding replaced unseen
    #[error("rebind of {0:?}, which this decision did not look at: look it up first")]
    Unseen(Key),
    /// the parent's own session bound
    #[error("the parent's binding may be followed, never bound or rebound")]
    BindsParent,
    /// a reason out of range
    #[error("reason {0} is not in the description's list of reasons")]
    Reason(u8),
    /// a status that is no error
    #[error("status {0}: a rejection needs one from 400 to 599")]
    Status(u16),
}

pub(crate) enum Refused {
    Bad(BadAnswer),
    Full,
}

pub(crate) struct Committed {
    pub(crate) target: Target,
    pub(crate) adopted: bool,
    pub(crate) charge: Charge,
    pub(crate) leases: SmallVec<[Lease; 4]>,
    /// the session's key and the number of what was noted of its prompt
    pub(crate) memory: Option<(u64, u64)>,
}

/// The state of one key inside the transaction.
#[derive(Clone, Copy)]
struct Claim {
    key: Key,
    at: u64,
    /// the claim now; none: free
    now: Option<(u64, Target)>,
    /// somebody else made it after this decision looked
    lost: bool,
}

pub(crate) fn commit(ask: &Ask, incoming: &Incoming, route: Route) -> Result<Committed, Refused> {
    check(ask, route).map_err(Refused::Bad)?;
    let Core {
        bindings, fleet, ..
    } = &*ask.worker.core;
    let keys: SmallVec<[u64; 4]> = ask.keys.iter().flatten().copied().collect();
    let mut locked = bindings.lock(keys.iter().copied());
    for at in &keys {
        locked.expire(*at, ask.now, fleet);
    }

    let wanted = Keys::from_bits(route.bind.bits() | route.rebind.bits());
    let claims: SmallVec<[Claim; 3]> = Key::BINDABLE
        .into_iter()
        .filter(|key| wanted.has(*key))
        .filter_map(|key| claim(ask, &mut locked, key))
        .collect();
    let winner = claims.iter().find_map(|claim| first_claim(ask, claim));
    let target = winner.unwrap_or(route.target);
    let adopted = target != route.target;

    // Room first: a table that refuses must refuse before anything was changed.
    let absent = claims.iter().filter(|claim| claim.now.is_none());
    let new: SmallVec<[u64; 3]> = absent.clone().map(|claim| claim.at).collect();
    let all = new.len();
    let least = match bindings.limits().when_full {
        WhenFull::PlaceUnbound => 0,
        WhenFull::Reject => all,
    };
    let room = (least..=all)
        .rev()
        .find(|room| locked.reserve(new.get(..*room).unwrap_or_default(), &keys, fleet))
        .ok_or(Refused::Full)?;
    for claim in absent.take(room) {
        insert(ask, &mut locked, *claim, target);
    }
    for claim in &claims {
        if replaces(ask, claim, route.rebind, target) {
            replace(ask, &mut locked, claim, target);
        }
    }

    let leases = lease(ask, &mut locked, target);
    let memory = remember(ask, &mut locked, incoming, target);
    let charge = charge(ask, route, target, adopted);
    ask.fleet.ledger().charge(target, charge);
    Ok(Committed {
        target,
        adopted,
        charge,
        leases,
        memory,
    })
}

fn check(ask: &Ask, route: Route) -> Result<(), BadAnswer> {
    if ask.reason(route.reason).is_none() {
        return Err(BadAnswer::Reason(route.reason));
    }
    if let Some(wanted) = ask.request.explicit
        && wanted != route.target
    {
        let found = route.target;
        return Err(BadAnswer::NotExplicit { wanted, found });
    }
    if !ask.may_go(route.target) {
        return Err(BadAnswer::NotEligible(route.target));
    }
    if route.bind.has(Key::Parent) || route.rebind.has(Key::Parent) {
        return Err(BadAnswer::BindsParent);
    }
    match Key::BINDABLE
        .into_iter()
        .find(|key| route.rebind.has(*key) && !ask.seen(*key).looked)
    {
        Some(key) => Err(BadAnswer::Unseen(key)),
        None => Ok(()),
    }
}

fn claim(ask: &Ask, locked: &mut Locked<'_>, key: Key) -> Option<Claim> {
    let at = ask.keys.get(key.index()).copied().flatten()?;
    let entry = locked.shard(at)?.get(at, ask.now);
    let now = entry.map(|e| (e.held.revision, e.held.target));
    let lost = now.is_some_and(|(revision, _)| ask.seen(key).revision != Some(revision));
    Some(Claim { key, at, now, lost })
}

/// The target of a request that was first, where it may take this one too. It may be this decision's
/// own: then that stands, whatever the keys of less weight say.
fn first_claim(ask: &Ask, claim: &Claim) -> Option<Target> {
    let (_, found) = claim.now.filter(|_| claim.lost)?;
    (ask.request.explicit.is_none() && ask.takes(claim.key, found)).then_some(found)
}

/// Does the claim give way to this decision's target?
fn replaces(ask: &Ask, claim: &Claim, rebind: Keys, target: Target) -> bool {
    let Some((_, found)) = claim.now else {
        return false;
    };
    found != target
        && if claim.lost {
            ask.request.explicit.is_some() || !ask.takes(claim.key, found)
        } else {
            rebind.has(claim.key)
        }
}

// A new claim begins without a lease: `lease` gives every key of the request its own right after.

fn insert(ask: &Ask, locked: &mut Locked<'_>, claim: Claim, target: Target) {
    let session = claim.key == Key::Session;
    let Some(shard) = locked.shard(claim.at) else {
        return;
    };
    let held = Held::new(target, shard.revision(), session);
    shard.insert(claim.at, held);
    if session {
        ask.worker.know(ask.scope);
        ask.worker.core.fleet.session_bound(target);
    }
}

fn replace(ask: &Ask, locked: &mut Locked<'_>, claim: &Claim, target: Target) {
    let session = claim.key == Key::Session;
    let Some(shard) = locked.shard(claim.at) else {
        return;
    };
    let new = Held::new(target, shard.revision(), session);
    let Some(entry) = shard.get_mut(claim.at) else {
        return;
    };
    let old = entry.replace(new);
    if session {
        ask.worker.core.fleet.session_gone(old);
        ask.worker.core.fleet.session_bound(target);
    }
}

/// A lease on every key of the request that is bound to the target.
fn lease(ask: &Ask, locked: &mut Locked<'_>, target: Target) -> SmallVec<[Lease; 4]> {
    let mut leases = SmallVec::new();
    let until = ask.worker.core.bindings.leased_until(ask.now);
    for (key, at) in Key::ALL.into_iter().zip(ask.keys) {
        let Some(at) = at else { continue };
        let lease = (locked.shard(at)).and_then(|shard| shard.lease(at, target, until));
        if let Some((revision, settled)) = lease {
            leases.push(Lease {
                key,
                at,
                revision,
                settled,
            });
        }
    }
    leases
}

fn charge(ask: &Ask, route: Route, target: Target, adopted: bool) -> Charge {
    let prompt = ask.request.prompt_tokens;
    let rule = || {
        let here = ask.ran_on == Some(target);
        prompt.saturating_sub(if here { ask.request.shared_tokens } else { 0 })
    };
    // What the policy works out holds for its own target only.
    let prefill = route.charge.filter(|_| !adopted).unwrap_or_else(rule);
    Charge {
        requests: 1,
        prefill_tokens: u64::from(prefill),
        context_tokens: u64::from(prompt),
    }
}

fn remember(
    ask: &Ask,
    locked: &mut Locked<'_>,
    incoming: &Incoming,
    target: Target,
) -> Option<(u64, u64)> {
    let at = ask.keys.get(Key::Session.index()).copied().flatten()?;
    let shard = locked.shard(at)?;
    let prompt = match &incoming.shared {
        Shared::Given(_) => Prompt::ran_on(target),
        Shared::Chain(chain) => chain.remember(target),
    };
    // Where a shard is kept elsewhere, a write costs more than this look; here it costs less.
    if ask.worker.core.bindings.is_in_pieces() && shard.get_mut(at)?.has_run(&prompt) {
        return None;
    }
    let number = shard.revision();
    shard.get_mut(at)?.send(number, prompt);
    Some((at, number))
}
