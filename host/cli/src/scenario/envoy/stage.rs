//! A scenario on its way: what was sent, and what is known of it.

use super::fleet::{all_targets, plugin};
use super::wire::{self, Event, Head};
use super::{EnvoyHost, config};
use crate::envoy::{Bootstrap, Envoy, Filter, get};
use crate::scenario::expect::{Difference, Got};
use crate::scenario::file::{Load, Scenario, Send, Step};
use anyhow::{Context, Result, anyhow, bail};
use pointsman_core::Phase;
use pointsman_envoy_adapter::config as adapter;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Nothing here takes so long, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(20);
/// Worker threads: what one has decided, another one must know.
const WORKERS: usize = 2;
/// Where the adapter itself is asked.
pub(super) const CONTROL: &str = "/pointsman-test";

/// A request that was sent.
#[derive(Default)]
struct Sent {
    attempt: u32,
    tried: Vec<usize>,
    target: Option<usize>,
    client: Option<TcpStream>,
    /// what the engine was told
    head: Head,
    engine: Option<TcpStream>,
    answered: bool,
    output: bool,
    /// what the client got
    answer: Vec<u8>,
    closed: bool,
}

/// See the module.
pub struct Stage<'a> {
    host: &'a EnvoyHost,
    envoy: Envoy,
    pub(super) plugin: adapter::Config,
    pub(super) names: Vec<String>,
    /// in the fleet now
    pub(super) present: Vec<bool>,
    others: HashMap<usize, Load>,
    sent: HashMap<String, Sent>,
    /// requests that an engine got and that are over
    ended: u64,
    swaps: u32,
    events: Receiver<Event>,
    sender: Sender<Event>,
    filter: PathBuf,
    _folder: tempfile::TempDir,
}

impl<'a> Stage<'a> {
    /// Starts Envoy with the policy in it.
    pub fn set(host: &'a EnvoyHost, scenario: &Scenario, policy: &str) -> Result<Stage<'a>> {
        let (sender, events) = channel();
        let mut plugin = plugin(scenario)?;
        for (target, endpoint) in plugin.endpoints.iter_mut().enumerate() {
            endpoint.address = wire::engine(target, sender.clone())?.to_string();
        }
        let folder = tempfile::tempdir()?;
        let filter = folder.path().join("filter.yaml");
        let module = host.module(policy)?;
        let text = Filter {
            module: &module,
            config: &plugin,
        };
        std::fs::write(&filter, text.yaml()?)?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let bootstrap = Bootstrap {
            listen: any,
            admin: any,
            filter: &filter,
            engines: plugin.endpoints.iter().map(|e| e.address.clone()).collect(),
            connect: Duration::from_secs(2),
            retries: 0,
            body_bytes: 1 << 20,
        };
        let path = folder.path().join("envoy.yaml");
        std::fs::write(&path, bootstrap.yaml())?;
        let envoy = Envoy::start(&host.envoy, &path, u32::try_from(WORKERS)?)?;
        let stage = Stage {
            host,
            envoy,
            names: all_targets(scenario).map(str::to_owned).collect(),
            present: plugin.endpoints.iter().map(|e| !e.absent).collect(),
            plugin,
            others: HashMap::new(),
            sent: HashMap::new(),
            ended: 0,
            swaps: 0,
            events,
            sender,
            filter,
            _folder: folder,
        };
        // Time begins.
        stage.control(&json!({ "advance_ms": 0 }))?;
        Ok(stage)
    }

    /// One step.
    pub fn step(&mut self, step: &Step) -> Result<Result<(), Difference>> {
        if let Some(send) = &step.send {
            let got = self.send(send)?;
            let expect = step.expect.clone().unwrap_or_default();
            if let Some(target) = &expect.target {
                self.target(target)?;
            }
            let difference = expect.compare(&got, |other| self.where_is(other))?;
            if difference.is_err() {
                return Ok(difference);
            }
        } else if step.expect.is_some() {
            bail!("`expect` without `send`: they belong into one step");
        }
        if let Some(id) = &step.dispatched {
            self.dispatched(id)?;
        }
        if let Some(id) = &step.output {
            self.output(id)?;
        }
        if let Some(id) = &step.finish {
            self.finish(id)?;
        }
        if let Some(id) = &step.fail {
            self.fail(id)?;
        }
        if let Some(id) = &step.cancel {
            wire::leave(&self.take(id)?);
            self.over()?;
        }
        if let Some(session) = &step.r#final {
            self.control(&json!({ "end_session": session }))?;
        }
        self.membership(step)?;
        if let Some(ms) = step.advance_ms {
            self.control(&json!({ "advance_ms": ms }))?;
        }
        if let Some(load) = &step.load {
            self.load(load)?;
        }
        if let Some(check) = &step.check {
            let difference = self.check(check)?;
            if difference.is_err() {
                return Ok(difference);
            }
        }
        if let Some(swap) = &step.swap {
            self.plugin.policy = config(&swap.config)?;
            self.swap(&swap.policy)?;
        }
        Ok(Ok(()))
    }

    /// Sends a request, and waits until an engine has it, or the client an answer.
    fn send(&mut self, send: &Send) -> Result<Got> {
        let before = self.sent.remove(&send.id).unwrap_or_default();
        if before.client.is_some() {
            bail!(
                "{:?} is still in flight: end it first, or use another id",
                send.id
            );
        }
        let mut headers = Vec::new();
        let mut say = |name: &str, value: &str| headers.push((name.to_owned(), value.to_owned()));
        say("x-pointsman-explain", "1");
        say("x-pointsman-test-seed", &send.id);
        say("x-pointsman-test-tokens", &send.tokens.to_string());
        say("x-pointsman-test-shared", &send.shared.to_string());
        say("x-pointsman-test-phase", Phase::from(send.phase).as_str());
        say("x-pointsman-test-model", &send.model);
        say("x-pointsman-test-attempt", &before.attempt.to_string());
        let tried: Vec<String> = before.tried.iter().map(usize::to_string).collect();
        say("x-pointsman-test-tried", &tried.join(","));
        let named = [
            ("x-dynamo-session-id", &send.session),
            ("x-dynamo-parent-session-id", &send.parent),
            ("x-pointsman-target", &send.explicit),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                say(name, value);
            }
        }
        // Attempts of one request are told apart at both ends.
        let id = format!("{}#{}", send.id, before.attempt);
        let client = wire::client(self.envoy.clients, &id, &headers, self.sender.clone())?;
        let sent = Sent {
            client: Some(client),
            attempt: before.attempt,
            tried: before.tried,
            ..Sent::default()
        };
        self.sent.insert(send.id.clone(), sent);
        self.until(&send.id, "an engine or an answer", |sent| {
            sent.engine.is_some() || sent.is_over()
        })?;
        self.got(&send.id)
    }

    fn got(&mut self, id: &str) -> Result<Got> {
        let names = &self.names;
        let sent = self.sent.get_mut(id).ok_or_else(|| not_in_flight(id))?;
        if sent.engine.is_some() {
            let told = |name: &str| sent.head.get(name).unwrap_or_default().to_owned();
            let target = told("x-pointsman-target");
            let at = sent.target.and_then(|target| names.get(target));
            let rank = target.split('/').nth(1).unwrap_or_default();
            if at != Some(&target) || told("x-data-parallel-rank") != rank {
                bail!(
                    "{id:?} was decided for {target}, and went to {at:?} with rank {:?}",
                    told("x-data-parallel-rank")
                );
            }
            return Ok(Got::Routed {
                target,
                reason: told("x-pointsman-reason"),
                fallback: told("x-pointsman-fallback") == "true",
                adopted: told("x-pointsman-adopted") == "true",
            });
        }
        sent.client = None;
        let (head, body) = Head::parse(&sent.answer)
            .with_context(|| format!("{id:?} got neither an engine nor an answer"))?;
        let reason = head
            .get("x-pointsman-reason")
            .filter(|word| *word != "none");
        Ok(Got::Refused {
            status: head.status,
            message: String::from_utf8_lossy(body).into_owned(),
            reason: reason.map(str::to_owned),
            fallback: head.get("x-pointsman-fallback") == Some("true"),
        })
    }

    fn dispatched(&mut self, id: &str) -> Result<()> {
        let sent = self.flying(id)?;
        if sent.answered {
            return Ok(());
        }
        sent.answered = true;
        sent.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")?;
        self.until(id, "the head of the answer", |sent| {
            Head::parse(&sent.answer).is_some()
        })
    }

    fn output(&mut self, id: &str) -> Result<()> {
        self.dispatched(id)?;
        let sent = self.flying(id)?;
        if sent.output {
            return Ok(());
        }
        sent.output = true;
        sent.say(b"5\r\ntoken\r\n")?;
        self.until(id, "the first output", |sent| {
            sent.answer.windows(5).any(|part| part == b"token")
        })
    }

    fn finish(&mut self, id: &str) -> Result<()> {
        self.output(id)?;
        self.flying(id)?.say(b"0\r\n\r\n")?;
        self.until(id, "the end of the answer", Sent::is_over)?;
        self.take(id)?;
        self.over()
    }

    /// The engine dies. Before its head the request may be sent anew.
    fn fail(&mut self, id: &str) -> Result<()> {
        let sent = self.flying(id)?;
        if let Some(engine) = sent.engine.take() {
            wire::reset(engine);
        }
        sent.attempt += 1;
        sent.tried.extend(sent.target);
        self.until(id, "the end of the answer", Sent::is_over)?;
        self.take(id)?;
        self.over()
    }

    /// Waits until Envoy has logged one more request.
    fn over(&mut self) -> Result<()> {
        self.ended += 1;
        let end = Instant::now() + PATIENCE;
        loop {
            let said = self.control(&json!({}))?;
            let ended = said.get("ended").and_then(Value::as_u64).unwrap_or(0);
            if ended == self.ended {
                return Ok(());
            }
            if ended > self.ended || Instant::now() > end {
                bail!(
                    "{} requests are over, and Envoy has logged {ended}",
                    self.ended
                );
            }
            std::thread::yield_now();
        }
    }

    fn load(&mut self, load: &Load) -> Result<()> {
        let target = self.target(&load.target)?;
        let before = self.others.insert(target, load.clone());
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let more = |now: u64, before: Option<u64>| signed(now) - signed(before.unwrap_or(0));
        let before = before.as_ref();
        self.control(&json!({ "load": {
            "target": target,
            "requests": more(load.requests.into(), before.map(|b| b.requests.into())),
            "prefill_tokens": more(load.prefill_tokens, before.map(|b| b.prefill_tokens)),
            "context_tokens": more(load.context_tokens, before.map(|b| b.context_tokens)),
        } }))?;
        Ok(())
    }

    /// Replaces the policy, and waits until it decides in every worker.
    fn swap(&mut self, policy: &str) -> Result<()> {
        self.swaps += 1;
        let label = format!("swap {}", self.swaps);
        if let Some(test) = &mut self.plugin.test {
            test.label.clone_from(&label);
        }
        let text = Filter {
            module: &self.host.module(policy)?,
            config: &self.plugin,
        };
        let next = self.filter.with_extension("next");
        std::fs::write(&next, text.yaml()?)?;
        std::fs::rename(&next, &self.filter)?;
        let end = Instant::now() + PATIENCE;
        let mut workers = BTreeSet::new();
        while workers.len() < WORKERS {
            let said = self.control(&json!({}))?;
            if said.get("label").and_then(Value::as_str) == Some(&label) {
                workers.extend(said.get("vm").and_then(Value::as_u64));
            }
            if Instant::now() > end {
                bail!("the policy {policy} does not decide:{}", self.envoy.log());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    pub(super) fn control(&self, wanted: &Value) -> Result<Value> {
        let header = [("x-pointsman-control", &*wanted.to_string())];
        let (status, body) = get(self.envoy.clients, CONTROL, &header)?;
        if status != 200 {
            bail!(
                "the adapter does not answer: {status} {body}{}",
                self.envoy.log()
            );
        }
        Ok(serde_json::from_str(&body)?)
    }

    /// Takes in what happens until `ready` says that it is enough.
    fn until(&mut self, id: &str, what: &str, ready: impl Fn(&Sent) -> bool) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !ready(self.sent.get(id).ok_or_else(|| not_in_flight(id))?) {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.happened(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("{id:?}: {what} did not come:{}", self.envoy.log())
                }
            }
        }
        Ok(())
    }

    fn happened(&mut self, event: Event) {
        let id = match &event {
            Event::Arrived { id, .. } | Event::Answer { id, .. } | Event::Closed { id } => id,
        };
        let (id, attempt) = id.rsplit_once('#').unwrap_or((id, "0"));
        let Some(sent) = self.sent.get_mut(id) else {
            return;
        };
        if attempt != sent.attempt.to_string() && !matches!(event, Event::Closed { .. }) {
            return;
        }
        match event {
            Event::Arrived {
                target,
                head,
                connection,
                ..
            } => {
                sent.target = Some(target);
                sent.head = head;
                sent.engine = Some(connection);
            }
            Event::Answer { bytes, .. } => sent.answer.extend(bytes),
            Event::Closed { .. } => sent.closed = true,
        }
    }

    /// The newest target of a name that was ever part of the fleet.
    pub(super) fn target(&self, name: &str) -> Result<usize> {
        let known = |(target, other): &(usize, &String)| {
            *other == name
                && self
                    .plugin
                    .endpoints
                    .get(*target)
                    .is_some_and(|e| !e.absent)
        };
        let found = self.names.iter().enumerate().rfind(known);
        let (target, _) = found.with_context(|| {
            format!(
                "target {name:?} is not in the fleet: {}",
                self.names.join(", ")
            )
        })?;
        Ok(target)
    }

    fn where_is(&self, id: &str) -> Result<String> {
        let sent = self.sent.get(id).and_then(|sent| sent.target);
        let target = sent.with_context(|| format!("{id:?} was not routed before this step"))?;
        Ok(self.names.get(target).cloned().unwrap_or_default())
    }

    fn flying(&mut self, id: &str) -> Result<&mut Sent> {
        let sent = self.sent.get_mut(id).filter(|sent| sent.client.is_some());
        sent.ok_or_else(|| not_in_flight(id))
    }

    fn take(&mut self, id: &str) -> Result<TcpStream> {
        self.flying(id)?
            .client
            .take()
            .ok_or_else(|| not_in_flight(id))
    }
}

impl Sent {
    fn is_over(&self) -> bool {
        self.closed || Head::parse(&self.answer).is_some_and(|(head, body)| head.ends(body))
    }

    fn say(&mut self, bytes: &[u8]) -> Result<()> {
        let engine = self.engine.as_mut().context("its engine is gone")?;
        Ok(engine.write_all(bytes)?)
    }
}

fn not_in_flight(id: &str) -> anyhow::Error {
    anyhow!("{id:?} is not in flight: it was not sent, was refused, or has ended")
}
