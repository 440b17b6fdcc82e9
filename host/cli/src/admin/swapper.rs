//! Replaces the running policy: read → pin → compile → configure → canary → swap, none of it on a thread that
//! serves requests. Whatever stops on the way leaves the running policy as it is.

use super::compiler::{Compiler, Folders};
use super::refused::Refused;
use super::wanted::Wanted;
use crate::policies::digest;
use axum::http::StatusCode;
use pointsman_core::Router;
use pointsman_recorder::{Recorder, Rehearsal, Rehearsed};
use pointsman_runtime::{Candidate, Instance, Limits, Slot};
use std::sync::{Arc, PoisonError};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::spawn_blocking;

/// Recorded decisions on which a policy fails until it is refused; it is refused for one, too.
const ENOUGH: u64 = 3;

/// See the module.
#[derive(Debug)]
pub struct Swapper {
    slot: Arc<Slot>,
    limits: Limits,
    compiler: Compiler,
    recorder: Arc<Recorder>,
    one_at_a_time: Mutex<()>,
    /// what became of the file that is watched, in one line
    file: std::sync::Mutex<Option<String>>,
}

/// A policy that could decide, and what it says to the last decisions.
#[derive(Debug)]
pub struct Loaded {
    pub candidate: Candidate,
    pub rehearsed: Rehearsed,
}

/// The right to replace the policy: one has it at a time.
pub struct Turn<'a> {
    swapper: &'a Swapper,
    _held: MutexGuard<'a, ()>,
}

impl Swapper {
    pub fn new(
        slot: Arc<Slot>,
        limits: Limits,
        folders: Option<Folders>,
        recorder: Arc<Recorder>,
    ) -> Swapper {
        Swapper {
            slot,
            limits,
            compiler: Compiler::new(folders),
            recorder,
            one_at_a_time: Mutex::default(),
            file: std::sync::Mutex::default(),
        }
    }

    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// What became of the file that is watched; none: nothing since the start.
    pub fn file(&self) -> Option<String> {
        (self.file.lock().unwrap_or_else(PoisonError::into_inner)).clone()
    }

    /// Says what became of it.
    pub fn note_file(&self, note: String) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(note);
    }

    /// The turn, if nobody has it.
    pub fn turn(&self) -> Result<Turn<'_>, Refused> {
        let held = self.one_at_a_time.try_lock().map_err(|_| {
            let cause = "another policy is being loaded";
            Refused::new(
                StatusCode::CONFLICT,
                "swap",
                cause,
                "try again when it is done",
            )
        })?;
        Ok(Turn {
            swapper: self,
            _held: held,
        })
    }

    /// The turn, when it comes.
    pub async fn wait(&self) -> Turn<'_> {
        Turn {
            swapper: self,
            _held: self.one_at_a_time.lock().await,
        }
    }
}

impl Turn<'_> {
    /// All but the swap.
    pub async fn load(&self, wanted: Wanted) -> Result<Loaded, Refused> {
        let Swapper {
            slot,
            limits,
            compiler,
            recorder,
            ..
        } = self.swapper;
        let wasm = wanted.wasm.clone();
        let digest = blocking(move || digest(&wasm)).await?;
        if !wanted.pin.is_empty() && !digest.eq_ignore_ascii_case(&wanted.pin) {
            let cause = format!(
                "it is not the policy that was pinned: wanted sha256 {}, found {digest}",
                wanted.pin
            );
            return Err(Refused::stage("pin", cause));
        }
        let compiled = compiler.compile(slot, &wanted.wasm).await?;
        let limits = *limits;
        let configure = move || compiled.configure(&wanted.config, limits);
        let candidate = Candidate {
            prepared: Arc::new(blocking(configure).await??),
            origin: wanted.origin,
            digest,
        };
        let (recorder, tried) = (recorder.clone(), candidate.clone());
        let rehearsed = blocking(move || rehearse(&recorder, &tried)).await?;
        match &rehearsed.first_failure {
            None => Ok(Loaded {
                candidate,
                rehearsed,
            }),
            Some(failure) => {
                let failed: u64 = rehearsed.failures.values().sum();
                let asked = rehearsed.asked;
                let cause =
                    format!("it fails on {failed} of {asked} recorded decisions: {failure}");
                Err(Refused::stage("canary", cause))
            }
        }
    }

    /// Loads it and puts it in place: from now on it decides. Returns its generation.
    pub async fn swap(&self, wanted: Wanted) -> Result<(u64, Rehearsed), Refused> {
        let next = self.load(wanted).await?;
        Ok((self.put(next.candidate).await?, next.rehearsed))
    }

    /// Puts one in place that was loaded before. Returns its generation.
    pub async fn put(&self, candidate: Candidate) -> Result<u64, Refused> {
        let (slot, coming) = (self.swapper.slot.clone(), candidate.clone());
        blocking(move || slot.ready(&coming)).await??;
        Ok(self.swapper.slot.swap(candidate)?)
    }

    /// Brings the policy before this one back. Returns its generation.
    pub fn rollback(&self) -> Result<u64, Refused> {
        Ok(self.swapper.slot.rollback()?)
    }
}

/// What it would have said, with numbers of its own.
fn rehearse(recorder: &Recorder, candidate: &Candidate) -> Rehearsed {
    let policy = candidate.prepared.policy().clone();
    let instance = Instance::new(candidate.prepared.clone(), Arc::default());
    let mut rehearsal = Rehearsal::new(policy, Box::new(instance) as Box<dyn Router>);
    for moment in recorder.recent() {
        rehearsal.ask(&moment);
        // One that spins would do so for every one.
        if rehearsal.failures() >= ENOUGH {
            break;
        }
    }
    rehearsal.end()
}

/// Does what blocks where it holds up nobody.
pub async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Refused> {
    spawn_blocking(work)
        .await
        .map_err(|error| Refused::failed("load", error))
}
