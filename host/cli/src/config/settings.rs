//! From the file to the parts: checks what a type cannot say, and fills the proxy's settings.

use super::{Config, Dialect, Fallback, Limits, Pool, Role};
use anyhow::{Context, Result, bail, ensure};
use pointsman_proxy as proxy;
use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

impl Config {
    /// Values that are impossible, each with the key, what was wanted and what was found.
    pub(super) fn check(&self) -> Result<()> {
        let policy = &self.policy;
        range("policy.time_limit_ms", policy.time_limit_ms, 1, 10_000)?;
        range("policy.memory_limit_mb", policy.memory_limit_mb, 1, 4096)?;
        range("bindings.max", self.bindings.max as u64, 1, 100_000_000)?;
        range("retry.attempts", u64::from(self.retry.attempts), 1, 16)?;
        range("listen.threads", self.listen.threads as u64, 0, 1024)?;
        time("bindings.ttl", self.bindings.ttl, false)?;
        self.limits.check()?;
        range("recorder.keep", self.recorder.keep as u64, 0, 4096)?;
        range("profile.keep", self.profile.keep as u64, 1, 1000)?;
        ensure!(
            !self.pools.is_empty(),
            "no [[pool]]: wanted at least one, with the engines to route to"
        );
        ensure!(
            self.listen.address != self.admin.address || self.listen.address.port() == 0,
            "listen.address and admin.address are both {}: the admin side needs its own",
            self.listen.address
        );
        let mut pools = HashSet::new();
        let mut endpoints = HashSet::new();
        for (pool, at) in self.pools.iter().zip(0..) {
            ensure!(
                pools.insert(&pool.name),
                "pool[{at}].name = {:?}: there is another pool of this name",
                pool.name
            );
            pool.check(at, &mut endpoints)?;
        }
        self.check_grants()?;
        ensure!(
            self.pools.iter().any(|pool| pool.role == Role::Serve),
            "no pool with role = \"serve\": prefill and decode pools alone are not served yet"
        );
        // Urls, header names, JSON pointers.
        Ok(self.settings(0).check()?)
    }

    /// What can be used, and hardly does what was meant.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.deployment_warnings();
        warnings.extend(self.driving_warnings());
        for pool in &self.pools {
            let name = &pool.name;
            if pool.role != Role::Serve {
                warnings.push(format!(
                    "pool {name:?}: pools for prefill or decode get no requests yet"
                ));
            }
            let ranks = pool.endpoints.iter().any(|endpoint| endpoint.ranks > 1);
            if ranks && matches!(pool.dialect, Dialect::Openai) {
                warnings.push(format!(
                    "pool {name:?}: engines of dialect \"openai\" are not told the rank, so that \
                     ranks above 1 only count load: set dialect to \"vllm\", \"sglang\" or \"atom\", or \
                     ranks to 1"
                ));
            }
        }
        warnings
    }

    /// For the data plane. `nonce` tells this start from every other one.
    pub fn settings(&self, nonce: u64) -> proxy::Settings {
        let defaults = proxy::Settings::default();
        proxy::Settings {
            listen: self.listen.address,
            admin: self.admin.address,
            threads: self.listen.threads,
            session: self.identity(),
            explicit_header: match &self.session.explicit_header {
                None => defaults.explicit_header.clone(),
                Some(name) => (!name.is_empty()).then(|| name.clone()),
            },
            explain: self.session.explain.unwrap_or(defaults.explain),
            pools: self.pools.iter().map(Pool::settings).collect(),
            fallback: match self.policy.fallback {
                Fallback::LeastLoad => pointsman_core::Fallback::LeastLoad,
                Fallback::Reject => pointsman_core::Fallback::Reject,
            },
            attempts: self.retry.attempts,
            limits: self.proxy_limits(),
            timeouts: self.timeouts(),
            nonce,
            ..defaults
        }
    }

    /// For the affinity table.
    pub fn table(&self) -> pointsman_core::Limits {
        pointsman_core::Limits {
            max: self.bindings.max,
            ttl_ms: millis(self.bindings.ttl),
            when_full: self.bindings.when_full.into(),
        }
    }

    /// For the policy's calls.
    pub fn policy_limits(&self) -> pointsman_runtime::Limits {
        pointsman_runtime::Limits {
            time_ms: self.policy.time_limit_ms,
            memory_mb: self.policy.memory_limit_mb,
        }
    }

    /// Its configuration, as JSON.
    pub fn policy_config(&self) -> Result<String> {
        serde_json::to_string(&self.policy.config).context("policy.config has no JSON form")
    }

    /// The models that endpoints name, each once.
    pub fn models(&self) -> Vec<String> {
        let endpoints = self.pools.iter().flat_map(|pool| &pool.endpoints);
        let models: BTreeSet<&String> = endpoints
            .filter_map(|e| e.models.as_ref())
            .flatten()
            .collect();
        models.into_iter().cloned().collect()
    }

    fn identity(&self) -> proxy::Session {
        let given = &self.session;
        let defaults = proxy::Session::default();
        let lists = match (&given.headers, &given.parent_headers) {
            (None, None) => defaults.clone(),
            (headers, parents) => {
                let all = |list: fn(&proxy::Harness) -> &Vec<String>| {
                    let mut names: Vec<String> =
                        defaults.harnesses.iter().flat_map(list).cloned().collect();
                    let mut seen = HashSet::new();
                    names.retain(|name| seen.insert(name.clone()));
                    names
                };
                proxy::Session::lists(
                    headers.clone().unwrap_or_else(|| all(|h| &h.session)),
                    parents.clone().unwrap_or_else(|| all(|h| &h.parent)),
                )
            }
        };
        proxy::Session {
            final_headers: given
                .final_headers
                .clone()
                .unwrap_or(defaults.final_headers),
            cookies: given.cookies.clone().unwrap_or(defaults.cookies),
            body: given.body.clone().unwrap_or(defaults.body),
            forward: given.forward.clone().or(defaults.forward),
            ..lists
        }
    }

    fn proxy_limits(&self) -> proxy::Limits {
        let defaults = proxy::Limits::default();
        let given = &self.limits;
        proxy::Limits {
            inspect_bytes: given.inspect_bytes.unwrap_or(defaults.inspect_bytes),
            inspect_total_bytes: (given.inspect_total_bytes)
                .unwrap_or(defaults.inspect_total_bytes),
            body_bytes: given.body_bytes.unwrap_or(defaults.body_bytes),
            header_bytes: given.header_bytes.unwrap_or(defaults.header_bytes),
            requests: given.requests_per_thread.unwrap_or(defaults.requests),
            connections: (given.connections_per_thread).unwrap_or(defaults.connections),
            idle_connections: (given.idle_connections_per_thread)
                .unwrap_or(defaults.idle_connections),
        }
    }

    fn timeouts(&self) -> proxy::Timeouts {
        let defaults = proxy::Timeouts::default();
        let given = &self.limits;
        proxy::Timeouts {
            connect: given.connect.unwrap_or(defaults.connect),
            first_byte: given.first_byte.unwrap_or(defaults.first_byte),
            idle_stream: given.idle.unwrap_or(defaults.idle_stream),
            client: given.client.unwrap_or(defaults.client),
            idle_connection: given.idle_connection.unwrap_or(defaults.idle_connection),
            shutdown: given.shutdown.unwrap_or(defaults.shutdown),
        }
    }
}

impl Limits {
    fn check(&self) -> Result<()> {
        let sizes = [
            ("inspect_bytes", self.inspect_bytes, 0, 1 << 30),
            ("inspect_total_bytes", self.inspect_total_bytes, 0, 1 << 40),
            ("header_bytes", self.header_bytes, 8 << 10, 16 << 20),
            (
                "requests_per_thread",
                self.requests_per_thread,
                1,
                1_000_000,
            ),
            (
                "connections_per_thread",
                self.connections_per_thread,
                1,
                1_000_000,
            ),
            (
                "idle_connections_per_thread",
                self.idle_connections_per_thread,
                0,
                65_536,
            ),
        ];
        for (key, found, low, high) in sizes {
            if let Some(found) = found {
                range(&format!("limits.{key}"), found as u64, low, high)?;
            }
        }
        if let Some(found) = self.body_bytes {
            range("limits.body_bytes", found, 1, 1 << 40)?;
        }
        let times = [
            ("connect", self.connect, false),
            ("first_byte", self.first_byte, true),
            ("idle", self.idle, true),
            ("client", self.client, false),
            ("idle_connection", self.idle_connection, false),
            ("shutdown", self.shutdown, true),
        ];
        for (key, found, may_be_none) in times {
            if let Some(found) = found {
                time(&format!("limits.{key}"), found, may_be_none)?;
            }
        }
        Ok(())
    }
}

impl Pool {
    fn check<'a>(&'a self, at: usize, seen: &mut HashSet<&'a String>) -> Result<()> {
        ensure!(
            !self.endpoints.is_empty(),
            "pool[{at}].endpoints is empty: wanted at least one engine"
        );
        for (endpoint, n) in self.endpoints.iter().zip(0..) {
            let key = format!("pool[{at}].endpoints[{n}]");
            let name = &endpoint.name;
            ensure!(
                !name.is_empty()
                    && !name.contains('/')
                    && name.chars().all(|c| c.is_ascii_graphic()),
                "{key}.name = {name:?}: wanted visible ASCII without \"/\", which separates the rank"
            );
            ensure!(
                seen.insert(name),
                "{key}.name = {name:?}: there is another endpoint of this name"
            );
            range(&format!("{key}.ranks"), u64::from(endpoint.ranks), 1, 1024)?;
            if endpoint.models.as_ref().is_some_and(Vec::is_empty) {
                bail!(
                    "{key}.models is empty: leave it out for an endpoint that serves every model"
                );
            }
        }
        if let Some(health) = &self.health {
            ensure!(
                health.path.starts_with('/'),
                "pool[{at}].health.path = {:?}: wanted a path that starts with \"/\"",
                health.path
            );
            time(
                &format!("pool[{at}].health.interval"),
                health.interval,
                false,
            )?;
            time(&format!("pool[{at}].health.timeout"), health.timeout, false)?;
        }
        if let Some(driver) = &self.driver {
            driver.check(&format!("pool[{at}].driver"))?;
        }
        self.check_deployment(at)?;
        time(
            &format!("pool[{at}].breaker.cooldown"),
            self.breaker.cooldown,
            true,
        )?;
        Ok(())
    }

    fn settings(&self) -> proxy::Pool {
        proxy::Pool {
            name: self.name.clone(),
            role: self.role.into(),
            dialect: match self.dialect {
                Dialect::Vllm => proxy::Dialect::Vllm,
                Dialect::Sglang => proxy::Dialect::Sglang,
                Dialect::Atom => proxy::Dialect::Atom,
                Dialect::Openai => proxy::Dialect::OpenAi,
            },
            endpoints: (self.endpoints.iter())
                .map(|endpoint| proxy::Endpoint {
                    name: endpoint.name.clone(),
                    url: endpoint.url.clone(),
                    ranks: endpoint.ranks,
                    models: endpoint.models.clone(),
                    labels: endpoint.labels.clone().into_iter().collect(),
                })
                .collect(),
            health: self.health.as_ref().map(|health| proxy::Health {
                path: health.path.clone(),
                interval: health.interval,
                timeout: health.timeout,
                ..proxy::Health::default()
            }),
            breaker: proxy::Breaker {
                failures: self.breaker.failures,
                cooldown: self.breaker.cooldown,
            },
        }
    }
}

pub(super) fn range(key: &str, found: u64, low: u64, high: u64) -> Result<()> {
    ensure!(
        (low..=high).contains(&found),
        "{key} = {found}: wanted {low} to {high}"
    );
    Ok(())
}

/// Longer ones are mistakes, and clocks would overflow.
const LONGEST: Duration = Duration::from_secs(1000 * 24 * 60 * 60);

fn time(key: &str, found: Duration, may_be_zero: bool) -> Result<()> {
    let low = if may_be_zero { "0s" } else { "more than 0s" };
    ensure!(
        found <= LONGEST && (may_be_zero || !found.is_zero()),
        "{key} = {found:?}: wanted {low}, and at most 1000 days"
    );
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
