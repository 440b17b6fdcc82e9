//! Engines that are killed, paused, stuttering and faulty at random under traffic of sessions, streams
//! and clients that leave: every request ends in exactly one defined way, and nothing stays behind.
//!
//! `CHAOS_SEED` and `CHAOS_SECONDS` choose another run. Every choice (which fault hits which engine for
//! how long; what each client sends, in which session, and when it leaves) is a function of the seed
//! and a number, so that the same seed makes the same plan. When, within it, a request meets a fault
//! is up to the machine: how far the plan gets in the time, and the counts at the end, differ.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helper fails the test"
)]

use anyhow::{Context, Result, bail, ensure};
use pointsman_core::splitmix64;
use pointsman_tests::{Engine, Host};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep_until, timeout};

const ENGINES: usize = 3;
const RANKS: usize = 2;
const CLIENTS: u64 = 16;
const SESSIONS: u64 = 40;
/// No request may take longer: the host gives up on a silent engine after a second, three times.
const PATIENCE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_secs(30);

/// A second without a word from an engine is too long, and a breaker does not stay open for long.
fn config(engines: &[Engine]) -> String {
    let endpoints: String = (engines.iter())
        .map(|e| {
            format!(
                "{{ name = \"{}\", url = \"{}\", ranks = {RANKS} }},",
                e.name, e.url
            )
        })
        .collect();
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nthreads = 2\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [policy]\nuse = \"parent-affinity\"\n[retry]\nattempts = 3\n\
         [limits]\nfirst_byte = \"1s\"\nidle = \"1s\"\nclient = \"5s\"\nidle_connection = \"1s\"\n\
         [[pool]]\nname = \"main\"\ndialect = \"vllm\"\nendpoints = [{endpoints}]\n\
         health = {{ interval = \"50ms\", timeout = \"500ms\" }}\n\
         breaker = {{ failures = 5, cooldown = \"50ms\" }}\n"
    )
}

/// Numbers from the seed; `who` and `n` say which.
#[derive(Clone, Copy)]
struct Dice(u64);

impl Dice {
    fn of(seed: u64, who: u64, n: u64) -> Dice {
        Dice(splitmix64(
            splitmix64(seed ^ splitmix64(who)).wrapping_add(n),
        ))
    }

    /// 0 to `sides` - 1.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = splitmix64(self.0);
        self.0 % sides
    }
}

/// What happens to an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Kill,
    Pause,
    Stutter,
    Mode(&'static str),
}

/// One step of the plan.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    fault: Fault,
    /// how long, or how many requests
    extent: u64,
    rest: Duration,
}

impl Step {
    fn of(seed: u64, engine: u64, n: u64) -> Step {
        let mut dice = Dice::of(seed, engine, n);
        Step {
            fault: match dice.roll(12) {
                0 | 1 => Fault::Kill,
                2 | 3 => Fault::Pause,
                4 | 5 => Fault::Stutter,
                6 => Fault::Mode("error-500"),
                7 => Fault::Mode("error-503"),
                8 => Fault::Mode("hang-before-head"),
                9 => Fault::Mode("reset-before-head"),
                10 => Fault::Mode("reset-mid-stream"),
                _ => Fault::Mode("sse-error"),
            },
            extent: 1 + dice.roll(8),
            rest: Duration::from_millis(50 + dice.roll(1000)),
        }
    }

    async fn play(self, engine: &mut Engine, client: &Client) -> Result<()> {
        match self.fault {
            Fault::Kill => {
                let address = engine.address();
                engine.process.kill().await?;
                rest(Duration::from_millis(20 * self.extent)).await;
                *engine = Engine::start_with(&engine.name, RANKS, &address, "0.05").await?;
            }
            Fault::Pause => {
                engine.process.signal("STOP").await?;
                rest(Duration::from_millis(150 * self.extent)).await;
                engine.process.signal("CONT").await?;
            }
            Fault::Stutter => {
                for _ in 0..self.extent {
                    engine.process.signal("STOP").await?;
                    rest(Duration::from_millis(20)).await;
                    engine.process.signal("CONT").await?;
                    rest(Duration::from_millis(10)).await;
                }
            }
            Fault::Mode(mode) => {
                let fault = json!({ "mode": mode, "count": self.extent });
                post_fault(client, engine, &fault).await?;
            }
        }
        rest(self.rest).await;
        Ok(())
    }
}

async fn post_fault(client: &Client, engine: &Engine, fault: &Value) -> Result<()> {
    let post = client.post(format!("{}/fault", engine.url)).json(fault);
    let answer = timeout(PATIENCE, post.send()).await??;
    answer.error_for_status()?;
    Ok(())
}

/// The plan's own time: there is no event to wait for.
async fn rest(time: Duration) {
    sleep_until(Instant::now() + time).await;
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Plan {
    session: Option<u64>,
    parent: Option<u64>,
    last: bool,
    stream: bool,
    words: u64,
    tokens: u64,
    leaves: Option<Leaves>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    /// whether or not the head has come by then
    After(Duration),
    AfterPieces(u64),
}

impl Plan {
    fn of(seed: u64, client: u64, n: u64) -> Plan {
        let mut dice = Dice::of(seed, ENGINES as u64 + client, n);
        Plan {
            session: (dice.roll(10) > 0).then(|| dice.roll(SESSIONS)),
            parent: (dice.roll(3) == 0).then(|| dice.roll(SESSIONS / 8)),
            last: dice.roll(20) == 0,
            stream: dice.roll(3) > 0,
            words: 1 + dice.roll(600),
            tokens: 1 + dice.roll(60),
            leaves: match dice.roll(8) {
                0 => Some(Leaves::After(Duration::from_millis(dice.roll(60)))),
                1 => Some(Leaves::AfterPieces(1 + dice.roll(5))),
                _ => None,
            },
        }
    }

    async fn play(self, host: &Host) -> Result<End> {
        let body = json!({
            "model": "demo", "max_tokens": self.tokens, "stream": self.stream,
            "messages": [{ "role": "user", "content": "word ".repeat(self.words as usize) }],
        });
        let session = self.session.map(|n| format!("s{n}")).unwrap_or_default();
        let mut request = host.request_with(&session, &body);
        if let Some(parent) = self.parent {
            request = request.header("x-parent-session-id", format!("p{parent}"));
        }
        if self.last {
            request = request.header("x-dynamo-session-final", "true");
        }
        let answer = async {
            let answer = request.send().await.context("no answer at all")?;
            self.read(answer).await
        };
        match self.leaves {
            Some(Leaves::After(time)) => match timeout(time, answer).await {
                Ok(end) => end,
                Err(_) => Ok(End::Left),
            },
            _ => answer.await,
        }
    }

    async fn read(self, mut answer: Response) -> Result<End> {
        let status = answer.status().as_u16();
        let stop = match self.leaves {
            Some(Leaves::AfterPieces(pieces)) => pieces,
            _ => u64::MAX,
        };
        let (mut pieces, mut bytes) = (0, Vec::new());
        loop {
            match answer.chunk().await {
                Ok(Some(piece)) => bytes.extend_from_slice(&piece),
                Ok(None) => break,
                Err(_) if status == 200 => return Ok(End::Torn),
                Err(error) => bail!("the answer {status} broke off: {error}"),
            }
            pieces += 1;
            if pieces >= stop {
                return Ok(End::Left);
            }
        }
        let text = String::from_utf8(bytes).context("no text")?;
        if status != 200 {
            let body: Value = serde_json::from_str(&text)
                .with_context(|| format!("{status} without an error in JSON: {text:?}"))?;
            ensure!(
                body.pointer("/error/message").is_some_and(Value::is_string),
                "{status}: {text}"
            );
            ensure!([500, 502, 503, 504].contains(&status), "{status}: {text}");
            return Ok(End::Error(status));
        }
        if !self.stream {
            let body: Value = serde_json::from_str(&text).context("half a body in good order")?;
            ensure!(body.get("choices").is_some_and(Value::is_array), "{text}");
            return Ok(End::Whole);
        }
        if text.trim_end().ends_with("data: [DONE]") && !text.contains("\"error\"") {
            return Ok(End::Whole);
        }
        ensure!(
            text.contains("data: {\"error\""),
            "half a stream in good order: {text}"
        );
        Ok(End::ErrorInStream)
    }
}

/// How a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// 200, whole
    Whole,
    /// an error status with an error in JSON
    Error(u16),
    /// 200, and the engine said in an event that it failed
    ErrorInStream,
    /// 200, and it broke off
    Torn,
    /// the client left
    Left,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Error(status) => write!(f, "error {status}"),
            other => write!(f, "{other:?}"),
        }
    }
}

type Ends = BTreeMap<End, u64>;

/// Sends until it is told to stop.
async fn client(host: &Host, seed: u64, number: u64, stop: watch::Receiver<bool>) -> Result<Ends> {
    let mut ends = Ends::new();
    for n in 0.. {
        if *stop.borrow() {
            break;
        }
        let plan = Plan::of(seed, number, n);
        let end = timeout(PATIENCE, plan.play(host)).await;
        let end = end.unwrap_or_else(|_| bail!("it did not end"));
        let end = end.with_context(|| format!("request {n} of client {number}: {plan:?}"))?;
        *ends.entry(end).or_default() += 1;
        if end == End::Error(503) {
            // Nobody is there: as fast as that, refusals would be all that there is.
            rest(Duration::from_millis(20)).await;
        }
    }
    Ok(ends)
}

/// One fault of an engine after the other; says how many there were.
async fn wreck(
    engine: &mut Engine,
    seed: u64,
    number: u64,
    stop: watch::Receiver<bool>,
) -> Result<u64> {
    let client = Client::new();
    let mut steps = 0;
    while !*stop.borrow() {
        let step = Step::of(seed, number, steps);
        let played = step.play(engine, &client).await;
        played.with_context(|| format!("step {steps} of engine {number}: {step:?}"))?;
        steps += 1;
    }
    post_fault(&client, engine, &json!({ "mode": "none" })).await?;
    Ok(steps)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[tokio::test]
async fn every_request_ends_in_one_way_and_nothing_stays_behind() -> Result<()> {
    let (seed, seconds) = (number("CHAOS_SEED", 2_016), number("CHAOS_SECONDS", 8));
    let mut engines = Vec::new();
    for name in ["a", "b", "c"] {
        engines.push(Engine::start_with(name, RANKS, "127.0.0.1:0", "0.05").await?);
    }
    let host = Host::start_config(&config(&engines)).await?;
    host.metrics_until(SOON, |m| {
        m.sum("pointsman_target_up", &[]) == (ENGINES * RANKS) as f64
    })
    .await?;
    let at_rest = host.process.usage()?;

    let (stop, stopping) = watch::channel(false);
    let clock = async {
        // Half of the time is for caches and pools to fill.
        rest(Duration::from_secs(seconds) / 2).await;
        let warm = host.process.usage()?;
        rest(Duration::from_secs(seconds) / 2).await;
        stop.send(true)?;
        anyhow::Ok(warm)
    };
    let clients = (0..CLIENTS).map(|n| client(&host, seed, n, stopping.clone()));
    let wrecks = (engines.iter_mut().zip(0..))
        .map(|(engine, number)| wreck(engine, seed, number, stopping.clone()));
    let (warm, faults, all) = tokio::try_join!(
        clock,
        futures_util::future::try_join_all(wrecks),
        futures_util::future::try_join_all(clients),
    )
    .with_context(|| format!("CHAOS_SEED={seed}"))?;

    let mut ends = Ends::new();
    for (end, n) in all.into_iter().flatten() {
        *ends.entry(end).or_default() += n;
    }
    let said: Vec<String> = ends.iter().map(|(end, n)| format!("{end} {n}")).collect();
    println!(
        "CHAOS_SEED={seed}: {seconds} s, faults {faults:?}; {}",
        said.join(", ")
    );

    // Every engine is back: nothing is held, and every session is served.
    let metrics = host
        .metrics_until(SOON, |m| {
            m.outstanding() == 0.0 && m.sum("pointsman_target_up", &[]) == (ENGINES * RANKS) as f64
        })
        .await?;
    let counted = metrics.sum("pointsman_requests_total", &[]);
    for n in 0..SESSIONS {
        let answer = host.chat(&format!("s{n}"), "hello").await?;
        ensure!(answer.status == 200, "s{n}: {answer:?}");
        let again = host.chat(&format!("s{n}"), "hello").await?;
        ensure!(
            again.target == answer.target && again.reason == "owner",
            "s{n}: {again:?}"
        );
    }
    let total: u64 = ends.values().sum();
    println!("{total} requests, {counted} counted by the host");
    // A client that leaves before its request is sent is not seen by the host.
    let left = ends.get(&End::Left).copied().unwrap_or_default();
    ensure!(
        counted <= total as f64 && counted >= (total - left) as f64,
        "{counted} of {total}"
    );
    for end in [End::Whole, End::Torn, End::Left] {
        ensure!(
            ends.contains_key(&end),
            "no request ended {end}: is there any chaos?"
        );
    }

    // Idle connections go within their second.
    let files = async {
        let mut look = interval(Duration::from_millis(50));
        loop {
            look.tick().await;
            let usage = host.process.usage()?;
            if usage.files <= at_rest.files + CLIENTS as usize + 8 {
                return anyhow::Ok(usage);
            }
        }
    };
    let end = timeout(SOON, files).await.context("files stay open")??;
    println!("at rest {at_rest:?}\nwarm    {warm:?}\nend     {end:?}");
    ensure!(end.threads == at_rest.threads, "{} threads", end.threads);
    let grown = end.resident_kb.saturating_sub(warm.resident_kb);
    ensure!(grown < 16 << 10, "{grown} KiB more than when it was warm");
    Ok(())
}

#[test]
fn a_seed_is_a_plan() {
    let plan = |seed| {
        let steps: Vec<Step> = (0..100).map(|n| Step::of(seed, 0, n)).collect();
        let requests: Vec<Plan> = (0..CLIENTS)
            .flat_map(|client| (0..100).map(move |n| Plan::of(seed, client, n)))
            .collect();
        (steps, requests)
    };
    assert_eq!(plan(1), plan(1));
    assert_ne!(plan(1), plan(2));
    let (steps, _) = plan(2_016);
    for fault in [Fault::Kill, Fault::Pause, Fault::Stutter] {
        assert!(steps.iter().any(|step| step.fault == fault), "{fault:?}");
    }
}
