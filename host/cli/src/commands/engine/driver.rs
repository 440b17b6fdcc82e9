//! `pointsman engine driver FILE`: what a driver says, for those who write one.

use crate::commands::print_json;
use crate::engines::told;
use crate::library;
use anyhow::{Context, Result};
use pointsman_engine::{Desk, Kernel, Knob, Limits};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The shared library
    file: PathBuf,
    /// The driver's own configuration, a JSON object; with what stands here it gets, as from a host,
    /// {"name": …, "url": …, "config": …}
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = object)]
    config: serde_json::Map<String, serde_json::Value>,
    /// The endpoint's name
    #[arg(long, default_value = "engine")]
    name: String,
    /// The endpoint's URL
    #[arg(long, default_value = "")]
    url: String,
    /// Set a knob on every rank, before they are read; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    sets: Vec<(String, i64)>,
    /// Also list the ways to compute an operation
    #[arg(long, value_name = "OPERATION")]
    kernels: Option<String>,
    /// How long the driver may take for one call
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    deadline_ms: u64,
}

fn object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("wanted a JSON object: {e}"))
}

fn assignment(text: &str) -> Result<(String, i64), String> {
    let wanted = || "wanted NAME=VALUE, the value a whole number".to_owned();
    let (name, value) = text.split_once('=').ok_or_else(wanted)?;
    Ok((name.to_owned(), value.parse().map_err(|_| wanted())?))
}

/// A rank's.
type Said = (Vec<Knob>, Vec<Kernel>);

/// Opens the driver, sets, prints every rank's knobs, and closes it.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let library = library::load(&args.file)?;
    let config = told(&args.name, &args.url, &args.config.clone().into());
    let limits = Limits {
        deadline: Duration::from_millis(args.deadline_ms),
        ..Limits::default()
    };
    let desk = Desk::open(limits, move || library.open(&config));
    let all = ask(args, &desk);
    let closed = desk.close();
    show(args, &all?, as_json)?;
    let late = || {
        format!(
            "{}: `close` did not come back: a host would end without it, and keep a thread and what \
             the driver holds at every reload",
            args.file.display()
        )
    };
    closed.with_context(late)?;
    Ok(ExitCode::SUCCESS)
}

fn ask(args: &Args, desk: &Desk) -> Result<Vec<Said>> {
    let ranks = (desk.ranks()).with_context(|| args.file.display().to_string())?;
    for (name, value) in &args.sets {
        desk.knob_set(None, name, *value)
            .with_context(|| format!("{name} = {value}"))?;
    }
    let mut all = Vec::new();
    for rank in 0..ranks {
        let knobs = desk
            .knobs(rank)
            .with_context(|| format!("knobs of rank {rank}"))?;
        let kernels = match &args.kernels {
            Some(of) => desk
                .kernels(rank, of)
                .with_context(|| format!("kernels of rank {rank} for {of}"))?,
            None => Vec::new(),
        };
        all.push((knobs, kernels));
    }
    Ok(all)
}

fn show(args: &Args, all: &[Said], as_json: bool) -> Result<()> {
    let (file, ranks) = (args.file.display(), all.len());
    if as_json {
        let ranks: Vec<_> = (all.iter())
            .map(|(knobs, kernels)| {
                json!({
                    "knobs": knobs.iter().map(knob).collect::<Vec<_>>(),
                    "kernels": kernels.iter().map(kernel).collect::<Vec<_>>(),
                })
            })
            .collect();
        print_json(&json!({ "driver": file.to_string(), "ranks": ranks }))?;
        return Ok(());
    }
    say!("{file}: {ranks} rank{}", if ranks == 1 { "" } else { "s" });
    for (rank, (knobs, kernels)) in all.iter().enumerate() {
        for Knob {
            name,
            unit,
            low,
            high,
            value,
        } in knobs
        {
            let unit = if unit.is_empty() {
                String::new()
            } else {
                format!(" {unit}")
            };
            say!("rank {rank}  {name} = {value}  ({low} to {high}{unit})");
        }
        for Kernel {
            name,
            low_m,
            high_m,
            ranks,
            chosen,
            ..
        } in kernels
        {
            let mark = if *chosen { '*' } else { ' ' };
            say!("rank {rank} {mark} {name}  ({low_m} to {high_m} rows, {ranks} ranks)");
        }
    }
    Ok(())
}

fn knob(knob: &Knob) -> serde_json::Value {
    json!({ "name": knob.name, "unit": knob.unit, "low": knob.low, "high": knob.high, "value": knob.value })
}

fn kernel(kernel: &Kernel) -> serde_json::Value {
    json!({
        "name": kernel.name, "low_m": kernel.low_m, "high_m": kernel.high_m, "ranks": kernel.ranks,
        "chosen": kernel.chosen, "nanoseconds": kernel.nanoseconds,
    })
}
