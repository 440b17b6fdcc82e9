//! Our proxy with a sticky policy beside nginx and HAProxy, before the same upstreams.
//!
//! Every peer gets the same load (wrk, one thread, 32 connections, a 2 KB chat POST, 64 sessions), one
//! after the other, round by round; each runs alone on core 1, while wrk and the upstreams share core
//! 0. What counts is CPU per request, from the kernel's own account of the peer's threads, as a ratio
//! within the run: the machine is noisy, and requests a second say more about wake-ups than about a
//! proxy. HAProxy has `http-no-delay`, without which it holds streams back.
//!
//! `make bench` prints a table and writes `target/bench/data-plane.json`. Nothing passes or fails.

mod cpu;
mod peer;
mod upstream;
mod wrk;

use anyhow::{Context, Result, bail};
use cpu::spread;
use peer::Peer;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;
use upstream::Shape;

const ROUNDS: usize = 5;

/// One load, and the figures of each peer under it, a value a round.
struct Row {
    peer: &'static str,
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
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        bail!("two cores are needed: one for the proxy alone, one for the load");
    }
    let seconds = std::env::var("BENCH_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(3);
    let folder = pointsman_tests::root().join("target/bench");
    std::fs::create_dir_all(&folder)?;
    let mut figures = Map::new();
    for shape in [Shape::Whole, Shape::Burst, Shape::Paced] {
        let rows = measure(shape, seconds, &folder)?;
        print(shape, &rows);
        figures.insert(shape.name().to_owned(), to_json(&rows));
    }
    let result = json!({
        "machine": { "cpu": cpu::name(), "versions": versions() },
        "load": { "connections": 32, "seconds": seconds, "rounds": ROUNDS, "body_bytes": 2048 },
        "data_plane": figures,
    });
    let path = folder.join("data-plane.json");
    std::fs::write(&path, serde_json::to_string_pretty(&result)?)?;
    println!("{}", path.display());
    Ok(())
}

fn measure(shape: Shape, seconds: u32, folder: &Path) -> Result<Vec<Row>> {
    let upstreams = [upstream::start(shape)?, upstream::start(shape)?];
    let ports = [upstreams[0].port, upstreams[1].port];
    let peers: Vec<Peer> = [Peer::pointsman, Peer::nginx, Peer::haproxy]
        .into_iter()
        .filter_map(|start| match start(ports, folder) {
            Ok(peer) => Some(peer),
            Err(error) => {
                eprintln!("left out: {error:#}");
                None
            }
        })
        .collect();
    let mut rows: Vec<Row> = (peers.iter())
        .map(|peer| Row {
            peer: peer.name,
            cpu_us: Vec::new(),
            per_s: Vec::new(),
            p50_ms: Vec::new(),
            p99_ms: Vec::new(),
            bad: 0,
        })
        .collect();
    let script = wrk::script(folder, shape)?;
    for peer in &peers {
        wrk::run(&script, peer.port, 1).with_context(|| format!("warming {} up", peer.name))?;
    }
    for _ in 0..ROUNDS {
        for (peer, row) in peers.iter().zip(&mut rows) {
            let before = peer.cpu_ns()?;
            let run = wrk::run(&script, peer.port, seconds)?;
            let used = peer.cpu_ns()? - before;
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

fn print(shape: Shape, rows: &[Row]) {
    println!("\n{}", shape.about());
    println!(
        "{:<12}{:>30}{:>12}{:>9}{:>9}{:>6}",
        "", "CPU µs a request (least–most)", "requests/s", "p50 ms", "p99 ms", "bad"
    );
    for row in rows {
        let (low, cpu, high) = spread(&row.cpu_us);
        println!(
            "{:<12}{:>30}{:>12.0}{:>9.2}{:>9.2}{:>6}",
            row.peer,
            format!("{cpu:.1} ({low:.1}–{high:.1})"),
            spread(&row.per_s).1,
            spread(&row.p50_ms).1,
            spread(&row.p99_ms).1,
            row.bad
        );
    }
    if let Some(ratio) = ratio(rows) {
        println!("ours / the better of the others, round by round: {ratio:.2}");
    }
}

/// The median of the rounds' ratios of CPU a request.
fn ratio(rows: &[Row]) -> Option<f64> {
    let (ours, others) = rows.split_first()?;
    let better = |round: usize| {
        (others.iter())
            .filter_map(|row| row.cpu_us.get(round).copied())
            .min_by(f64::total_cmp)
    };
    let ratios: Vec<f64> = (ours.cpu_us.iter().enumerate())
        .filter_map(|(round, cpu)| Some(cpu / better(round)?))
        .collect();
    (!ratios.is_empty()).then(|| spread(&ratios).1)
}

fn to_json(rows: &[Row]) -> Value {
    let peers: Map<String, Value> = (rows.iter())
        .map(|row| {
            let (low, median, high) = spread(&row.cpu_us);
            let figures = json!({
                "cpu_us_per_request": { "min": low, "median": median, "max": high },
                "requests_per_s": spread(&row.per_s).1,
                "p50_ms": spread(&row.p50_ms).1, "p99_ms": spread(&row.p99_ms).1, "bad": row.bad,
            });
            (row.peer.to_owned(), figures)
        })
        .collect();
    json!({ "peers": peers, "cpu_ratio_to_the_better_other": ratio(rows) })
}

fn versions() -> Value {
    let first_line = |program: &str, arg: &str| {
        let output = Command::new(program).arg(arg).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().next().map(str::to_owned)
    };
    json!({
        "nginx": first_line("nginx", "-v"), "haproxy": first_line("haproxy", "-v"),
        "wrk": first_line("wrk", "-v"),
    })
}
