//! `pointsman envoy …`: policies for stock Envoy.

mod config;

use super::print_json;
use crate::policies::{ENVOY_ADAPTER, Named, digest};
use anyhow::{Context, Result};
use clap::Subcommand;
use pointsman_fuse::{FUEL, Fused, Inspected, Options, fuse, inspect};
use serde_json::json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Make a policy a proxy-wasm module, which Envoy's Wasm filter loads
    Build(BuildArgs),
    /// What a module for Envoy was made from
    Inspect(InspectArgs),
    /// A complete configuration of Envoy from a pointsman.toml, with the policy in it
    Config(config::Args),
}

/// Arguments of `build`.
#[derive(clap::Args)]
pub struct BuildArgs {
    /// A built-in name or the path of a .wasm
    policy: String,
    /// The file to write, replaced in one step
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Have the WASI functions that the policy imports trap when called, in place of refusing it
    #[arg(long)]
    stub_wasi: bool,
    /// What one call into the policy may spend before it traps, in instructions; 0 = without end
    #[arg(long, value_name = "N", default_value_t = FUEL)]
    fuel: u64,
    /// Another adapter than the one that this binary carries: a core module
    #[arg(long, value_name = "FILE")]
    adapter: Option<PathBuf>,
}

/// Arguments of `inspect`.
#[derive(clap::Args)]
pub struct InspectArgs {
    /// A file that `pointsman envoy build` made
    file: PathBuf,
}

/// Runs one of them.
pub fn run(command: &Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Build(args) => build(args, as_json),
        Command::Inspect(args) => show(args, as_json),
        Command::Config(args) => config::run(args, as_json),
    }
}

fn build(args: &BuildArgs, as_json: bool) -> Result<ExitCode> {
    let policy = Named::parse(&args.policy, Path::new(""))?;
    let options = Options {
        stub_wasi: args.stub_wasi,
        fuel: args.fuel,
    };
    let adapter = adapter(args.adapter.as_deref())?;
    let Fused { bytes, made, sizes } = fuse(&policy.wasm()?, &adapter, &options)
        .with_context(|| format!("the policy {policy} cannot be made a module for Envoy"))?;
    pointsman_build::write(&args.out, &bytes)?;
    let sha256 = digest(&bytes);
    if as_json {
        print_json(&json!({
            "ok": true, "path": args.out, "sha256": sha256, "made": made, "sizes": sizes,
        }))?;
    } else {
        say!("{}  {} bytes", args.out.display(), sizes.fused);
        say!("    sha256   {sha256}");
        print_made(&made);
        say!(
            "    sizes    policy {}, adapter {}, border {} bytes; {} memories",
            sizes.component,
            sizes.adapter,
            sizes.border,
            sizes.memories
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn adapter(other: Option<&Path>) -> Result<Cow<'static, [u8]>> {
    match other {
        Some(path) => (std::fs::read(path).map(Cow::Owned))
            .with_context(|| format!("cannot read the adapter {}", path.display())),
        None => (ENVOY_ADAPTER.map(Cow::Borrowed)).context(
            "this binary carries no Envoy adapter: give one with --adapter FILE, or build with \
             `make build`",
        ),
    }
}

fn show(args: &InspectArgs, as_json: bool) -> Result<ExitCode> {
    let path = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("cannot read {path}"))?;
    let made = inspect(&bytes).with_context(|| path.to_string())?;
    let sha256 = digest(&bytes);
    if as_json {
        print_json(&json!({ "ok": true, "sha256": sha256, "bytes": bytes.len(), "made": made }))?;
    } else {
        say!("{path}  {} bytes", bytes.len());
        say!("    sha256   {sha256}");
        print_made(&made);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_made(made: &Inspected) {
    say!("    policy   {}", made.component);
    say!("    adapter  {}", made.adapter);
    say!("    fuser    {}", made.fuser);
    match made.fuel {
        0 => say!("    fuel     without end"),
        fuel => say!("    fuel     {fuel} instructions a call"),
    }
    match made.stubs.as_slice() {
        [] => say!("    stubs    none"),
        stubs => {
            say!(
                "    stubs    {} WASI functions trap when called:",
                stubs.len()
            );
            for stub in stubs {
                say!("             {stub}");
            }
        }
    }
}
