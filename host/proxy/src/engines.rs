//! The engine servers, as all threads see them.

use crate::breaker::Breaker;
use crate::error::Error;
use crate::settings::{Endpoint, Health, Pool};
use crate::upstream::Head;
use http::header::{HOST, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Uri};
use pointsman_core::{Fleet, Roles, Target, TargetSpec, hash_text};
use pointsman_request::Dialect;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// One engine server: all its ranks share its connections, its health and its breaker.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) name: String,
    pub(crate) dialect: Dialect,
    pub(crate) targets: Vec<Target>,
    pub(crate) health: Option<Health>,
    pub(crate) breaker: Breaker,
    /// for `Host`
    authority: HeaderValue,
    host: Host,
    port: u16,
    /// put before every path; no '/' at its end
    prefix: String,
}

#[derive(Debug)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl Engine {
    fn new(pool: &Pool, endpoint: &Endpoint, targets: Vec<Target>) -> Result<Engine, Error> {
        let bad = |problem| Error::Url {
            endpoint: endpoint.name.clone(),
            url: endpoint.url.clone(),
            problem,
        };
        let url: Uri =
            (endpoint.url.parse()).map_err(|_| bad("is none: write http://host:port"))?;
        match url.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(bad(
                    "is https, which is not supported: put a TLS sidecar before the engine, or use http",
                ));
            }
            Some(_) | None => return Err(bad("does not begin with http://")),
        }
        if url.query().is_some() {
            return Err(bad(
                "has a query, which no request could keep: leave it out",
            ));
        }
        let authority = url.authority().ok_or_else(|| bad("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("holds a user name: send credentials as a header"));
        }
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        Ok(Engine {
            name: endpoint.name.clone(),
            dialect: pool.dialect,
            targets,
            health: pool.health.clone(),
            breaker: Breaker::new(pool.breaker),
            authority: HeaderValue::from_str(authority.as_str())
                .map_err(|_| bad("has a host that fits no header"))?,
            host: match host.parse() {
                Ok(address) => Host::Address(address),
                Err(_) => Host::Name(host.to_owned()),
            },
            port: authority.port_u16().unwrap_or(80),
            prefix: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// A new connection, ready to be used.
    pub(crate) async fn connect(&self, limit: Duration) -> std::io::Result<TcpStream> {
        let connecting = async {
            match &self.host {
                Host::Address(ip) => TcpStream::connect(SocketAddr::new(*ip, self.port)).await,
                Host::Name(name) => TcpStream::connect((name.as_str(), self.port)).await,
            }
        };
        let stream = tokio::time::timeout(limit, connecting).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// The head of a request for `path`, as far as this server makes it up.
    pub(crate) fn head(&self, method: &Method, path: &PathAndQuery) -> Head {
        // '*' of OPTIONS has no path to be put before
        let rest = match path.as_str() {
            "*" if !self.prefix.is_empty() => "",
            rest => rest,
        };
        let prefix = match self.prefix.as_str() {
            "" if rest.starts_with('?') => "/",
            prefix => prefix,
        };
        let mut head = Head::new(method, prefix, rest);
        head.line(&HOST, self.authority.as_bytes());
        head
    }

    /// A request failed here: enough in a row take all its targets out.
    pub(crate) fn failed(&self, fleet: &Fleet) {
        if self.breaker.failure() {
            tracing::warn!(
                endpoint = self.name,
                "breaker open: too many failures in a row"
            );
            fleet.set(&self.targets, |standing| standing.closed = false);
        }
    }

    /// Lets requests in again, on trial, if the breaker has cooled down.
    pub(crate) fn try_close(&self, fleet: &Fleet) {
        if self.breaker.try_close() {
            tracing::info!(endpoint = self.name, "breaker closed, on trial");
            fleet.set(&self.targets, |standing| standing.closed = true);
        }
    }
}

/// Every engine, and whose a target is. Their places are the same on every thread.
#[derive(Debug)]
pub(crate) struct Engines {
    list: Vec<Arc<Engine>>,
    place: HashMap<Target, usize>,
}

impl Engines {
    /// Makes the configured endpoints part of the fleet, in order.
    pub(crate) fn enrol(pools: &[Pool], fleet: &Fleet) -> Result<Engines, Error> {
        check(pools)?;
        let mut engines = Engines {
            list: Vec::new(),
            place: HashMap::new(),
        };
        for pool in pools {
            for endpoint in &pool.endpoints {
                // Before the fleet sees it: a bad url must not leave targets behind.
                Engine::new(pool, endpoint, Vec::new())?;
            }
        }
        for pool in pools {
            for endpoint in &pool.endpoints {
                let targets: Vec<Target> = (0..endpoint.ranks)
                    .map(|rank| fleet.add(spec(pool, endpoint, rank)))
                    .collect();
                let place = engines.list.len();
                engines
                    .place
                    .extend(targets.iter().map(|&target| (target, place)));
                engines
                    .list
                    .push(Arc::new(Engine::new(pool, endpoint, targets)?));
            }
        }
        Ok(engines)
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

fn spec(pool: &Pool, endpoint: &Endpoint, rank: u32) -> TargetSpec {
    TargetSpec {
        endpoint: pointsman_core::Endpoint {
            name: format!("{}/{rank}", endpoint.name),
            url: endpoint.url.clone(),
            rank,
            labels: endpoint.labels.clone(),
        },
        roles: Roles::only(pool.role),
        models: (endpoint.models.as_ref())
            .map(|models| models.iter().map(|model| hash_text(model)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_core::Phase;

    fn pool(url: &str) -> Pool {
        Pool {
            name: "main".to_owned(),
            role: Phase::Serve,
            dialect: Dialect::OpenAi,
            endpoints: vec![Endpoint {
                name: "a".to_owned(),
                url: url.to_owned(),
                ranks: 2,
                models: None,
                labels: Vec::new(),
            }],
            health: None,
            breaker: crate::settings::Breaker::default(),
        }
    }

    fn asks(url: &str, path: &'static str) -> String {
        let fleet = Fleet::default();
        let engines = Engines::enrol(&[pool(url)], &fleet).unwrap();
        let path = PathAndQuery::from_static(path);
        let head = engines.iter().next().unwrap().head(&Method::GET, &path);
        let text = std::str::from_utf8(head.text()).unwrap();
        text.split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn the_path_of_the_base_url_comes_before_that_of_the_request() {
        assert_eq!(asks("http://h:1", "/v1/models?x=1"), "/v1/models?x=1");
        assert_eq!(asks("http://h:1/", "/v1/models"), "/v1/models");
        assert_eq!(asks("http://h:1/engine/a/", "/v1?x"), "/engine/a/v1?x");
        assert_eq!(asks("http://h:1/engine", "*"), "/engine");
        assert_eq!(asks("http://h:1", "*"), "*");
        assert_eq!(asks("http://h:1", "?x"), "/?x");
    }

    #[test]
    fn a_url_that_cannot_be_asked_is_refused_before_anything_starts() {
        for url in [
            "https://h",
            "h:1",
            "ftp://h",
            "http://u@h",
            "http://h/?q",
            "",
            "/a",
        ] {
            let fleet = Fleet::default();
            assert!(Engines::enrol(&[pool(url)], &fleet).is_err(), "{url}");
            assert_eq!(fleet.snapshot().targets().count(), 0);
        }
    }

    #[test]
    fn an_endpoints_name_is_its_own() {
        let mut twice = pool("http://h");
        twice.endpoints.push(twice.endpoints[0].clone());
        let error = Engines::enrol(&[twice], &Fleet::default()).unwrap_err();
        assert!(matches!(error, Error::Twice(name) if name == "a"));
    }
}
