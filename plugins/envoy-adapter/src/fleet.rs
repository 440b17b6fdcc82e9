//! The fleet of a configuration, numbered for all VMs alike.

use crate::config::{Config, Endpoint};
use crate::shared::Shared;
use pointsman_core::{Core, Roles, Target, TargetSpec, hash_text};
use pointsman_request::Dialect;

const NAMES: &str = "pointsman/targets";
const STANDING: &str = "pointsman/standing";
/// Names that the store remembers; more targets than this at all times together are refused.
const MAX_NAMES: usize = 65_536;

/// How a target is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// `ip:port`
    pub address: String,
    /// how it is told the rank
    pub dialect: Dialect,
    /// its rank
    pub rank: u32,
    /// the same for all that have the same address
    pub(crate) server: usize,
}

/// The targets' ways, by number; none: not of this configuration.
pub(crate) type Ways = Vec<Option<Way>>;

/// Puts the configured targets into the fleet. Bindings speak of numbers, and outlive this
/// configuration: a name keeps its number in all that follow, as long as Envoy runs.
pub(crate) fn fill(core: &Core, config: &Config, shared: &impl Shared) -> Result<Ways, String> {
    let wanted: Vec<(String, &Endpoint, u32)> = (config.endpoints.iter())
        .flat_map(|e| (0..e.ranks).map(move |n| (e, e.first_rank.saturating_add(n))))
        .map(|(endpoint, rank)| (id(endpoint, rank), endpoint, rank))
        .collect();
    let names = number(shared, wanted.iter().map(|(id, _, _)| id.as_str()))?;
    let mut ways = Vec::new();
    let (mut gone, mut absent) = (Vec::new(), Vec::new());
    for name in &names {
        let found = wanted.iter().find(|(id, _, _)| id == name);
        let target = core.fleet.add(spec(name, found));
        match found {
            None => gone.push(target),
            Some((_, endpoint, _)) if endpoint.absent => absent.push(target),
            Some(_) => {}
        }
        ways.push(found.map(|(_, endpoint, rank)| {
            Way {
                address: endpoint.address.clone(),
                dialect: endpoint.dialect.into(),
                rank: *rank,
                server: (config.endpoints.iter())
                    .position(|other| other.address == endpoint.address)
                    .unwrap_or(usize::MAX),
            }
        }));
    }
    // A name that comes twice is one target after the other: the later one has replaced the first.
    let revived: Vec<Target> = (0..)
        .zip(&names)
        .filter(|(_, name)| wanted.iter().any(|(id, e, _)| id == *name && !e.absent))
        .map(|(target, _)| target)
        .collect();
    core.fleet.set(&gone, |standing| standing.removed = true);
    core.fleet.set(&absent, |standing| standing.removed = true);
    core.fleet
        .set(&revived, |standing| standing.removed = false);
    Ok(ways)
}

fn id(endpoint: &Endpoint, rank: u32) -> String {
    let instance = endpoint.instance.as_deref().unwrap_or_default();
    format!("{}/{rank}\t{instance}", endpoint.name)
}

fn spec(id: &str, found: Option<&(String, &Endpoint, u32)>) -> TargetSpec {
    let name = id.split('\t').next().unwrap_or_default();
    let Some((_, endpoint, rank)) = found else {
        return TargetSpec {
            endpoint: pointsman_core::Endpoint {
                name: name.to_owned(),
                url: String::new(),
                rank: 0,
                labels: Vec::new(),
            },
            roles: Roles::ALL,
            models: None,
        };
    };
    let models = endpoint.models.as_ref();
    TargetSpec {
        endpoint: pointsman_core::Endpoint {
            name: name.to_owned(),
            url: format!("http://{}", endpoint.address),
            rank: *rank,
            labels: endpoint.labels.clone().into_iter().collect(),
        },
        roles: endpoint.role.roles(),
        models: models.map(|models| models.iter().map(|model| hash_text(model)).collect()),
    }
}

/// All names in the order of their numbers, with these among them.
fn number<'a>(
    shared: &impl Shared,
    wanted: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    shared.change(NAMES, |value| {
        let text = String::from_utf8(value).unwrap_or_default();
        names = text.lines().map(str::to_owned).collect();
        let known = names.len();
        for name in wanted.clone() {
            if !names.iter().any(|have| have == name) {
                names.push(name.to_owned());
            }
        }
        (names.len() > known).then(|| names.join("\n").into_bytes())
    });
    if names.len() > MAX_NAMES {
        return Err(format!(
            "{} targets since Envoy started: at most {MAX_NAMES} are told apart, start it anew",
            names.len()
        ));
    }
    Ok(names)
}

/// What is known of the targets' conditions, by number: bits of [`pointsman_core::Standing`]. Written
/// by whoever watches over the engines; every VM follows it.
#[derive(Debug, Default)]
pub(crate) struct Standings {
    seen: std::cell::RefCell<Vec<u8>>,
}

/// Bits of a standing that is known; 0: nothing is, as configured.
pub(crate) const KNOWN: u8 = 1;
pub(crate) const DOWN: u8 = 2;
pub(crate) const DRAINING: u8 = 4;
pub(crate) const REMOVED: u8 = 8;

impl Standings {
    /// Takes over what changed; returns whether anything did.
    pub(crate) fn follow(&self, shared: &impl Shared, core: &Core) -> bool {
        let (Some(now), _) = shared.get(STANDING) else {
            return false;
        };
        let mut seen = self.seen.borrow_mut();
        if *seen == now {
            return false;
        }
        for (target, &bits) in (0..).zip(&now) {
            if bits & KNOWN != 0 {
                core.fleet.set(&[target], |standing| {
                    standing.healthy = bits & DOWN == 0;
                    standing.draining = bits & DRAINING != 0;
                    standing.removed = bits & REMOVED != 0;
                });
            }
        }
        *seen = now;
        true
    }
}

/// Says a target's condition to all VMs.
pub(crate) fn stand(shared: &impl Shared, target: Target, change: impl Fn(u8) -> u8) {
    shared.change(STANDING, |mut value| {
        let at = target as usize;
        if value.len() <= at {
            value.resize(at + 1, 0);
        }
        if let Some(bits) = value.get_mut(at) {
            *bits = change(*bits) | KNOWN;
        }
        Some(value)
    });
}
