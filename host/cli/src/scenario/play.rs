//! Plays a scenario: its steps drive the host's own state machines.

use super::expect::{Difference, Got, Outstanding, json};
use super::file::{Bound, Check, Expect, Load, Scenario, Send, Step};
use crate::policies::Decider;
use anyhow::{Context, Result, anyhow, bail};
use pointsman_core::{
    Charge, Core, Endpoint, Explicit, Fallback, Incoming, Key, Limits, ManualClock, Outcome, Roles,
    Router, Scope, Shared, Target, TargetSpec, Ticket, Worker, decide, hash_text,
};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Where policies run while a scenario is played.
pub trait Host {
    /// A policy by name or path, configured with JSON.
    fn policy(&self, core: &Arc<Core>, policy: &str, config: &str) -> Result<Decider>;
}

/// Plays it; `policy` is used where the file names none, and instead of the one that it names.
/// The inner result is the scenario's own outcome, the outer one says that it could not be played.
pub fn play(
    scenario: &Scenario,
    host: &dyn Host,
    policy: Option<&str>,
) -> Result<Result<(), Difference>> {
    let mut stage = Stage::set(scenario, host, scenario.policy_or(policy)?)?;
    scenario.walk(|step| stage.step(step))
}

/// A request that was sent.
struct Sent {
    target: Option<Target>,
    ticket: Option<Ticket>,
    attempt: u32,
    tried: Vec<Target>,
}

struct Stage<'a> {
    host: &'a dyn Host,
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
    sent: HashMap<String, Sent>,
    /// what others hold
    others: HashMap<Target, Charge>,
    names: Vec<String>,
}

impl<'a> Stage<'a> {
    fn set(scenario: &Scenario, host: &'a dyn Host, policy: &str) -> Result<Stage<'a>> {
        let clock = Arc::new(ManualClock::default());
        let limits = Limits {
            max: scenario.bindings.max,
            ttl_ms: scenario.bindings.ttl_ms,
            when_full: scenario.bindings.when_full.into(),
        };
        if limits.max == 0 {
            bail!("bindings.max = 0: wanted at least 1");
        }
        let core = Arc::new(Core::new(limits, clock.clone()));
        let (policy, router) = host.policy(&core, policy, &json(&scenario.config)?)?;
        let mut stage = Stage {
            host,
            worker: Worker::new(core.clone(), policy),
            core,
            clock,
            router,
            sent: HashMap::new(),
            others: HashMap::new(),
            names: Vec::new(),
        };
        for target in &scenario.fleet.targets {
            stage.add(target)?;
        }
        Ok(stage)
    }

    fn step(&mut self, step: &Step) -> Result<Result<(), Difference>> {
        if let Some(send) = &step.send {
            let outcome = self.send(send)?;
            let expect = step.expect.clone().unwrap_or_default();
            if let Err(difference) = self.expect(&expect, &send.id, outcome)? {
                return Ok(Err(difference));
            }
        } else if step.expect.is_some() {
            bail!("`expect` without `send`: they belong into one step");
        }
        if let Some(id) = &step.dispatched {
            self.ticket(id)?.dispatched();
        }
        if let Some(id) = &step.output {
            self.ticket(id)?.output();
        }
        if let Some(id) = &step.finish {
            self.take(id)?.finish();
        }
        if let Some(id) = &step.fail {
            self.fail(id)?;
        }
        if let Some(id) = &step.cancel {
            self.take(id)?.cancel();
        }
        if let Some(session) = &step.r#final {
            self.core.end_session(hash_text(session));
        }
        self.membership(step)?;
        if let Some(ms) = step.advance_ms {
            self.clock.advance(ms);
            self.core.sweep();
        }
        if let Some(load) = &step.load {
            self.load(load)?;
        }
        if let Some(check) = &step.check
            && let Err(difference) = self.check(check)?
        {
            return Ok(Err(difference));
        }
        if let Some(swap) = &step.swap {
            let config = json(&swap.config)?;
            let (policy, router) = self.host.policy(&self.core, &swap.policy, &config)?;
            self.worker = Worker::new(self.core.clone(), policy);
            self.router = router;
        }
        Ok(Ok(()))
    }

    fn membership(&mut self, step: &Step) -> Result<()> {
        type Change = fn(&mut pointsman_core::Standing);
        let changes: [(&Option<String>, Change); 5] = [
            (&step.down, |s| s.healthy = false),
            (&step.up, |s| s.healthy = true),
            (&step.drain, |s| s.draining = true),
            (&step.undrain, |s| s.draining = false),
            (&step.remove, |s| s.removed = true),
        ];
        for (name, change) in changes {
            if let Some(name) = name {
                let target = self.target(name)?;
                self.core.fleet.set(&[target], change);
            }
        }
        match &step.add {
            Some(name) => self.add(name),
            None => Ok(()),
        }
    }

    fn add(&mut self, name: &str) -> Result<()> {
        let rank = name
            .split_once('/')
            .and_then(|(endpoint, rank)| Some((endpoint, rank.parse().ok()?)));
        let Some((endpoint, rank)) = rank else {
            bail!("target {name:?}: wanted \"endpoint/rank\", for example \"a/0\"");
        };
        if self.core.fleet.snapshot().find(name).is_some() {
            bail!("target {name:?} is there already: remove it first");
        }
        let id = self.core.fleet.add(TargetSpec {
            endpoint: Endpoint {
                name: name.to_owned(),
                url: format!("http://{endpoint}"),
                rank,
                labels: Vec::new(),
            },
            roles: Roles::ALL,
            models: None,
        });
        debug_assert_eq!(id as usize, self.names.len());
        self.names.push(name.to_owned());
        Ok(())
    }

    fn send(&mut self, send: &Send) -> Result<Outcome> {
        // The same id again after a failure is its retry, as the proxy would make it.
        let (attempt, tried) = match self.sent.get(&send.id) {
            None => (0, Vec::new()),
            Some(Sent {
                ticket: Some(_), ..
            }) => bail!(
                "{:?} is still in flight: end it first, or use another id",
                send.id
            ),
            Some(before) => (before.attempt, before.tried.clone()),
        };
        let incoming = Incoming {
            phase: send.phase.into(),
            model: hash_text(&send.model),
            seed: hash_text(&send.id),
            attempt,
            session: send.session.as_deref().map(hash_text),
            parent: (send.parent.as_deref())
                .filter(|parent| Some(*parent) != send.session.as_deref())
                .map(hash_text),
            prompt_tokens: send.tokens,
            shared: Shared::Given(send.shared),
            explicit: match &send.explicit {
                None => Explicit::None,
                Some(name) => (self.core.fleet.snapshot().find(name))
                    .map_or(Explicit::Unknown, Explicit::Target),
            },
            tried: tried.clone(),
            ..Incoming::default()
        };
        let outcome = decide(
            &self.worker,
            self.router.as_mut(),
            Fallback::LeastLoad,
            &incoming,
        );
        let sent = Sent {
            target: None,
            ticket: None,
            attempt,
            tried,
        };
        self.sent.insert(send.id.clone(), sent);
        Ok(outcome)
    }

    fn expect(
        &mut self,
        expect: &Expect,
        id: &str,
        outcome: Outcome,
    ) -> Result<Result<(), Difference>> {
        let got = match &outcome {
            Outcome::Refused(refusal) => Got::Refused {
                status: refusal.status,
                message: refusal.message.clone(),
                reason: refusal.reason.clone(),
                fallback: refusal.fallback,
            },
            Outcome::Routed(ticket) => {
                let verdict = ticket.verdict();
                let failure = verdict.failure.as_ref();
                Got::Routed {
                    target: self.name(ticket.target()),
                    reason: (failure.map(|f| format!("fallback: {f}")))
                        .or(verdict.reason.clone())
                        .unwrap_or_default(),
                    fallback: verdict.fallback,
                    adopted: verdict.adopted,
                }
            }
        };
        if let Outcome::Routed(ticket) = outcome
            && let Some(sent) = self.sent.get_mut(id)
        {
            sent.target = Some(ticket.target());
            sent.ticket = Some(ticket);
        }
        if let Some(target) = &expect.target {
            self.target(target)?;
        }
        expect.compare(&got, |other| self.where_is(other))
    }

    fn fail(&mut self, id: &str) -> Result<()> {
        let ticket = self.take(id)?;
        let target = ticket.target();
        ticket.fail();
        if let Some(sent) = self.sent.get_mut(id) {
            sent.attempt += 1;
            sent.tried.push(target);
        }
        Ok(())
    }

    fn load(&mut self, load: &Load) -> Result<()> {
        let target = self.target(&load.target)?;
        let now = Charge {
            requests: load.requests,
            prefill_tokens: load.prefill_tokens,
            context_tokens: load.context_tokens,
        };
        let before = self.others.insert(target, now).unwrap_or_default();
        let fleet = self.core.fleet.snapshot();
        fleet.ledger().charge(target, now);
        fleet.ledger().release(target, before);
        Ok(())
    }

    fn check(&self, check: &Check) -> Result<Result<(), Difference>> {
        if let Some(bound) = &check.bound
            && let Err(difference) = self.bound(bound)?
        {
            return Ok(Err(difference));
        }
        check.compare(|name| {
            let load = (self.core.fleet.snapshot().ledger()).load(self.target(name)?);
            Ok(Outstanding {
                requests: Some(u64::from(load.requests)),
                prefill_tokens: Some(load.prefill_tokens),
                context_tokens: Some(load.context_tokens),
                sessions: Some(u64::from(load.sessions)),
            })
        })
    }

    fn bound(&self, bound: &Bound) -> Result<Result<(), Difference>> {
        let (key, id) = match (&bound.session, &bound.siblings) {
            (Some(session), None) => (Key::Session, session),
            (None, Some(parent)) => (Key::Siblings, parent),
            _ => bail!("`bound` needs `session`, or `siblings` with the parent's id"),
        };
        if bound.target != "none" {
            self.target(&bound.target)?;
        }
        let scope = Scope::new(0, bound.phase.into(), hash_text(&bound.model));
        let got = self.core.bound(scope, key, hash_text(id));
        let got = got.map_or_else(|| "none".to_owned(), |target| self.name(target));
        Ok(if got == bound.target {
            Ok(())
        } else {
            let text = |target: &str| format!("{id} bound to {target}");
            Err(Difference::new(text(&bound.target), text(&got)))
        })
    }

    fn name(&self, target: Target) -> String {
        (self.names.get(target as usize)).map_or_else(|| format!("target {target}"), Clone::clone)
    }

    /// The newest target of a name, part of the fleet or not.
    fn target(&self, name: &str) -> Result<Target> {
        let at = self.names.iter().rposition(|n| n == name);
        let at = at.with_context(|| {
            format!(
                "target {name:?} is not in the fleet: {}",
                self.names.join(", ")
            )
        })?;
        Ok(Target::try_from(at)?)
    }

    fn where_is(&self, id: &str) -> Result<String> {
        let sent = self.sent.get(id).and_then(|sent| sent.target);
        let target = sent.with_context(|| format!("{id:?} was not routed before this step"))?;
        Ok(self.name(target))
    }

    fn ticket(&mut self, id: &str) -> Result<&mut Ticket> {
        let sent = self.sent.get_mut(id);
        sent.and_then(|sent| sent.ticket.as_mut())
            .ok_or_else(|| not_in_flight(id))
    }

    fn take(&mut self, id: &str) -> Result<Ticket> {
        let sent = self.sent.get_mut(id);
        sent.and_then(|sent| sent.ticket.take())
            .ok_or_else(|| not_in_flight(id))
    }
}

fn not_in_flight(id: &str) -> anyhow::Error {
    anyhow!("{id:?} is not in flight: it was not sent, was refused, or has ended")
}
