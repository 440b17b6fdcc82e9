//! The policy that decides now, the one before it, and what happens when it fails.
//!
//! Replacing it moves the generation; workers follow with their next request, and the old one is
//! dropped after its last call. State stays: it belongs to the host.
//!
//! An instance is thrown away when it fails. Others are in stock by then, brought up on a thread of their
//! own: no request waits for `configure`.
//!
//! A policy that fails [`Protection::failures`] times within [`Protection::within_ms`] is taken out:
//! the one before it decides again, or, where there is none, the fallback alone does for a while. Both
//! last twice as long each time, so that a policy that fails on every request costs a bounded share
//! of them.

use crate::engine::Engine;
use crate::instance::Instance;
use crate::load::{LoadError, Prepared};
use arc_swap::ArcSwap;
use pointsman_core::{Ask, Cells, Core, Decision, Failure, Overview, Policy, Router, Source};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// Instances that wait for a failure.
const IN_STOCK: usize = 1;
/// Policies whose bans are remembered; the table is emptied beyond.
const MAX_BANS: usize = 256;

/// A policy, and where it is from.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// loaded and configured
    pub prepared: Arc<Prepared>,
    /// a built-in name, a path, or who sent it: for people
    pub origin: String,
    /// SHA-256 of its `.wasm`, in hexadecimal
    pub digest: String,
}

impl Candidate {
    /// What tells it from others: another configuration may mend a policy that fails.
    fn key(&self) -> String {
        format!("{} {}", self.digest, self.prepared.config)
    }
}

/// When a failing policy is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// so many failures, at least 1 …
    pub failures: usize,
    /// … within so many ms
    pub within_ms: u64,
    /// out for so long the first time, in ms; doubles
    pub pause_ms: u64,
    /// and no longer than this, in ms
    pub longest_pause_ms: u64,
}

impl Default for Protection {
    fn default() -> Self {
        Protection {
            failures: 5,
            within_ms: 10_000,
            pause_ms: 1000,
            longest_pause_ms: 60_000,
        }
    }
}

/// What is in the slot, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// counts the replacements, from 1
    pub generation: u64,
    /// the policy that decides
    pub policy: Policy,
    /// see [`Candidate`]
    pub origin: String,
    /// see [`Candidate`]
    pub digest: String,
    /// the one that a rollback would bring back
    pub previous: Option<String>,
    /// until when the fallback alone decides, in ms of the core's clock
    pub paused_until_ms: Option<u64>,
    /// what happened last, in one line
    pub last: String,
    /// policies taken out since the start
    pub rollbacks: u64,
}

/// Why a policy was not put in place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SwapError {
    /// it failed before
    #[error(
        "this policy ({digest}) was taken out because it failed: it may come back in {wait_ms} ms, or mend it"
    )]
    Banned {
        /// of its `.wasm`
        digest: String,
        /// how long, in ms
        wait_ms: u64,
    },
    /// nothing to go back to
    #[error("there is no policy before this one to go back to")]
    NoPrevious,
}

#[derive(Debug)]
struct Ban {
    until_ms: u64,
    pause_ms: u64,
}

#[derive(Debug)]
struct History {
    now: Candidate,
    previous: Option<Candidate>,
    failures: VecDeque<u64>,
    paused_until_ms: Option<u64>,
    bans: HashMap<String, Ban>,
    last: String,
    rollbacks: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Slot {
    core: Arc<Core>,
    engine: Arc<Engine>,
    protection: Protection,
    /// none: paused
    now: ArcSwap<Option<Arc<Prepared>>>,
    generation: AtomicU64,
    /// when a pause ends; 0: there is none. So that a request need not look at the history.
    resume_ms: AtomicU64,
    /// who will want an instance each
    workers: AtomicUsize,
    history: Mutex<History>,
    /// the generation moved
    changed: Condvar,
}

impl Slot {
    /// With its first policy, as generation 1.
    pub fn new(
        core: Arc<Core>,
        engine: impl Into<Arc<Engine>>,
        first: Candidate,
        protection: Protection,
    ) -> Slot {
        Slot {
            core,
            engine: engine.into(),
            protection,
            now: ArcSwap::from_pointee(Some(first.prepared.clone())),
            generation: AtomicU64::new(1),
            resume_ms: AtomicU64::new(0),
            workers: AtomicUsize::new(0),
            history: Mutex::new(History {
                last: format!("started with {}", first.origin),
                now: first,
                previous: None,
                failures: VecDeque::new(),
                paused_until_ms: None,
                bans: HashMap::new(),
                rollbacks: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// The engine of its policies, to load another one with.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// So many threads ask it.
    pub fn set_workers(&self, workers: usize) {
        self.workers.store(workers, Ordering::Relaxed);
    }

    /// Brings up an instance for each worker, so that none of them does it while requests wait, and one
    /// in stock. Takes that many times what `configure` takes: off the request path, before
    /// [`Slot::swap`].
    ///
    /// # Errors
    /// If one does not come up.
    pub fn ready(&self, next: &Candidate) -> Result<(), LoadError> {
        let cells = self.core.cells(&next.prepared.policy().name);
        let workers = self.workers.load(Ordering::Relaxed);
        (next.prepared).ready(workers + IN_STOCK, &cells)
    }

    /// Sees to it that so many instances wait, and waits for none. Without workers nobody would take
    /// them.
    fn stock(&self, prepared: &Arc<Prepared>, cells: &Arc<Cells>, instances: usize) {
        if self.workers.load(Ordering::Relaxed) == 0 || prepared.has(instances, cells) {
            return;
        }
        let (policy, cells) = (prepared.clone(), cells.clone());
        let name = "pointsman-stock".to_owned();
        let bring_up = move || {
            if let Err(error) = policy.ready(1, &cells) {
                tracing::warn!(policy = policy.policy().name, "none in stock: {error}");
            }
        };
        if let Err(error) = thread::Builder::new().name(name).spawn(bring_up) {
            tracing::warn!(%error, "no thread to bring up an instance of the policy");
        }
    }

    /// Puts another policy in place; returns its generation.
    ///
    /// # Errors
    /// If it was taken out because it failed, and its time out is not over.
    pub fn swap(&self, next: Candidate) -> Result<u64, SwapError> {
        let mut history = self.history();
        let now = self.core.now_ms();
        if let Some(ban) = history.bans.get(&next.key())
            && now < ban.until_ms
        {
            return Err(SwapError::Banned {
                digest: next.digest,
                wait_ms: ban.until_ms - now,
            });
        }
        history.last = format!("replaced by {}", next.origin);
        let before = std::mem::replace(&mut history.now, next);
        // The same once more leaves nothing new to go back to.
        if before.key() != history.now.key() {
            history.previous = Some(before);
        }
        Ok(self.publish(&mut history))
    }

    /// Brings the policy before this one back; returns its generation.
    ///
    /// # Errors
    /// If there is none.
    pub fn rollback(&self) -> Result<u64, SwapError> {
        let mut history = self.history();
        let previous = history.previous.take().ok_or(SwapError::NoPrevious)?;
        history.last = format!("rolled back to {} by the operator", previous.origin);
        let before = std::mem::replace(&mut history.now, previous);
        history.previous = Some(before);
        Ok(self.publish(&mut history))
    }

    /// What is in the slot.
    pub fn status(&self) -> Status {
        let history = self.history();
        Status {
            generation: self.generation.load(Ordering::Acquire),
            policy: history.now.prepared.policy().clone(),
            origin: history.now.origin.clone(),
            digest: history.now.digest.clone(),
            previous: history.previous.as_ref().map(|p| p.origin.clone()),
            paused_until_ms: history.paused_until_ms,
            last: history.last.clone(),
            rollbacks: history.rollbacks,
        }
    }

    /// The policy that decides, and its numbers; none: paused.
    pub(crate) fn prepared(&self) -> Option<(Arc<Prepared>, Arc<Cells>)> {
        let prepared = self.now.load().as_ref().clone()?;
        let cells = self.core.cells(&prepared.policy().name);
        Some((prepared, cells))
    }

    /// Of the core's clock.
    pub(crate) fn now_ms(&self) -> u64 {
        self.core.now_ms()
    }

    /// The fleet now.
    pub(crate) fn overview(&self) -> Overview {
        Overview::of(&self.core.fleet)
    }

    /// The generation, as soon as it is another one; no later than after `longest`.
    pub(crate) fn wait(&self, generation: u64, longest: Duration) -> u64 {
        let now = self.generation();
        if now != generation || longest.is_zero() {
            return now;
        }
        let history = self.history();
        // It moves under this lock: not between this look and the wait.
        if self.generation.load(Ordering::Acquire) == generation {
            let waited = self.changed.wait_timeout(history, longest);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        self.generation()
    }

    /// Wakes who waits.
    pub(crate) fn announce(&self) {
        drop(self.history());
        self.changed.notify_all();
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what the history says true for the workers.
    fn publish(&self, history: &mut History) -> u64 {
        history.failures.clear();
        history.paused_until_ms = None;
        self.resume_ms.store(0, Ordering::Relaxed);
        self.now.store(Arc::new(Some(history.now.prepared.clone())));
        self.changed.notify_all();
        self.generation.fetch_add(1, Ordering::Release) + 1
    }

    /// Too many failures: out with it.
    fn take_out(&self, history: &mut History, failure: &Failure) {
        let now = self.core.now_ms();
        let key = history.now.key();
        if history.bans.len() >= MAX_BANS && !history.bans.contains_key(&key) {
            history.bans.clear();
        }
        let longest = self.protection.longest_pause_ms;
        // Good for as long as the longest pause: what was before is forgiven.
        let pause_ms = (history.bans.get(&key))
            .filter(|ban| now < ban.until_ms.saturating_add(longest))
            .map_or(self.protection.pause_ms, |ban| {
                ban.pause_ms.saturating_mul(2).min(longest)
            });
        let until_ms = now.saturating_add(pause_ms);
        history.bans.insert(key, Ban { until_ms, pause_ms });
        history.rollbacks += 1;
        let failed = history.now.origin.clone();
        match history.previous.take() {
            Some(previous) => {
                history.last = format!(
                    "rolled back from {failed} to {}: {failure}",
                    previous.origin
                );
                history.now = previous;
                self.publish(history);
            }
            None => {
                history.last = format!(
                    "{failed} is paused for {pause_ms} ms, the fallback decides: {failure}"
                );
                history.failures.clear();
                history.paused_until_ms = Some(until_ms);
                self.now.store(Arc::new(None));
                self.resume_ms.store(until_ms, Ordering::Relaxed);
                self.generation.fetch_add(1, Ordering::Release);
                self.changed.notify_all();
            }
        }
        tracing::error!("{}", history.last);
    }

    /// After a pause the policy may try again.
    fn resume(&self) {
        let mut history = self.history();
        let now = self.core.now_ms();
        if history.paused_until_ms.is_some_and(|until| now >= until) {
            history.last = format!("{} decides again after its pause", history.now.origin);
            tracing::warn!("{}", history.last);
            self.publish(&mut history);
        }
    }
}

impl Source for Slot {
    fn generation(&self) -> u64 {
        let resume = self.resume_ms.load(Ordering::Relaxed);
        if resume != 0 && self.core.now_ms() >= resume {
            self.resume();
        }
        self.generation.load(Ordering::Acquire)
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        let Some(prepared) = &**self.now.load() else {
            return (
                self.history().now.prepared.policy().clone(),
                Box::new(Paused),
            );
        };
        let cells = self.core.cells(&prepared.policy().name);
        let mut instance = Instance::new(prepared.clone(), cells.clone());
        // It came up when it was loaded; should it not now, the first question says why.
        if let Err(failure) = instance.warm() {
            tracing::error!(policy = prepared.policy().name, "{failure}");
        }
        self.stock(prepared, &cells, IN_STOCK);
        (prepared.policy().clone(), Box::new(instance))
    }

    fn failed(&self, generation: u64, failure: &Failure) {
        let mut history = self.history();
        // Of a policy that is not in place any more: it cannot be taken out twice.
        if generation != self.generation.load(Ordering::Acquire)
            || history.paused_until_ms.is_some()
        {
            return;
        }
        let now = self.core.now_ms();
        let recent = now.saturating_sub(self.protection.within_ms);
        history.failures.push_back(now);
        while history.failures.front().is_some_and(|&at| at < recent) {
            history.failures.pop_front();
        }
        if history.failures.len() >= self.protection.failures {
            self.take_out(&mut history, failure);
            return;
        }
        let prepared = history.now.prepared.clone();
        drop(history);
        let cells = self.core.cells(&prepared.policy().name);
        // One for the worker whose instance is gone.
        self.stock(&prepared, &cells, IN_STOCK + 1);
    }
}

/// While the policy is paused.
struct Paused;

impl Router for Paused {
    fn route(&mut self, _: &Rc<Ask>) -> Result<Decision, Failure> {
        Err(Failure::Paused)
    }
}
