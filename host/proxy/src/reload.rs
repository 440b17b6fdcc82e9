//! Other engines while traffic flows.
//!
//! What stays as it is keeps its targets, connections and condition. A server whose address and role
//! stay keeps them too, whatever else is said of it. All others leave and come: what is in flight goes
//! on to its end, what is bound there is placed anew.

use crate::breaker::Breaker;
use crate::engines::{Checked, Engine, Engines, Server};
use crate::error::Error;
use crate::settings::Pool;
use crate::site::Shared;
use arc_swap::ArcSwap;
use pointsman_core::{Fleet, Revision, Target};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The engines as they are now. Threads look whether they are others at the cost of one load.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    now: watch::Sender<Arc<Engines>>,
    one_at_a_time: Mutex<()>,
}

/// What became of the endpoints, each list by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// not there before
    pub added: Vec<String>,
    /// there no more
    pub removed: Vec<String>,
    /// now at another address or of another role: their targets are new ones
    pub replaced: Vec<String>,
    /// in other ranks, models, labels, checks, breakers or dialects
    pub changed: Vec<String>,
    /// in nothing
    pub kept: Vec<String>,
}

impl Changes {
    /// Whether everything is as it was.
    pub fn is_empty(&self) -> bool {
        let Changes {
            added,
            removed,
            replaced,
            changed,
            kept: _,
        } = self;
        [added, removed, replaced, changed]
            .iter()
            .all(|names| names.is_empty())
    }
}

/// Replaces the endpoints of a proxy, before or while it serves.
#[derive(Clone)]
pub struct Reloader {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").finish_non_exhaustive()
    }
}

/// Endpoints that can be used from now on.
#[derive(Debug)]
#[must_use]
pub struct Plan {
    reloader: Reloader,
    wanted: Vec<Checked>,
}

impl Reloader {
    pub(crate) fn new(shared: Arc<Shared>) -> Reloader {
        Reloader { shared }
    }

    /// Checks pools as [`Proxy::bind`](crate::Proxy::bind) does; changes nothing.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn plan(&self, pools: &[Pool]) -> Result<Plan, Error> {
        Ok(Plan {
            reloader: self.clone(),
            wanted: Checked::all(pools)?,
        })
    }
}

impl Plan {
    /// Makes them the proxy's endpoints: for policies it is one change of the fleet.
    pub fn apply(self) -> Changes {
        let shared = &self.reloader.shared;
        shared.engines.replace(&shared.core.fleet, self.wanted)
    }
}

impl Roster {
    /// The first engines.
    pub(crate) fn enrol(pools: &[Pool], fleet: &Fleet) -> Result<Roster, Error> {
        let roster = Roster::default();
        // Before the fleet sees any: a bad url must not leave targets behind.
        roster.replace(fleet, Checked::all(pools)?);
        Ok(roster)
    }

    /// Follows them.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Engines>> {
        self.now.subscribe()
    }

    /// Whoever decides must find the engine of its target. So those that come are published before the
    /// fleet has them, and those that leave stay until it has them no more.
    fn replace(&self, fleet: &Fleet, wanted: Vec<Checked>) -> Changes {
        let _one_at_a_time = (self.one_at_a_time.lock()).unwrap_or_else(PoisonError::into_inner);
        let before = self.now.borrow().clone();
        let (changes, after) = fleet.revise(|fleet| {
            let Change {
                after,
                leaving,
                changes,
            } = change(&before, wanted, fleet);
            if !changes.is_empty() {
                let both = leaving.into_iter().chain(after.iter().cloned());
                self.now.send_replace(Arc::new(Engines::of(both)));
            }
            (changes, after)
        });
        if !changes.is_empty() {
            self.now.send_replace(Arc::new(Engines::of(after)));
        }
        changes
    }
}

/// An engine and its targets.
type Ranks = (Arc<Engine>, Arc<Vec<Target>>);

#[derive(Default)]
struct Change {
    after: Vec<Ranks>,
    /// and those that are gone with it
    leaving: Vec<Ranks>,
    changes: Changes,
}

fn change(before: &Engines, wanted: Vec<Checked>, fleet: &mut Revision) -> Change {
    let mut old: HashMap<&str, &Arc<Engine>> = before
        .iter()
        .map(|engine| (engine.name(), engine))
        .collect();
    let mut change = Change::default();
    let Change {
        after,
        leaving,
        changes,
    } = &mut change;
    fleet.forget();
    for said in wanted {
        let name = said.endpoint.name.clone();
        let engine = match old.remove(name.as_str()) {
            Some(was) if was.said == said => {
                changes.kept.push(name);
                was.clone()
            }
            Some(was) if was.said.address == said.address && was.said.role == said.role => {
                leaving.push(ranks(was));
                changes.changed.push(name);
                Arc::new(describe_anew(was, said, fleet))
            }
            Some(was) => {
                leaving.push(remove(was, fleet));
                changes.replaced.push(name);
                Arc::new(add(said, fleet))
            }
            None => {
                changes.added.push(name);
                Arc::new(add(said, fleet))
            }
        };
        after.push(ranks(&engine));
    }
    for engine in before.iter().filter(|e| old.contains_key(e.name())) {
        changes.removed.push(engine.name().to_owned());
        leaving.push(remove(engine, fleet));
    }
    change
}

fn ranks(engine: &Arc<Engine>) -> Ranks {
    (engine.clone(), engine.server.targets.load_full())
}

fn add(said: Checked, fleet: &mut Revision) -> Engine {
    let targets = (0..said.endpoint.ranks)
        .map(|rank| fleet.add(said.spec(rank)))
        .collect();
    Engine {
        server: Arc::new(Server {
            breaker: Breaker::new(said.breaker),
            targets: ArcSwap::from_pointee(targets),
        }),
        said,
    }
}

fn remove(engine: &Arc<Engine>, fleet: &mut Revision) -> Ranks {
    let (engine, targets) = ranks(engine);
    targets.iter().for_each(|&target| fleet.remove(target));
    (engine, targets)
}

/// The same server, of which something else is said: its ranks keep their numbers and their condition,
/// new ones are in the condition that the server is in.
fn describe_anew(was: &Engine, said: Checked, fleet: &mut Revision) -> Engine {
    let mut targets = Vec::clone(&was.server.targets.load());
    let ranks = said.endpoint.ranks;
    for surplus in targets.split_off(targets.len().min(ranks as usize)) {
        fleet.remove(surplus);
    }
    for (rank, &target) in (0..).zip(&targets) {
        if said.spec(rank) != was.said.spec(rank) {
            fleet.respec(target, said.spec(rank));
        }
    }
    let standing = targets.first().and_then(|&first| fleet.standing(first));
    let draining = (targets.iter()).all(|&target| {
        fleet
            .standing(target)
            .is_some_and(|standing| standing.draining)
    });
    for rank in (0..ranks).skip(targets.len()) {
        let target = fleet.add(said.spec(rank));
        fleet.set(target, |new| {
            if let Some(like) = standing {
                (new.healthy, new.closed) = (like.healthy, like.closed);
                new.draining = draining;
            }
        });
        targets.push(target);
    }
    was.server.targets.store(Arc::new(targets));
    was.server.breaker.set(said.breaker);
    Engine {
        server: was.server.clone(),
        said,
    }
}
