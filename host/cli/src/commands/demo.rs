//! `pointsman demo`: the main job on embedded defaults.

use super::{print_json, stop_signal};
use crate::demo::{Stage, StageOptions, TARGETS};
use crate::policies::BUILT_IN;
use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use pointsman_replay::{Cut, LiveOptions, Reports, Run, Workload, WorkloadOptions, live};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

/// The yardstick: no affinity at all.
const BASELINE: &str = "native:round-robin";

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// Leave a host and two engines running, to try by hand
    #[arg(long)]
    serve: bool,
    /// The policy of --serve
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "session-affinity",
        requires = "serve"
    )]
    policy: String,
    /// Also write the figures to a file
    #[arg(long, value_name = "FILE", conflicts_with = "serve")]
    out: Option<PathBuf>,
    /// Modelled durations and think times × this
    #[arg(long, value_name = "X", default_value_t = 0.01)]
    time_scale: f64,
}

/// Runs the comparison, or leaves the stage standing.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(async {
        if args.serve {
            serve(args).await
        } else {
            compare(args, as_json).await
        }
    })
}

async fn compare(args: &Args, as_json: bool) -> Result<ExitCode> {
    let options = WorkloadOptions {
        time_scale: args.time_scale,
        ..WorkloadOptions::default()
    };
    let workload = Workload::build(&Cut::embedded()?, &options)?;
    eprintln!(
        "{} requests of {} sessions, streamed to 2 engines of 4 ranks, once under each policy",
        workload.requests(),
        workload.conversations().len()
    );
    let targets: Vec<String> = TARGETS.map(str::to_owned).to_vec();
    let mut reports = Reports::default();
    // One that drives engines routes as another one does.
    let routing = BUILT_IN.iter().filter(|policy| !policy.drives_engines);
    let policies = std::iter::once(BASELINE).chain(routing.map(|policy| policy.name));
    for policy in policies {
        // Engines too start anew: what one policy left in their caches would help the next.
        let stage = Stage::start(&StageOptions {
            policy,
            time_scale: args.time_scale,
            fixed_ports: false,
        })
        .await?;
        let bar = progress(policy, workload.requests());
        let records = live::run(&workload, stage.url(), LiveOptions::default(), |done, _| {
            bar.set_position(done as u64);
        })
        .await?;
        stage.stop().await;
        bar.finish();
        let run = Run::summarize(policy, &records, &targets);
        if !std::io::stderr().is_terminal() {
            eprintln!("{policy}: {} requests, {} errors", run.requests, run.errors);
        }
        reports.runs.push(run);
    }
    if let Some(path) = &args.out {
        std::fs::write(path, reports.to_json()?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if as_json {
        print_json(&reports)?;
    } else {
        say!("{}", reports.table());
        comment(&reports);
    }
    let failed = reports.runs.iter().any(|run| run.errors > 0);
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// The two comparisons that matter, in words.
fn comment(reports: &Reports) {
    let run = |name: &str| reports.runs.iter().find(|run| run.policy == name);
    let (Some(plain), Some(session), Some(parent)) = (
        run(BASELINE),
        run("session-affinity"),
        run("parent-affinity"),
    ) else {
        return;
    };
    say!(
        "session-affinity finds {:.2} times as much of its prompts in the caches as round-robin;",
        session.prefix_hit_ratio / plain.prefix_hit_ratio
    );
    say!(
        "parent-affinity computes {:.1} % fewer prefill tokens than session-affinity.",
        100.0
            - 100.0 * parent.prefill_tokens_computed as f64
                / session.prefill_tokens_computed as f64
    );
}

fn progress(policy: &str, requests: usize) -> ProgressBar {
    let bar = ProgressBar::new(requests as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:26} {bar:40} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(policy.to_owned());
    bar
}

async fn serve(args: &Args) -> Result<ExitCode> {
    let mut stage = Stage::start(&StageOptions {
        policy: &args.policy,
        time_scale: args.time_scale,
        fixed_ports: true,
    })
    .await?;
    let (url, admin) = (stage.url(), stage.admin());
    say!(
        "{} runs on {url} before two engines of four ranks. Try:\n",
        args.policy
    );
    let chat = |text: &str, more: &str| {
        format!(
            "curl -si {url}/v1/chat/completions -H 'x-session-id: me' -H 'x-pointsman-explain: 1' \
             -H 'content-type: application/json' \
             -d '{{\"model\":\"demo\",\"max_tokens\":8{more},\
             \"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}'"
        )
    };
    say!("{}\n", chat("Hello there", ""));
    say!("{}\n", chat("Hello there, once more", ",\"stream\":true"));
    say!("curl -s {admin}/metrics\n");
    say!("Ctrl-C ends it.");
    tokio::select! {
        () = stop_signal() => {}
        ended = stage.ended() => eprintln!("pointsman: {ended}"),
    }
    stage.stop().await;
    Ok(ExitCode::SUCCESS)
}
