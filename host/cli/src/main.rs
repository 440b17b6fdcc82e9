//! `pointsman`: routing policies for LLM inference, as replaceable WebAssembly.

/// Prints a line for people. Who does not listen any more ends nothing: what was done is done.
macro_rules! say {
    ($($line:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout().lock(), $($line)*);
    }};
}

mod admin;
mod commands;
mod config;
mod demo;
mod engines;
mod envoy;
mod library;
mod native;
mod policies;
mod profiling;
mod scenario;
mod simulated;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Routes LLM requests to engines and data-parallel ranks by policies that can be replaced while
/// traffic flows.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    /// Print results as JSON on standard output
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Route requests as a configuration file says
    Serve(commands::serve::Args),
    /// Say what is wrong with a configuration file, before anything starts
    Check(commands::check::Args),
    /// Route a cut of real agentic traffic under every policy, and compare
    Demo(commands::demo::Args),
    /// Run a reference engine: OpenAI API, data-parallel ranks, prefix caches; no GPU, no model
    Engine(Box<commands::engine::Args>),
    /// The configuration of a running host
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Work with policies
    #[command(subcommand)]
    Policy(commands::policy::Command),
    /// Make policies modules for stock Envoy
    #[command(subcommand)]
    Envoy(commands::envoy::Command),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // What a policy says of each modelled second is not what a simulation is for.
    let level = match &cli.command {
        Command::Engine(args) if args.simulates() => "warn",
        _ => "info",
    };
    tracing_subscriber::fmt()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level)),
        )
        .init();
    let result = match cli.command {
        Command::Serve(args) => commands::serve::run(&args, cli.json),
        Command::Check(args) => commands::check::run(&args, cli.json),
        Command::Demo(args) => commands::demo::run(&args, cli.json),
        Command::Engine(args) => commands::engine::run(&args, cli.json),
        Command::Config(command) => commands::config::run(&command, cli.json),
        Command::Policy(command) => commands::policy::run(&command, cli.json),
        Command::Envoy(command) => commands::envoy::run(&command, cli.json),
    };
    result.unwrap_or_else(|error| {
        eprintln!("pointsman: {error:#}");
        if cli.json {
            let error = format!("{error:#}");
            let _ = commands::print_json(&serde_json::json!({ "ok": false, "error": error }));
        }
        ExitCode::FAILURE
    })
}
