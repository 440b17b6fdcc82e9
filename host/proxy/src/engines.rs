//! The engine servers, as all threads see them.

use crate::address::Address;
use crate::breaker::Breaker;
use crate::error::Error;
use crate::settings::{self, Endpoint, Health, Pool};
use arc_swap::ArcSwap;
use http::uri::PathAndQuery;
use pointsman_core::{Fleet, Phase, Roles, Target, TargetSpec, hash_text};
use pointsman_request::Dialect;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// An endpoint that can be used, with what its pool says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: Address,
    pub(crate) role: Phase,
    pub(crate) dialect: Dialect,
    pub(crate) health: Option<Health>,
    pub(crate) breaker: settings::Breaker,
}

impl Checked {
    /// Every endpoint of the pools, in order.
    ///
    /// # Errors
    /// The first thing that cannot be used.
    pub(crate) fn all(pools: &[Pool]) -> Result<Vec<Checked>, Error> {
        check(pools)?;
        let endpoints = (pools.iter())
            .flat_map(|pool| pool.endpoints.iter().map(move |endpoint| (pool, endpoint)));
        endpoints
            .map(|(pool, endpoint)| {
                Ok(Checked {
                    address: Address::of(endpoint)?,
                    endpoint: endpoint.clone(),
                    role: pool.role,
                    dialect: pool.dialect,
                    health: pool.health.clone(),
                    breaker: pool.breaker,
                })
            })
            .collect()
    }

    /// As the fleet knows one of its ranks.
    pub(crate) fn spec(&self, rank: u32) -> TargetSpec {
        let Endpoint {
            name,
            url,
            models,
            labels,
            ..
        } = &self.endpoint;
        TargetSpec {
            endpoint: pointsman_core::Endpoint {
                name: format!("{name}/{rank}"),
                url: url.clone(),
                rank,
                labels: labels.clone(),
            },
            roles: Roles::only(self.role),
            models: (models.as_ref())
                .map(|models| models.iter().map(|model| hash_text(model)).collect()),
        }
    }
}

/// What stays of an engine server as long as its address does, whatever else is said of it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) breaker: Breaker,
    /// its ranks, in order
    pub(crate) targets: ArcSwap<Vec<Target>>,
}

/// One engine server: all its ranks share its connections, its health and its breaker.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) said: Checked,
    pub(crate) server: Arc<Server>,
}

impl Engine {
    pub(crate) fn name(&self) -> &str {
        &self.said.endpoint.name
    }

    /// A request ended well here.
    pub(crate) fn succeeded(&self) {
        self.server.breaker.success();
    }

    /// A request failed here: enough in a row take all its targets out.
    pub(crate) fn failed(&self, fleet: &Fleet) {
        if self.server.breaker.failure() {
            tracing::warn!(
                endpoint = self.name(),
                "breaker open: too many failures in a row"
            );
            fleet.set(&self.server.targets.load(), |standing| {
                standing.closed = false;
            });
        }
    }

    /// Lets requests in again, on trial, if the breaker has cooled down.
    pub(crate) fn try_close(&self, fleet: &Fleet) {
        if self.server.breaker.try_close() {
            tracing::info!(endpoint = self.name(), "breaker closed, on trial");
            fleet.set(&self.server.targets.load(), |standing| {
                standing.closed = true;
            });
        }
    }

    /// What its health check says. Returns whether that is news.
    pub(crate) fn set_healthy(&self, fleet: &Fleet, healthy: bool) -> bool {
        fleet.set(&self.server.targets.load(), |standing| {
            standing.healthy = healthy;
        })
    }
}

/// Every engine, and whose a target is.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    list: Vec<Arc<Engine>>,
    place: HashMap<Target, usize>,
}

impl Engines {
    /// These engines with their targets. An earlier one's target may also be a later one's, who then
    /// has it.
    pub(crate) fn of(all: impl IntoIterator<Item = (Arc<Engine>, Arc<Vec<Target>>)>) -> Engines {
        let mut engines = Engines::default();
        for (engine, targets) in all {
            let at = engines.list.len();
            engines
                .place
                .extend(targets.iter().map(|&target| (target, at)));
            engines.list.push(engine);
        }
        engines
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Engine>> {
        self.list.iter()
    }

    /// The place of a target's engine in [`Engines::iter`].
    pub(crate) fn place_of(&self, target: Target) -> Option<usize> {
        self.place.get(&target).copied()
    }
}

fn check(pools: &[Pool]) -> Result<(), Error> {
    for pool in pools {
        let path = pool.health.as_ref().map_or("/", |health| &health.path);
        if !path.starts_with('/') || path.parse::<PathAndQuery>().is_err() {
            return Err(Error::HealthPath {
                pool: pool.name.clone(),
                path: path.to_owned(),
            });
        }
    }
    let mut names = HashSet::new();
    for endpoint in pools.iter().flat_map(|pool| &pool.endpoints) {
        let name = &endpoint.name;
        if name.is_empty() || name.contains('/') {
            return Err(Error::Name(name.clone()));
        }
        if !names.insert(name) {
            return Err(Error::Twice(name.clone()));
        }
        if endpoint.ranks == 0 {
            return Err(Error::NoRanks(name.clone()));
        }
    }
    Ok(())
}
