//! `pointsman policy …`.

mod check;
mod compile;
mod record;
mod remote;
mod shadow;

use super::print_json;
use super::remote::{MaybeRemote, Remote};
use crate::policies::{BUILT_IN, Decider, Named, compile, configure, digest, router};
use crate::scenario::{Difference, EnvoyHost, Host, Scenario, play};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Subcommand, ValueEnum};
use pointsman_core::Core;
use pointsman_runtime::{Compiled, Engine, Limits};
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// The policies that this binary carries, or those of a running host
    List(ListArgs),
    /// Whether a policy could be used, and what it says of itself
    Check(check::Args),
    /// Play scenarios; exit status 1 at the first difference
    Test(TestArgs),
    /// Build a policy crate into a component
    Build(BuildArgs),
    /// Load a policy on a running host, without using it
    Load(remote::Wanted),
    /// Replace the policy of a running host; exit status 0 only when the new one decides
    Swap(remote::Wanted),
    /// Bring the policy before this one back
    Rollback(Remote),
    /// Which policy decides on a running host, and what happened last
    Status(Remote),
    /// Try a policy on a running host's requests, without it deciding any
    #[command(subcommand)]
    Shadow(shadow::Command),
    /// Decisions of a running host, to try policies on with `check --recording`
    #[command(subcommand)]
    Record(record::Command),
    /// Fill the code cache of a host
    #[command(hide = true)]
    Compile(compile::Args),
}

/// Arguments of `list`.
#[derive(clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    remote: MaybeRemote,
}

/// Arguments of `test`.
#[derive(clap::Args)]
pub struct TestArgs {
    /// A built-in name or the path of a .wasm, in place of the one that a scenario names
    policy: Option<String>,
    /// Scenario files
    #[arg(long = "scenario", value_name = "FILE", num_args = 1.., required = true)]
    scenarios: Vec<PathBuf>,
    /// Where the policy runs
    #[arg(long, value_enum, default_value_t = Where::Wasm)]
    host: Where,
    /// The program for --host envoy
    #[arg(
        long,
        value_name = "FILE",
        env = "POINTSMAN_ENVOY",
        default_value = "envoy"
    )]
    envoy: PathBuf,
}

/// Arguments of `build`.
#[derive(clap::Args)]
pub struct BuildArgs {
    /// The crate's folder
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// The folder for the .wasm
    #[arg(long, short, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// linked into this binary: the built-in policies
    Native,
    /// as a component
    Wasm,
    /// fused into a real Envoy
    Envoy,
}

/// Runs one of them.
pub fn run(command: &Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::List(args) => match args.remote.named() {
            Some(remote) => remote::list(&remote, as_json),
            None => list(as_json),
        },
        Command::Check(args) => check::run(args, as_json),
        Command::Shadow(command) => shadow::run(command, as_json),
        Command::Record(command) => record::run(command, as_json),
        Command::Test(args) => test(args, as_json),
        Command::Build(args) => build(args, as_json),
        Command::Load(args) => remote::load(args, as_json),
        Command::Swap(args) => remote::swap(args, as_json),
        Command::Rollback(args) => remote::rollback(args, as_json),
        Command::Status(args) => remote::status(args, as_json),
        Command::Compile(args) => compile::run(args),
    }
}

fn list(as_json: bool) -> Result<ExitCode> {
    if as_json {
        let policies: Vec<Value> = (BUILT_IN.iter())
            .map(|policy| {
                json!({
                    "name": policy.name, "about": policy.about,
                    "sha256": digest(policy.wasm), "bytes": policy.wasm.len(),
                })
            })
            .collect();
        print_json(&json!({ "policies": policies }))?;
    } else {
        for policy in BUILT_IN {
            say!("{:<26}{}", policy.name, policy.about);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Policies as components, each compiled once.
struct WasmHost {
    engine: Engine,
    compiled: RefCell<HashMap<String, Compiled>>,
}

impl Host for WasmHost {
    fn policy(&self, core: &Arc<Core>, policy: &str, config: &str) -> Result<Decider> {
        let named = Named::parse(policy, Path::new(""))?;
        let mut compiled = self.compiled.borrow_mut();
        let compiled = match compiled.entry(policy.to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(compile(&self.engine, &named)?),
        };
        let prepared = configure(compiled, &named, config, Limits::default())?;
        Ok(router(core, Arc::new(prepared)))
    }
}

/// Policies linked into this binary.
struct NativeHost;

impl Host for NativeHost {
    fn policy(&self, _core: &Arc<Core>, policy: &str, config: &str) -> Result<Decider> {
        match Named::parse(policy, Path::new(""))? {
            Named::BuiltIn(policy) => (policy.native)(config)
                .map_err(|refusal| anyhow!("the policy refuses its configuration: {refusal}"))
                .with_context(|| format!("the policy {} cannot be used", policy.name)),
            Named::File(path) => bail!(
                "{} is a component: --host native plays the built-in policies only, use --host wasm",
                path.display()
            ),
        }
    }
}

#[derive(Serialize)]
struct Played {
    scenario: PathBuf,
    policy: String,
    host: &'static str,
    steps: usize,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Difference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

fn test(args: &TestArgs, as_json: bool) -> Result<ExitCode> {
    let (host, name): (Box<Player>, _) = match args.host {
        Where::Native => (on(NativeHost), "native"),
        Where::Wasm => {
            let (engine, compiled) = (Engine::new()?, RefCell::default());
            (on(WasmHost { engine, compiled }), "wasm")
        }
        Where::Envoy => {
            let envoy = EnvoyHost::new(args.envoy.clone())?;
            (
                Box::new(move |scenario, policy| envoy.play(scenario, policy)),
                "envoy",
            )
        }
    };
    let mut all = Vec::new();
    for path in &args.scenarios {
        let one = test_one(path, &host, name, args.policy.as_deref());
        if !as_json {
            print_played(&one);
        }
        let passed = one.passed;
        all.push(one);
        if !passed {
            break;
        }
    }
    let failed = all.iter().filter(|played| !played.passed).count();
    let passed = all.len() - failed;
    let left = args.scenarios.len() - all.len();
    if as_json {
        print_json(&json!({
            "passed": passed, "failed": failed, "not_played": left, "scenarios": all
        }))?;
    } else {
        say!("{name}: {passed} passed, {failed} failed, {left} not played");
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plays a scenario with a policy in the place of its own.
type Player = dyn Fn(&Scenario, Option<&str>) -> Result<Result<(), Difference>>;

/// On core, in this process.
fn on(host: impl Host + 'static) -> Box<Player> {
    Box::new(move |scenario, policy| play(scenario, &host, policy))
}

fn test_one(path: &Path, host: &Player, name: &'static str, policy: Option<&str>) -> Played {
    let mut played = Played {
        scenario: path.to_owned(),
        policy: policy.unwrap_or_default().to_owned(),
        host: name,
        steps: 0,
        passed: false,
        difference: None,
        error: None,
    };
    let outcome = Scenario::read(path).and_then(|scenario| {
        played.steps = scenario.steps.len();
        if let (None, Some(policy)) = (policy, &scenario.policy) {
            played.policy.clone_from(policy);
        }
        host(&scenario, policy)
    });
    match outcome {
        Ok(Ok(())) => played.passed = true,
        Ok(Err(difference)) => played.difference = Some(difference),
        Err(error) => played.error = Some(format!("{error:#}")),
    }
    played
}

fn print_played(played: &Played) {
    let path = played.scenario.display();
    if let Some(difference) = &played.difference {
        say!("FAILED  {path}");
        say!("    step      {}", difference.step);
        say!("    expected  {}", difference.expected);
        say!("    got       {}", difference.got);
    } else if let Some(error) = &played.error {
        say!("FAILED  {path}");
        say!("    {error}");
    } else {
        say!("ok      {path} ({}, {} steps)", played.policy, played.steps);
    }
}

fn build(args: &BuildArgs, as_json: bool) -> Result<ExitCode> {
    let options = pointsman_build::Options {
        out: Some(args.out.clone()),
        target_dir: None,
        any_world: false,
    };
    let crates = [args.folder.clone()];
    let built = pointsman_build::build(&crates, &options, &mut |line| eprintln!("{line}"))?;
    if as_json {
        let built: Vec<Value> = (built.iter())
            .map(|policy| {
                json!({
                    "name": policy.name, "path": policy.path,
                    "bytes": policy.component.bytes().len(),
                })
            })
            .collect();
        print_json(&json!({ "built": built }))?;
    } else {
        for policy in &built {
            let bytes = policy.component.bytes().len();
            say!("{}  {bytes} bytes", policy.path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
