//! `pointsman check`: everything that `serve` would refuse, without serving.

use super::{print_json, serve};
use crate::config::{Config, DriverKind, Pool};
use crate::engines::{Driven, EVERY};
use anyhow::{Result, bail, ensure};
use pointsman_engine::Failure;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Also ask the engines that have a driver whether they are as the file says
    #[arg(long)]
    engines: bool,
}

/// Exit status 0 only if `serve` would start, as far as this machine's ports and engines let it.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let config = Config::read(&args.config)?;
    config.settings(0).check()?;
    serve::token(&config)?;
    serve::folders(&config)?;
    let driven = Driven::start(&config, serve::core(&config))?;
    let checked = with(&config, &driven, args, as_json);
    serve::close(&driven);
    checked
}

fn with(config: &Config, driven: &Driven, args: &Args, as_json: bool) -> Result<ExitCode> {
    let policy = serve::policy(config)?;
    let targets: u32 = (config.pools.iter())
        .flat_map(|pool| &pool.endpoints)
        .map(|endpoint| endpoint.ranks)
        .sum();
    let mut warnings = config.warnings();
    if args.engines {
        warnings.extend(engines(config, driven)?);
        let [impossible, differs] = deployments(config, driven);
        if let Some(why) = impossible.into_iter().next() {
            bail!(why);
        }
        warnings.extend(differs);
    }
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    if as_json {
        print_json(&json!({
            "ok": true, "warnings": warnings, "policy": policy.name, "version": policy.version, "targets": targets
        }))?;
    } else {
        say!(
            "ok: policy {} {}, {} pools, {targets} targets",
            policy.name,
            policy.version,
            config.pools.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks every engine what it was started with. Returns what cannot work, and where one is not as the file
/// says.
pub fn deployments(config: &Config, driven: &Driven) -> [Vec<String>; 2] {
    let (mut impossible, mut differs) = (Vec::new(), Vec::new());
    let seats = driven.of(&EVERY);
    let says = |pool: &&Pool| {
        let kind = pool.driver.as_ref().map(|driver| driver.kind);
        matches!(kind, Some(DriverKind::Reference | DriverKind::Sglang))
    };
    for pool in config.pools.iter().filter(says) {
        for endpoint in &pool.endpoints {
            let name = &endpoint.name;
            let engine = seats.iter().find(|(of, _)| of == name);
            let Some(Ok(said)) = engine.map(|(_, seat)| seat.desk.deployment()) else {
                continue;
            };
            if let Some(why) = pool.deployment.with(&said).impossible(pool.role) {
                impossible.push(format!("engine {name:?} was started with {why}"));
            }
            for (setting, here, there) in pool.deployment.differs(&said) {
                differs.push(format!(
                    "engine {name:?}: deployment.{setting} = {here} in the configuration, the engine has \
                     {there}"
                ));
            }
        }
    }
    [impossible, differs]
}

/// Asks every engine for its ranks: fewer than configured, and requests would go to ranks that are not
/// there. Returns what could not be asked, and who has more.
fn engines(config: &Config, driven: &Driven) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let seats = driven.of(&EVERY);
    for endpoint in config.pools.iter().flat_map(|pool| &pool.endpoints) {
        let (name, wanted) = (&endpoint.name, endpoint.ranks);
        let Some((_, seat)) = seats.iter().find(|(of, _)| of == name) else {
            warnings.push(format!("engine {name:?} has no driver to ask"));
            continue;
        };
        match seat.desk.ranks() {
            Ok(found) => {
                ensure!(
                    wanted <= found,
                    "engine {name:?}: ranks = {wanted} in the configuration, the engine has {found}"
                );
                if wanted < found {
                    warnings.push(format!(
                        "engine {name:?}: ranks = {wanted} in the configuration, the engine has {found}: \
                         the others get no requests from here"
                    ));
                }
            }
            Err(Failure::Unknown) => {
                warnings.push(format!(
                    "engine {name:?} does not say how many ranks it has"
                ));
            }
            Err(failure) => bail!("engine {name:?}: {failure}"),
        }
    }
    Ok(warnings)
}
