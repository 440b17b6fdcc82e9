//! What a policy costs a request in stock Envoy, beside Envoy without a filter and with Wasm filters
//! that do nothing.
//!
//! All Envoys run at once, each with one worker thread on core 1, and get the same load in turn (wrk,
//! one thread, 32 connections, a 2 KB chat POST, 64 sessions); wrk and the upstreams share core 0.
//! CPU per request is the kernel's own account of Envoy's threads. Both figures count as ratios within
//! a round: the machine is noisy.
//!
//! `make bench` prints a table and writes `target/bench/envoy.json`. Nothing passes or fails.
//! `BENCH_ROUNDS`, and `BENCH_FILTERS` (a part of their names), choose more, or fewer.

#[path = "../data_plane/cpu.rs"]
mod cpu;
mod filtered;
#[path = "../data_plane/upstream.rs"]
mod upstream;
#[path = "../data_plane/wrk.rs"]
mod wrk;

use anyhow::{Context, Result, bail};
use cpu::spread;
use filtered::{Filter, Filtered};
use serde_json::{Map, Value, json};
use std::process::Command;
use upstream::Shape;

/// Of requests a second, of what the same filter without a policy has.
const GOAL: f64 = 0.9;
const FILTERS: [Filter; 6] = [
    Filter::None,
    Filter::Empty,
    Filter::Reading,
    Filter::Policy("session-affinity"),
    Filter::Policy("least-tokens"),
    Filter::ReadingPolicy("session-affinity"),
];

/// A value a round.
struct Row {
    filter: Filter,
    cpu_us: Vec<f64>,
    per_s: Vec<f64>,
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
    bad: u64,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    if let [_, role, port, shape] = args.as_slice()
        && role == "upstream"
    {
        return upstream::run(port.parse()?, Shape::parse(shape)?);
    }
    if let Err(error) = pointsman_tests::envoy() {
        eprintln!("left out: {error}");
        return Ok(());
    }
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        bail!("two cores are needed: one for Envoy alone, one for the load");
    }
    let rounds = std::env::var("BENCH_ROUNDS").ok();
    let rounds = rounds.and_then(|n| n.parse().ok()).unwrap_or(15);
    let rows = measure(rounds)?;
    print(&rows);
    let figures: Map<String, Value> = (rows.iter())
        .map(|row| (row.filter.name(), to_json(row, &rows)))
        .collect();
    let version = Command::new(pointsman_tests::envoy()?)
        .arg("--version")
        .output()?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let result = json!({
        "machine": { "cpu": cpu::name(), "envoy": version.trim() },
        "load": { "connections": 32, "seconds": 1, "rounds": rounds, "body_bytes": 2048 },
        "goal_requests_per_s_ratio": GOAL,
        "envoy": figures,
    });
    let path = pointsman_tests::root().join("target/bench/envoy.json");
    std::fs::write(&path, serde_json::to_string_pretty(&result)?)?;
    println!("{}", path.display());
    Ok(())
}

fn measure(rounds: usize) -> Result<Vec<Row>> {
    let folder = pointsman_tests::root().join("target/bench/envoy");
    std::fs::create_dir_all(&folder)?;
    // Envoy follows files by their whole names.
    let folder = folder.canonicalize()?;
    let upstreams = [
        upstream::start(Shape::Whole)?,
        upstream::start(Shape::Whole)?,
    ];
    let ports = [upstreams[0].port, upstreams[1].port];
    let wanted = std::env::var("BENCH_FILTERS").unwrap_or_default();
    let envoys: Vec<Filtered> = (FILTERS.into_iter())
        .filter(|filter| filter.name().contains(&wanted))
        .map(|filter| Filtered::start(filter, ports, &folder))
        .collect::<Result<_>>()?;
    let mut rows: Vec<Row> = (envoys.iter())
        .map(|envoy| Row {
            filter: envoy.filter,
            cpu_us: Vec::new(),
            per_s: Vec::new(),
            p50_ms: Vec::new(),
            p99_ms: Vec::new(),
            bad: 0,
        })
        .collect();
    let script = wrk::script(&folder, Shape::Whole)?;
    // V8 makes its best code of what ran often.
    for envoy in &envoys {
        let name = envoy.filter.name();
        let run = wrk::run(&script, envoy.port, 2).with_context(|| format!("warming {name} up"))?;
        if run.bad > 0 {
            bail!("{name}: {} bad answers while warming up", run.bad);
        }
    }
    for round in 0..rounds {
        // Whoever comes first in a noisy moment is not always the same.
        for n in 0..envoys.len() {
            let at = (n + round) % envoys.len();
            let (Some(envoy), Some(row)) = (envoys.get(at), rows.get_mut(at)) else {
                continue;
            };
            let before = envoy.cpu_ns()?;
            let run = wrk::run(&script, envoy.port, 1)?;
            let used = envoy.cpu_ns()? - before;
            row.cpu_us
                .push(used as f64 / 1e3 / run.requests.max(1) as f64);
            row.per_s.push(run.per_s);
            row.p50_ms.push(run.p50_ms);
            row.p99_ms.push(run.p99_ms);
            row.bad += run.bad;
        }
    }
    Ok(rows)
}

/// The round's ratios to the same without a policy.
fn ratios<'a>(row: &'a Row, rows: &'a [Row], of: impl Fn(&Row) -> &Vec<f64>) -> Option<Vec<f64>> {
    let bare = rows.iter().find(|r| r.filter == row.filter.bare())?;
    let pairs = of(row).iter().zip(of(bare));
    Some(pairs.map(|(own, bare)| own / bare).collect())
}

fn print(rows: &[Row]) {
    println!("\n{}, through Envoy", Shape::Whole.about());
    println!(
        "{:<34}{:>30}{:>12}{:>9}{:>12}{:>12}{:>6}",
        "filter",
        "CPU µs a request (least–most)",
        "requests/s",
        "p99 ms",
        "CPU ×",
        "per s ×",
        "bad"
    );
    for row in rows {
        let (low, cpu, high) = spread(&row.cpu_us);
        let ratio = |of: fn(&Row) -> &Vec<f64>| {
            let ratios = ratios(row, rows, of);
            ratios.map_or(String::new(), |r| format!("{:.2}", spread(&r).1))
        };
        println!(
            "{:<34}{:>30}{:>12.0}{:>9.2}{:>12}{:>12}{:>6}",
            row.filter.name(),
            format!("{cpu:.1} ({low:.1}–{high:.1})"),
            spread(&row.per_s).1,
            spread(&row.p99_ms).1,
            ratio(|row| &row.cpu_us),
            ratio(|row| &row.per_s),
            row.bad
        );
    }
    println!("×: of the empty filter that reads as much, median of the rounds; goal {GOAL} per s");
}

fn to_json(row: &Row, rows: &[Row]) -> Value {
    let (low, median, high) = spread(&row.cpu_us);
    let ratio = |of: fn(&Row) -> &Vec<f64>| ratios(row, rows, of).map(|r| spread(&r).1);
    json!({
        "cpu_us_per_request": { "min": low, "median": median, "max": high },
        "requests_per_s": spread(&row.per_s).1, "bad": row.bad,
        "p50_ms": spread(&row.p50_ms).1, "p99_ms": spread(&row.p99_ms).1,
        "cpu_ratio_to_empty": ratio(|row| &row.cpu_us),
        "requests_per_s_ratio_to_empty": ratio(|row| &row.per_s),
    })
}
