//! `pointsman envoy config`.

use crate::commands::print_json;
use crate::config::{Config, Role};
use crate::envoy::{Bootstrap, Filter, plugin, reads_bodies};
use crate::policies::{ENVOY_ADAPTER, Named, compile, configure, digest};
use anyhow::{Context, Result, ensure};
use pointsman_fuse::{Options, fuse};
use pointsman_runtime::Engine;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What Envoy may hold beyond what the policy wants to read, in bytes: the piece that goes over it.
const SLACK: usize = 1 << 20;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The folder for envoy.yaml, filter.yaml and the module, which is named after its content; without
    /// it the two files are printed
    #[arg(long, short, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Have the policy wait for JSON bodies, also where nothing in the configuration needs them
    #[arg(long)]
    read_body: bool,
}

/// Runs it.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let named = Named::parse(&config.policy.r#use, &config.base)?;
    let wasm = named.wasm()?;
    let found = digest(&wasm);
    let pin = &config.policy.sha256;
    ensure!(
        pin.is_empty() || pin.eq_ignore_ascii_case(&found),
        "the policy {named} is not the one that was pinned: wanted sha256 {pin}, found {found}"
    );
    // Envoy would start with one that refuses its configuration, and answer every request with 500.
    let compiled = compile(&Engine::new()?, &named)?;
    configure(
        &compiled,
        &named,
        &config.policy_config()?,
        config.policy_limits(),
    )?;
    for setting in not_carried(&config) {
        eprintln!("warning: {setting} is not carried over to Envoy");
    }
    let adapter =
        ENVOY_ADAPTER.context("this binary carries no Envoy adapter: use `make build`")?;
    let module = fuse(&wasm, adapter, &Options::default())
        .with_context(|| format!("the policy {named} cannot be made a module for Envoy"))?
        .bytes;
    let folder = match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            folder.canonicalize()?
        }
        None => std::env::current_dir()?,
    };
    let files = Files::new(&config, args.read_body, &named, &module, &folder)?;
    if args.out.is_none() {
        say!("{}---\n{}", files.bootstrap.1, files.filter.1);
        return Ok(ExitCode::SUCCESS);
    }
    // In this order: no file names one that is not there yet.
    pointsman_build::write(&files.module, &module)?;
    pointsman_build::write(&files.filter.0, files.filter.1.as_bytes())?;
    pointsman_build::write(&files.bootstrap.0, files.bootstrap.1.as_bytes())?;
    let paths = [&files.module, &files.filter.0, &files.bootstrap.0];
    if as_json {
        print_json(&json!({ "ok": true, "files": paths }))?;
    } else {
        for path in paths {
            say!("{}", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings that the file gives and Envoy does not get, by their names.
fn not_carried(config: &Config) -> Vec<String> {
    let pools = config.pools.iter().zip(0..);
    let mut names: Vec<String> = pools
        .flat_map(|(pool, at)| {
            let health = pool.health.as_ref().map(|_| "health");
            let driver = pool.driver.as_ref().map(|_| "driver");
            let role = (pool.role != Role::Serve).then_some("role");
            let given = health.into_iter().chain(driver).chain(role);
            given.map(move |key| format!("pool[{at}].{key}"))
        })
        .collect();
    let limits = &config.limits;
    let given = [
        (!config.grants.is_empty(), "grant"),
        // 3 is what a file means that says nothing.
        (config.retry.attempts > 3, "retry.attempts above 2"),
        (limits.body_bytes.is_some(), "limits.body_bytes"),
        (limits.header_bytes.is_some(), "limits.header_bytes"),
        (limits.first_byte.is_some(), "limits.first_byte"),
        (limits.idle.is_some(), "limits.idle"),
    ];
    let given = given.into_iter().filter(|(given, _)| *given);
    names.extend(given.map(|(_, name)| name.to_owned()));
    names
}

/// Paths and texts.
struct Files {
    bootstrap: (PathBuf, String),
    filter: (PathBuf, String),
    module: PathBuf,
}

impl Files {
    fn new(
        config: &Config,
        read_body: bool,
        named: &Named,
        module: &[u8],
        folder: &Path,
    ) -> Result<Files> {
        let settings = config.settings(0);
        let plugin = plugin(config, read_body || reads_bodies(config))?;
        let engines: BTreeSet<String> =
            plugin.endpoints.iter().map(|e| e.address.clone()).collect();
        let digest = digest(module);
        let digest = digest.get(..16).unwrap_or(&digest);
        let stem = match named {
            Named::BuiltIn(policy) => policy.name.to_owned(),
            Named::File(path) => path
                .file_stem()
                .map_or_else(|| "policy".to_owned(), |s| s.to_string_lossy().into_owned()),
        };
        let module = folder.join(format!("{stem}.{digest}.wasm"));
        let filter = folder.join("filter.yaml");
        let bootstrap = Bootstrap {
            listen: config.listen.address,
            admin: config.admin.address,
            filter: &filter,
            engines: engines.into_iter().collect(),
            connect: settings.timeouts.connect,
            retries: plugin.attempts.saturating_sub(1),
            body_bytes: plugin.inspect_bytes.saturating_add(SLACK),
        };
        let filter_yaml = Filter {
            module: &module,
            config: &plugin,
        };
        Ok(Files {
            bootstrap: (folder.join("envoy.yaml"), bootstrap.yaml()),
            filter: (filter.clone(), filter_yaml.yaml()?),
            module,
        })
    }
}
