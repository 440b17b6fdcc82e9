//! One rank in real time: a thread that owns its scheduler. What it does and whether it lives is
//! nothing to the other ranks' threads.

mod task;
mod threads;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::delayer::Counts;
use crate::fault::{After, Harm};
use crate::gate::Decisions;
use crate::scheduler::Request;
use crate::stats::RankStats;
use crate::trace::Tracer;

pub(crate) use task::RankTask;
pub(crate) use threads::Threads;

/// What a request in flight hears of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// It entered the batch; always first.
    Started { cached_tokens: usize },
    /// One more token.
    Token { index: usize, last: bool },
}

/// Talks to a rank's thread.
#[derive(Debug, Clone)]
pub(crate) struct RankHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// One permit for each request that may wait.
    queue: Arc<Semaphore>,
    shared: Arc<Shared>,
    clock: Clock,
}

/// What the thread and its handles both see.
#[derive(Debug)]
struct Shared {
    stats: Mutex<RankStats>,
    decisions: Decisions,
    tracer: Tracer,
    life: watch::Sender<Life>,
    /// It shall end, also where it hears no commands because it hangs.
    end: (Mutex<bool>, Condvar),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
}

/// The channel is bounded by what goes in: a submission takes a permit of the queue, and each
/// submission is followed by at most one cancellation, which must not wait. The rest is rare.
#[derive(Debug)]
enum Command {
    Submit(Request, Client),
    Cancel(u64),
    Reset(oneshot::Sender<()>),
    Harm(Harm, After),
}

#[derive(Debug)]
struct Client {
    /// Has room for everything that the request will ever hear.
    outputs: mpsc::Sender<Output>,
    /// Given back when the request no longer waits.
    place_in_queue: Option<OwnedSemaphorePermit>,
    arrived: Duration,
    /// When it got its last token.
    heard: Option<Duration>,
}

/// Why a rank does not take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// As many requests wait as may.
    QueueFull,
    /// Its thread has ended.
    Gone,
}

impl RankHandle {
    /// Queues a request; the receiver ends early if the rank's thread does.
    pub(crate) fn submit(&self, request: Request) -> Result<mpsc::Receiver<Output>, NotTaken> {
        let permit = self
            .queue
            .clone()
            .try_acquire_owned()
            .map_err(|_| NotTaken::QueueFull)?;
        let (outputs, receiver) = mpsc::channel(request.output_tokens + 1);
        let client = Client {
            outputs,
            place_in_queue: Some(permit),
            arrived: request.arrived,
            heard: None,
        };
        let sent = self.commands.send(Command::Submit(request, client));
        sent.map_err(|_| NotTaken::Gone)?;
        Ok(receiver)
    }

    pub(crate) fn cancel(&self, id: u64) {
        let _ = self.commands.send(Command::Cancel(id));
    }

    /// Done when it returns.
    pub(crate) async fn reset(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.commands.send(Command::Reset(done));
        let _ = is_done.await;
    }

    /// Ends its thread, or blocks it. A rank that is killed at once is gone when it returns.
    pub(crate) async fn harm(&self, harm: Harm, after: After) {
        if (harm, after) == (Harm::Kill, After::Now) {
            self.end();
            let mut life = self.shared.life.subscribe();
            // The sender lives in `shared`: no error.
            let _ = life.wait_for(|life| *life == Life::Dead).await;
        } else {
            let _ = self.commands.send(Command::Harm(harm, after));
        }
    }

    /// Its thread ends, wherever it is.
    pub(crate) fn end(&self) {
        let (ends, told) = &self.shared.end;
        *lock(ends) = true;
        told.notify_all();
        // Where it waits for commands.
        let _ = self.commands.send(Command::Harm(Harm::Kill, After::Now));
    }

    pub(crate) fn is_alive(&self) -> bool {
        *self.shared.life.borrow() == Life::Alive
    }

    /// When a request arrives that is submitted now.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What its delayer decided, by cause.
    pub(crate) fn decisions(&self) -> Counts {
        self.shared.decisions.get()
    }

    pub(crate) fn stats(&self) -> RankStats {
        *lock(&self.shared.stats)
    }

    pub(crate) fn tracer(&self) -> &Tracer {
        &self.shared.tracer
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
