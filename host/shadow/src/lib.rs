//! A second policy on the same requests, which decides nothing: how often would it have said the same?
//!
//! ```text
//! request thread: decide ─► answer ─► dispatch ─► … ─► end
//!                              │                  │
//!                     Decided  ▼       Step       ▼            (a queue; nobody waits)
//! shadow thread:            decide ─► compare ─► its own ticket follows
//! ```
//!
//! It has a [`Core`] of its own, [`Core::beside`] the live one: bindings and the policies' numbers (copies,
//! at the start), and what is outstanding. Its requests end as the live ones do, wherever it would
//! have sent them, because nothing else is known. It is told of first outputs, failures and changes of
//! the fleet, not of finished requests: their times are another target's.
//!
//! Bounded: where more than [`MAX_WAITING`] decisions, or [`MAX_WAITING_BYTES`] of their bodies, wait
//! for it, or [`MAX_OPEN`] of its requests are in flight, further ones are left out and counted.

#![forbid(unsafe_code)]

mod tally;
mod thread;

pub use tally::{Difference, Report};

use pointsman_core::{Answer, Core, Fallback, Follower, Incoming, Source, Step};
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tally::Tally;

/// Decisions that wait for the shadow.
pub const MAX_WAITING: usize = 1024;
/// Bytes of the requests that wait.
pub const MAX_WAITING_BYTES: usize = 64 << 20;
/// Requests of the shadow in flight.
pub const MAX_OPEN: usize = 65_536;

/// See the crate.
#[derive(Debug)]
pub struct Shadow {
    queue: Sender<Event>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the request threads and the shadow's share.
#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    waiting_bytes: AtomicUsize,
    open: AtomicUsize,
    dropped: AtomicU64,
    next: AtomicU64,
    tally: Mutex<Tally>,
}

impl Shared {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Event {
    /// a live decision
    Decided(Box<Decided>),
    /// of the request of this number
    Step(u64, Step),
    /// a session has ended
    Ended(u64),
    /// no more
    Stop,
}

#[derive(Debug)]
struct Decided {
    number: u64,
    incoming: Incoming,
    /// the live policy's
    answer: Answer,
    bytes: usize,
}

impl Shadow {
    /// Starts its thread. `own` is the shadow's core, beside `live`; `source` gives its policy, and
    /// hears of its failures.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(
        live: Arc<Core>,
        own: Arc<Core>,
        source: Arc<dyn Source>,
        fallback: Fallback,
    ) -> io::Result<Shadow> {
        let (queue, events) = channel();
        let shared = Arc::<Shared>::default();
        let work = {
            let shared = shared.clone();
            move || thread::run(&live, &own, &*source, fallback, &events, &shared)
        };
        let thread = std::thread::Builder::new().name("pointsman-shadow".to_owned());
        let thread = Mutex::new(Some(thread.spawn(work)?));
        Ok(Shadow {
            queue,
            shared,
            thread,
        })
    }

    /// Asks the shadow what was just decided; the request's ticket is to be followed by what returns.
    /// Nothing returns where the shadow has too much to do.
    pub fn decided(&self, incoming: &Incoming, answer: Answer) -> Option<Box<dyn Follower>> {
        let shared = &self.shared;
        let bytes = incoming.facts.as_ref().map_or(0, |f| f.held_bytes());
        // Threads that race may pass by a few: it is a bound on memory, not a promise.
        let full = shared.waiting.load(Relaxed) >= MAX_WAITING
            || shared.waiting_bytes.load(Relaxed).saturating_add(bytes) > MAX_WAITING_BYTES
            || shared.open.load(Relaxed) >= MAX_OPEN;
        if full {
            shared.dropped.fetch_add(1, Relaxed);
            return None;
        }
        let number = shared.next.fetch_add(1, Relaxed);
        let routed = answer.target.is_some();
        let decided = Decided {
            number,
            incoming: incoming.clone(),
            answer,
            bytes,
        };
        shared.waiting.fetch_add(1, Relaxed);
        shared.waiting_bytes.fetch_add(bytes, Relaxed);
        self.queue.send(Event::Decided(Box::new(decided))).ok()?;
        if !routed {
            return None;
        }
        shared.open.fetch_add(1, Relaxed);
        Some(Box::new(Following {
            number,
            queue: self.queue.clone(),
            shared: shared.clone(),
            output: false,
        }))
    }

    /// A session has ended: it is bound nowhere.
    pub fn ended(&self, session: u64) {
        if self.shared.waiting.load(Relaxed) < MAX_WAITING {
            let _ = self.queue.send(Event::Ended(session));
        }
    }

    /// How it compares so far.
    pub fn report(&self) -> Report {
        let shared = &self.shared;
        Report {
            dropped: shared.dropped.load(Relaxed),
            waiting: shared.waiting.load(Relaxed),
            in_flight: shared.open.load(Relaxed),
            ..shared.tally().report()
        }
    }

    /// Ends it, and what it holds. Events that still come are for nobody.
    pub fn stop(&self) {
        let _ = self.queue.send(Event::Stop);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Passes on what becomes of a request.
struct Following {
    number: u64,
    queue: Sender<Event>,
    shared: Arc<Shared>,
    output: bool,
}

impl Follower for Following {
    fn hear(&mut self, step: Step) {
        if step == Step::Output && std::mem::replace(&mut self.output, true) {
            return;
        }
        let _ = self.queue.send(Event::Step(self.number, step));
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.open.fetch_sub(1, Relaxed);
    }
}
