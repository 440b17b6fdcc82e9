//! `pointsman engine`: a reference engine in real time, and what belongs to it.

mod delayer;
mod driver;
mod profile;
mod simulate;
pub mod try_driver;

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
    /// Play a mixed prefill and decode load in virtual time: what each setting, or a policy that drives
    /// the scheduler, makes of TTFT, ITL and throughput
    Simulate(simulate::Args),
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
    /// Sequences that a rank runs at once, in place of the preset's
    #[arg(long, value_name = "SEQUENCES")]
    max_num_seqs: Option<usize>,
    /// Tokens of one forward pass of a rank, in place of the preset's
    #[arg(long, value_name = "TOKENS")]
    max_num_batched_tokens: Option<usize>,
    /// Ranks tick together, and a delayer decides when they prefill; the thresholds below are its
    #[arg(long, value_enum, value_name = "on|off", default_value = "off")]
    prefill_delayer: Switch,
    /// Ticks that belong to decode after every executed prefill
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().prefill_decode_interval)]
    decode_interval: u32,
    /// How long ranks that decide together wait for one that does not come, modelled ms; 0: for ever
    #[arg(long, value_name = "MS", default_value_t = EngineConfig::default().collective_timeout_ms)]
    collective_timeout_ms: u64,
    #[command(flatten)]
    thresholds: delayer::ThresholdArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Args {
    /// Whether nothing runs but a simulation.
    pub fn simulates(&self) -> bool {
        matches!(self.command, Some(Command::Simulate(_)))
    }
}

/// Runs until the process is told to end, or what the command says.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Delayer(args)) => delayer::run(args, as_json),
        Some(Command::Driver(args)) => driver::run(args, as_json),
        Some(Command::Profile(args)) => profile::run(args, as_json),
        Some(Command::TryDriver(args)) => Ok(try_driver::run(args)),
        Some(Command::Simulate(args)) => simulate::run(args, as_json),
        None => serve(&args.engine, as_json),
    }
}

fn serve(args: &EngineArgs, as_json: bool) -> Result<ExitCode> {
    let mut preset = Preset::named(&args.preset)?;
    preset.cache_blocks = args.cache_blocks.unwrap_or(preset.cache_blocks);
    preset.max_num_seqs = args.max_num_seqs.unwrap_or(preset.max_num_seqs);
    preset.max_num_batched_tokens =
        (args.max_num_batched_tokens).unwrap_or(preset.max_num_batched_tokens);
    let budget = u32::try_from(preset.max_num_batched_tokens).unwrap_or(u32::MAX);
    let config = EngineConfig {
        prefill_delayer: args.prefill_delayer == Switch::On,
        thresholds: args.thresholds.thresholds(args.decode_interval, budget),
        name: args.name.clone(),
        ranks: args.ranks,
        preset,
        time_scale: args.time_scale,
        collective_timeout_ms: args.collective_timeout_ms,
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
