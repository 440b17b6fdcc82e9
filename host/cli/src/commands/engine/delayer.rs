//! `pointsman engine delayer --play FILE`: recorded ticks, and what the delayer says to them.

use anyhow::{Context, Result};
use pointsman_refengine::delayer::Thresholds;
use pointsman_refengine::recording::Recording;
use serde_json::json;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The longest line of a recording, in bytes: 1,024 ranks have about 160 each.
const LINE_BYTES: u64 = 1 << 20;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The recording, a tick a line; - reads standard input
    #[arg(long, value_name = "FILE.jsonl")]
    play: PathBuf,
    /// Ticks that belong to decode after every executed prefill
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().prefill_decode_interval)]
    interval: u32,
    /// Tokens of one rank's forward pass, at least 1
    #[arg(long, value_name = "TOKENS", default_value_t = Thresholds::default().token_budget,
          value_parser = clap::value_parser!(u32).range(1..))]
    budget: u32,
    #[command(flatten)]
    thresholds: ThresholdArgs,
}

/// The thresholds of the delayer, all but those that depend on the engine.
#[derive(clap::Args)]
pub struct ThresholdArgs {
    /// Fire when the pending tokens fill this part of the budget, 0.05 to 1
    #[arg(long, value_name = "PART", default_value_t = Thresholds::default().target_fill,
          value_parser = part)]
    target_fill: f64,
    /// Fire after so many held ticks, at least 1
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().ttft_max_ticks)]
    ttft_max_ticks: u32,
    /// Fire after so many held ticks if a prompt is partly computed, at least 1
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().partial_max_ticks)]
    partial_max_ticks: u32,
    /// Fire when what is pending has not grown for so many ticks, at least 1
    #[arg(long, value_name = "TICKS", default_value_t = Thresholds::default().stall_ticks)]
    stall_ticks: u32,
    /// Fire when a rank's cache is used to this part
    #[arg(long, value_name = "PART", default_value_t = Thresholds::default().kv_high_watermark,
          value_parser = part)]
    kv_high: f64,
    /// Fire when a rank's cache is used less than this; default: never
    #[arg(long, value_name = "PART", value_parser = part)]
    kv_low: Option<f64>,
    /// Fire when a prompt has waited so long; default: never
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    max_queue_ms: Option<f64>,
}

impl ThresholdArgs {
    /// Together with what is not among them.
    pub fn thresholds(&self, prefill_decode_interval: u32, token_budget: u32) -> Thresholds {
        Thresholds {
            prefill_decode_interval,
            token_budget,
            target_fill: self.target_fill,
            ttft_max_ticks: self.ttft_max_ticks,
            partial_max_ticks: self.partial_max_ticks,
            stall_ticks: self.stall_ticks,
            kv_high_watermark: self.kv_high,
            token_usage_low_watermark: self.kv_low,
            max_queue_ms: self.max_queue_ms,
        }
    }
}

fn part(text: &str) -> Result<f64, String> {
    number(text, 1.0).ok_or_else(|| "wanted a number from 0 to 1".to_owned())
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, f64::MAX).ok_or_else(|| "wanted milliseconds, at least 0".to_owned())
}

fn number(text: &str, most: f64) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (0.0..=most).contains(&number).then_some(number)
}

/// Prints a line a tick.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let thresholds = args.thresholds.thresholds(args.interval, args.budget);
    let name = args.play.display();
    let input: Box<dyn Read> = if args.play == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(&args.play).with_context(|| format!("cannot read {name}"))?)
    };
    play(
        BufReader::new(input),
        Recording::new(thresholds),
        &mut io::stdout().lock(),
        as_json,
    )
    .with_context(|| name.to_string())
}

fn play(
    mut input: impl BufRead,
    mut recording: Recording,
    output: &mut impl Write,
    as_json: bool,
) -> Result<ExitCode> {
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let at = || format!("line {number}");
        if (&mut input)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .with_context(at)?
            == 0
        {
            break;
        }
        anyhow::ensure!(
            (line.len() as u64) < LINE_BYTES,
            "line {number}: wanted less than {LINE_BYTES} bytes, found more"
        );
        let text = std::str::from_utf8(&line)
            .context("wanted JSON in UTF-8")
            .with_context(at)?;
        if text.trim().is_empty() {
            continue;
        }
        let cause = recording.play(text).with_context(at)?;
        let (decision, cause) = (cause.decision(), cause.as_str());
        let written = if as_json {
            writeln!(
                output,
                "{}",
                json!({ "decision": decision, "cause": cause })
            )
        } else {
            writeln!(output, "{decision} {cause}")
        };
        match written {
            // A reader that has seen enough is no failure of ours.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
