//! The drivers that a configuration names, and which policy is granted which; as they are kept, opened and
//! ended when it is another one.

use crate::config::{Config, Driver, DriverKind, Role};
use anyhow::{Context, Result};
use pointsman_core::Phase;
use pointsman_engine::{Desk, HttpDialect, HttpDriver, Library, Limits, NullDriver};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An engine's driver. Whoever has it may go on with it after its end: it is closed when the last one
/// lets go, on a thread of its own.
#[derive(Debug)]
pub struct Seat {
    pub phase: Phase,
    pub desk: Desk,
    said: Said,
}

/// What a driver is opened for: as long as it is the same, so is the driver.
#[derive(Debug, PartialEq)]
struct Said {
    url: String,
    role: Role,
    /// its settings
    driver: Value,
}

/// All drivers, by endpoint, and the endpoints of each policy, by its name.
#[derive(Debug, Default)]
pub struct Seats {
    pub all: BTreeMap<String, Arc<Seat>>,
    pub grants: BTreeMap<String, BTreeSet<String>>,
}

/// What became of the drivers, by endpoint.
#[derive(Debug, Default)]
pub struct Changes {
    pub opened: Vec<String>,
    pub ended: Vec<String>,
    pub kept: Vec<String>,
}

impl Seats {
    /// Those that the configuration names: of `before` what stays, the others opened; nothing is sent to
    /// an engine yet.
    pub fn of(config: &Config, before: &Seats) -> Result<Seats> {
        let mut all = BTreeMap::new();
        for pool in &config.pools {
            let Some(driver) = &pool.driver else { continue };
            let mut library = None;
            for endpoint in &pool.endpoints {
                let (name, url) = (&endpoint.name, &endpoint.url);
                let said = Said {
                    url: url.clone(),
                    role: pool.role,
                    driver: serde_json::to_value(driver)?,
                };
                let seat = match before.all.get(name).filter(|seat| seat.said == said) {
                    Some(seat) => seat.clone(),
                    None => Arc::new(Seat {
                        phase: pool.role.into(),
                        desk: desk(config, driver, name, url, &mut library)
                            .with_context(|| format!("the driver of pool {:?}", pool.name))?,
                        said,
                    }),
                };
                all.insert(name.clone(), seat);
            }
        }
        let grants = grants(config, &all);
        Ok(Seats { all, grants })
    }

    /// Whether any policy is granted this endpoint.
    pub fn is_granted(&self, endpoint: &str) -> bool {
        self.grants.values().any(|names| names.contains(endpoint))
    }

    /// What is another than before.
    pub fn since(&self, before: &Seats) -> Changes {
        let mut changes = Changes::default();
        for (name, seat) in &self.all {
            match before.all.get(name) {
                Some(was) if Arc::ptr_eq(was, seat) => changes.kept.push(name.clone()),
                _ => changes.opened.push(name.clone()),
            }
        }
        let stays = |(name, seat): &(&String, &Arc<Seat>)| {
            (self.all.get(*name)).is_some_and(|now| Arc::ptr_eq(now, seat))
        };
        let ended = before.all.iter().filter(|entry| !stays(entry));
        changes.ended = ended.map(|(name, _)| name.clone()).collect();
        changes
    }
}

fn grants(
    config: &Config,
    seats: &BTreeMap<String, Arc<Seat>>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut grants: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for grant in &config.grants {
        let of = grants.entry(grant.policy.clone()).or_default();
        match grant.engines.iter().any(|name| name == "*") {
            true => of.extend(seats.keys().cloned()),
            false => of.extend(grant.engines.iter().cloned()),
        }
    }
    grants
}

/// `library`: the pool's own, once it is loaded. Each load is tried in a process of its own first: not for
/// every endpoint again.
fn desk(
    config: &Config,
    driver: &Driver,
    name: &str,
    url: &str,
    library: &mut Option<Library>,
) -> Result<Desk> {
    let limits = Limits {
        deadline: driver.deadline,
        ..Limits::default()
    };
    let dialect = match driver.kind {
        DriverKind::Null => return Ok(Desk::open(limits, || Ok(NullDriver))),
        DriverKind::Library => {
            let path = driver
                .library
                .as_deref()
                .context("driver.library is missing")?;
            let library = match library {
                Some(library) => library.clone(),
                None => library
                    .insert(crate::library::load(&config.base.join(path))?)
                    .clone(),
            };
            // One entry serves all endpoints of a pool: the driver is told which one it drives.
            let own = told(name, url, &serde_json::to_value(&driver.config)?);
            return Ok(Desk::open(limits, move || library.open(&own)));
        }
        DriverKind::Reference => HttpDialect::Reference,
        DriverKind::Sglang => HttpDialect::Sglang,
        DriverKind::Vllm | DriverKind::Atom => HttpDialect::Vllm,
    };
    let url = url.to_owned();
    Ok(Desk::open(limits, move || HttpDriver::new(&url, dialect)))
}

/// What a library gets when it is opened: which endpoint it drives, and what is its own.
pub fn told(name: &str, url: &str, config: &Value) -> String {
    json!({ "name": name, "url": url, "config": config }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn config(text: &str) -> Config {
        Config::parse(text, PathBuf::new()).unwrap()
    }

    const NULL: &str = "driver = { kind = \"null\" }";

    fn pool(endpoints: &[(&str, &str)], more: &str) -> String {
        let endpoints: String = (endpoints.iter())
            .map(|(name, url)| format!("{{ name = {name:?}, url = {url:?} }},"))
            .collect();
        format!("[[pool]]\nname = \"p\"\nendpoints = [{endpoints}]\n{more}\n")
    }

    #[test]
    fn a_driver_stays_as_long_as_all_that_it_is_opened_for_does() {
        let ab = pool(&[("a", "http://a"), ("b", "http://b")], NULL);
        let first = Seats::of(&config(&ab), &Seats::default()).unwrap();
        let names = |changes: &Changes| {
            let Changes {
                opened,
                ended,
                kept,
            } = changes;
            format!("{opened:?} {ended:?} {kept:?}")
        };
        let after = |text: &str| {
            let next = Seats::of(&config(text), &first).unwrap();
            names(&next.since(&first))
        };
        assert_eq!(
            names(&first.since(&Seats::default())),
            r#"["a", "b"] [] []"#
        );
        assert_eq!(after(&ab), r#"[] [] ["a", "b"]"#);
        let ranks = ab.replace("http://b\" }", "http://b\", ranks = 3 }");
        assert_eq!(after(&ranks), r#"[] [] ["a", "b"]"#);
        let moved = pool(&[("a", "http://a"), ("b", "http://c")], NULL);
        assert_eq!(after(&moved), r#"["b"] ["b"] ["a"]"#);
        let later = ab.replace("\"null\"", "\"null\", deadline = \"9s\"");
        assert_eq!(after(&later), r#"["a", "b"] ["a", "b"] []"#);
        assert_eq!(after(&ab.replace(NULL, "")), r#"[] ["a", "b"] []"#);
        assert_eq!(
            after(&pool(&[("b", "http://b"), ("c", "http://c")], NULL)),
            r#"["c"] ["a"] ["b"]"#
        );
    }

    #[test]
    fn a_star_is_every_engine_that_has_a_driver() {
        let text = format!(
            "{}{}[[grant]]\npolicy = \"x\"\nengines = [\"*\"]\n\
             [[grant]]\npolicy = \"y\"\nengines = [\"b\"]\n",
            pool(&[("a", "http://a"), ("b", "http://b")], NULL),
            pool(&[("c", "http://c")], "").replace("\"p\"", "\"q\""),
        );
        let seats = Seats::of(&config(&text), &Seats::default()).unwrap();
        let of = |policy: &str| Vec::from_iter(seats.grants[policy].clone());
        assert_eq!(of("x"), ["a", "b"]);
        assert_eq!(of("y"), ["b"]);
        assert!(seats.is_granted("a") && !seats.is_granted("c"));
    }
}
