//! `pointsman engine`: a reference engine in real time, and what belongs to it.

mod delayer;
mod driver;
mod profile;
mod try_driver;

use super::{print_json, stop_signal};
use anyhow::{Context, Result};
use pointsman_refengine::delayer::Thresholds;
use pointsman_refengine::{EngineConfig, Preset, Server};
use serde_json::json;
use std::net::SocketAddr;
use std::process::ExitCode;

/// Arguments; without a command the engine runs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Play recorded ticks: prints `fire` or `hold` and the cause, a line a tick
    Delayer(delayer::Args),
    /// Open an engine driver (a shared library), set knobs, and print what it says
    Driver(driver::Args),
    /// Open a profiling window on engines, and collect what it leaves: with a running host (--admin,
    /// --token-file), or without one (--config)
    Profile(profile::Args),
    /// Load a driver and end: what other commands do first, in a process that may die of it
    #[command(hide = true)]
    TryDriver(try_driver::Args),
}

#[derive(clap::Args)]
struct EngineArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// Data-parallel ranks, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: usize,
    /// The cost model: what the engine pretends to run on
    #[arg(long, value_name = "P", default_value = "h200-8b",
          value_parser = clap::builder::PossibleValuesParser::new(Preset::names()))]
    preset: String,
    /// Modelled durations × this: 0.01 is a hundred times faster
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    time_scale: f64,
    /// The engine's name in its responses
    #[arg(long, default_value = "engine")]
    name: String,
    /// Cache blocks of 64 tokens a rank, in place of the preset's
    #[arg(long, value_name = "BLOCKS")]
    cache_blocks: Option<usize>,
    /// Ranks tick together, and a delayer decides when they prefill; the thresholds below are its
    #[arg(long, value_enum, value_name = "on|off", default_value = "off")]
    prefill_delayer: Switch,
    /// Ticks that belong to decode after every executed prefill
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().prefill_decode_interval)]
    decode_interval: u32,
    #[command(flatten)]
    thresholds: delayer::ThresholdArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Runs until the process is told to end, or what the command says.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Delayer(args)) => delayer::run(args, as_json),
        Some(Command::Driver(args)) => driver::run(args, as_json),
        Some(Command::Profile(args)) => profile::run(args, as_json),
        Some(Command::TryDriver(args)) => Ok(try_driver::run(args)),
        None => serve(&args.engine, as_json),
    }
}

fn serve(args: &EngineArgs, as_json: bool) -> Result<ExitCode> {
    let mut preset = Preset::named(&args.preset)?;
    if let Some(blocks) = args.cache_blocks {
        preset.cache_blocks = blocks;
    }
    let budget = u32::try_from(preset.max_num_batched_tokens).unwrap_or(u32::MAX);
    let config = EngineConfig {
        prefill_delayer: args.prefill_delayer == Switch::On,
        thresholds: args.thresholds.thresholds(args.decode_interval, budget),
        name: args.name.clone(),
        ranks: args.ranks,
        preset,
        time_scale: args.time_scale,
        ..EngineConfig::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        let server = Server::bind(config, args.listen).await?;
        let address = server.local_addr();
        if as_json {
            print_json(&json!({ "listening": format!("http://{address}") }))?;
        } else {
            say!(
                "pointsman engine {}: {} ranks, listening on http://{address}",
                args.name,
                args.ranks
            );
        }
        server.run(stop_signal()).await;
        Ok(ExitCode::SUCCESS)
    })
}
