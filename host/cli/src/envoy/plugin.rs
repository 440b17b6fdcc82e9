//! From `pointsman.toml` to the plugin's configuration.

use crate::config::{Config, Dialect, Fallback, Role, WhenFull};
use anyhow::{Context, Result, bail, ensure};
use pointsman_envoy_adapter::config as adapter;
use std::net::SocketAddr;

/// Envoy has one list of addresses for a request, and the policy is asked twice: for the first one,
/// and for the one to try when that fails.
const MOST_ATTEMPTS: u32 = 2;

/// The plugin's configuration. What Envoy cannot do is an error.
pub fn plugin(config: &Config, read_body: bool) -> Result<adapter::Config> {
    let settings = config.settings(0);
    let serving = config.pools.iter().filter(|pool| pool.role == Role::Serve);
    let mut endpoints = Vec::new();
    for pool in serving {
        for endpoint in &pool.endpoints {
            endpoints.push(adapter::Endpoint {
                name: endpoint.name.clone(),
                address: address(&endpoint.url)
                    .with_context(|| format!("endpoint {:?}", endpoint.name))?,
                ranks: endpoint.ranks,
                first_rank: 0,
                role: adapter::Role::Serve,
                dialect: speaks(pool.dialect),
                models: endpoint.models.clone(),
                labels: endpoint.labels.clone(),
                instance: None,
                absent: false,
            });
        }
    }
    let table = config.table();
    ensure!(
        table.max <= 1 << 20,
        "bindings.max = {}: Envoy's shared data can hold up to 1048576",
        table.max
    );
    Ok(adapter::Config {
        route: settings.route,
        policy: serde_json::from_str(&config.policy_config()?)
            .context("policy.config has no JSON form")?,
        fallback: match config.policy.fallback {
            Fallback::LeastLoad => adapter::Fallback::LeastLoad,
            Fallback::Reject => adapter::Fallback::Reject,
        },
        endpoints,
        session: Some((&settings.session).into()),
        explicit_header: settings.explicit_header.unwrap_or_default(),
        explain: settings.explain,
        bindings: adapter::Bindings {
            max: table.max,
            ttl_ms: table.ttl_ms,
            reject_when_full: matches!(config.bindings.when_full, WhenFull::Reject),
            ..adapter::Bindings::default()
        },
        attempts: settings.attempts.min(MOST_ATTEMPTS),
        counts_attempts: true,
        read_body,
        inspect_bytes: settings.limits.inspect_bytes,
        test: None,
    })
}

/// Whether something in the configuration is found in bodies only: a rank that goes into one, a model,
/// an identity.
pub fn reads_bodies(config: &Config) -> bool {
    let in_body = |dialect| matches!(dialect, Dialect::Sglang | Dialect::Atom);
    let pools = || config.pools.iter();
    pools().any(|pool| in_body(pool.dialect))
        || pools().any(|pool| pool.endpoints.iter().any(|e| e.models.is_some()))
        || config
            .session
            .body
            .as_ref()
            .is_some_and(|body| !body.is_empty())
}

/// What Envoy's list of addresses needs: no names, no paths, no TLS.
fn address(url: &str) -> Result<String> {
    let Some(host) = url.strip_prefix("http://") else {
        bail!("url {url:?}: wanted http://IP:PORT, as Envoy picks engines by address");
    };
    let host = host.trim_end_matches('/');
    let with_port = |text: String| text.parse::<SocketAddr>().ok();
    match with_port(host.to_owned()).or_else(|| with_port(format!("{host}:80"))) {
        Some(address) => Ok(address.to_string()),
        None => bail!(
            "url {url:?}: wanted http://IP:PORT without a path, as Envoy picks engines by address; \
             found a host name, or a path"
        ),
    }
}

fn speaks(dialect: Dialect) -> adapter::Speaks {
    match dialect {
        Dialect::Vllm => adapter::Speaks::Vllm,
        Dialect::Sglang => adapter::Speaks::Sglang,
        Dialect::Atom => adapter::Speaks::Atom,
        Dialect::Openai => adapter::Speaks::Openai,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn config(pool: &str) -> Config {
        let text = format!("[[pool]]\nname = \"p\"\n{pool}");
        Config::parse(&text, PathBuf::new()).unwrap()
    }

    #[test]
    fn engines_are_addresses_and_names_are_refused_with_what_is_wanted() {
        let of = |url: &str| {
            let pool = format!("endpoints = [{{ name = \"a\", url = \"{url}\" }}]");
            plugin(&config(&pool), false).map(|plugin| plugin.endpoints[0].address.clone())
        };
        assert_eq!(of("http://10.0.0.1:9001").unwrap(), "10.0.0.1:9001");
        assert_eq!(of("http://10.0.0.1").unwrap(), "10.0.0.1:80");
        let refused = format!("{:#}", of("http://engine:9001").unwrap_err());
        assert!(
            refused.contains("\"a\"") && refused.contains("IP:PORT"),
            "{refused}"
        );
        assert!(of("http://10.0.0.1:9001/base").is_err());
    }

    #[test]
    fn bodies_are_read_where_something_is_found_in_them_only() {
        let endpoint = "endpoints = [{ name = \"a\", url = \"http://10.0.0.1:1\" }]";
        assert!(!reads_bodies(&config(endpoint)));
        assert!(reads_bodies(&config(&format!(
            "dialect = \"sglang\"\n{endpoint}"
        ))));
        let models =
            "endpoints = [{ name = \"a\", url = \"http://10.0.0.1:1\", models = [\"m\"] }]";
        assert!(reads_bodies(&config(models)));
    }
}
