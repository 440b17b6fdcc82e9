//! `pointsman engine simulate`: a mixed load on one engine, under several settings.

use super::delayer::ThresholdArgs;
use crate::commands::print_json;
use crate::policies::Named;
use crate::simulated::Simulated;
use anyhow::{Context, Result};
use pointsman_refengine::{EngineConfig, Preset, Settings};
use pointsman_replay::mixed::{Mix, Mixed, MixedReports, play};
use pointsman_runtime::Engine;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Who routes where no policy drives: the same for all.
const ROUTES: &str = "least-tokens";

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Data-parallel ranks, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = Mix::default().ranks)]
    ranks: usize,
    /// The cost model: what the engine pretends to run on
    #[arg(long, value_name = "P", default_value = "h200-8b",
          value_parser = clap::builder::PossibleValuesParser::new(Preset::names()))]
    preset: String,
    /// Post-prefill decode intervals to compare, beside no delayer at all
    #[arg(long, value_name = "TICKS", num_args = 0.., value_delimiter = ',', default_values_t = [0, 10])]
    interval: Vec<u32>,
    /// Policies that drive the scheduler, beginning with the first interval: a built-in name or a
    /// .wasm, and its configuration as JSON
    #[arg(long, value_name = "POLICY[=JSON]", default_values_t = [
        r#"decode-protect={"itl_stat": "itl_ms_p99", "itl_limit_ms": 30, "ttft_limit_ms": 4000}"#.to_owned()
    ])]
    policy: Vec<String>,
    /// For how long requests come, in modelled seconds
    #[arg(long, value_name = "S", default_value_t = Mix::default().duration.as_secs())]
    seconds: u64,
    /// Requests per second, to all ranks together
    #[arg(long, value_name = "N", default_value_t = Mix::default().requests_per_s)]
    rate: f64,
    /// The part of them with a long prompt, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = Mix::default().long_share)]
    long_share: f64,
    /// Tokens of a long prompt; half to one and a half times as many, as with the next two
    #[arg(long, value_name = "TOKENS", default_value_t = Mix::default().long_prompt)]
    long_prompt: usize,
    /// Tokens of the other prompts
    #[arg(long, value_name = "TOKENS", default_value_t = Mix::default().short_prompt)]
    short_prompt: usize,
    /// Tokens generated for a request
    #[arg(long, value_name = "TOKENS", default_value_t = Mix::default().output)]
    output: usize,
    /// Another one, another load
    #[arg(long, value_name = "N", default_value_t = Mix::default().seed)]
    seed: u64,
    #[command(flatten)]
    thresholds: ThresholdArgs,
}

/// The engine; an interval of none is no delayer.
fn config(args: &Args, preset: &Preset, interval: Option<u32>) -> EngineConfig {
    let budget = u32::try_from(preset.max_num_batched_tokens).unwrap_or(u32::MAX);
    EngineConfig {
        ranks: args.ranks,
        prefill_delayer: interval.is_some(),
        thresholds: args.thresholds.thresholds(interval.unwrap_or(0), budget),
        preset: preset.clone(),
        ..EngineConfig::default()
    }
}

/// Prints the table.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let preset = Preset::named(&args.preset)?;
    let mix = Mix {
        ranks: args.ranks,
        preset: preset.clone(),
        seed: args.seed,
        duration: Duration::from_secs(args.seconds),
        requests_per_s: args.rate,
        long_share: args.long_share,
        long_prompt: args.long_prompt,
        short_prompt: args.short_prompt,
        output: args.output,
    };
    mix.validate()?;
    config(args, &preset, Some(0)).validate()?;
    let engine = Engine::new()?;
    let settings = |interval| Settings::of(&config(args, &preset, interval));
    let run = |policy: &str, config: &str, interval, drives| {
        let named = Named::parse(policy, Path::new("."))?;
        let settings = settings(interval);
        let mut policy = Simulated::new(&engine, &named, config, mix.ranks, settings, drives)?;
        let mixed = play(&mix, settings.delayer(), &mut policy)?;
        anyhow::Ok((mixed, policy.settings()))
    };
    let mut reports = MixedReports::default();
    let mut intervals = vec![None];
    for interval in args.interval.iter().copied().map(Some) {
        if !intervals.contains(&interval) {
            intervals.push(interval);
        }
    }
    for interval in intervals {
        let setting = interval.map_or_else(|| "off".to_owned(), |n| format!("interval {n}"));
        let (mixed, _) = run(ROUTES, "{}", interval, false).with_context(|| setting.clone())?;
        reports.runs.push(Mixed { setting, ..mixed });
    }
    for (policy, nth) in args.policy.iter().zip(1..) {
        let (name, config) = policy.split_once('=').unwrap_or((policy, "{}"));
        // Told apart by their order.
        let setting = match args.policy.len() {
            1 => name.to_owned(),
            _ => format!("{nth}: {name}"),
        };
        let begins = args.interval.first().copied().or(Some(0));
        let (mixed, at_last) = run(name, config, begins, true).with_context(|| policy.clone())?;
        reports.runs.push(Mixed {
            setting,
            at_last: Some(at_last),
            ..mixed
        });
    }
    if as_json {
        print_json(&reports)?;
        return Ok(ExitCode::SUCCESS);
    }
    let requests = reports.runs.first().map_or(0, |run| run.requests);
    say!(
        "{} ranks of {}, {requests} requests in {} s, seed {}\n\n{}",
        mix.ranks,
        args.preset,
        args.seconds,
        mix.seed,
        reports.table()
    );
    Ok(ExitCode::SUCCESS)
}
