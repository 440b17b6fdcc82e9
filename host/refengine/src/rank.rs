//! One rank in real time: a task that owns its scheduler.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::pacer::Pacer;
use crate::scheduler::{Admission, Request, Scheduler, Step};
use crate::stats::RankStats;

/// What a request in flight hears of its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// It entered the batch; always first.
    Started { cached_tokens: usize },
    /// One more token.
    Token { index: usize, last: bool },
}

/// Talks to a rank's task.
#[derive(Debug, Clone)]
pub(crate) struct RankHandle {
    commands: mpsc::UnboundedSender<Command>,
    /// One permit for each request that may wait.
    queue: Arc<Semaphore>,
    stats: Arc<Mutex<RankStats>>,
}

/// The channel is bounded by what goes in: a submission takes a permit of the queue, and each
/// submission is followed by at most one cancellation, which must not wait.
#[derive(Debug)]
enum Command {
    Submit(Request, Client),
    Cancel(u64),
    Reset(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Client {
    /// Has room for everything that the request will ever hear.
    outputs: mpsc::Sender<Output>,
    /// Given back when the request no longer waits.
    place_in_queue: Option<OwnedSemaphorePermit>,
}

/// As many requests wait as may.
#[derive(Debug)]
pub(crate) struct QueueFull;

impl RankHandle {
    /// Queues a request; the receiver ends early if the rank's task is gone.
    pub(crate) fn submit(&self, request: Request) -> Result<mpsc::Receiver<Output>, QueueFull> {
        let permit = self
            .queue
            .clone()
            .try_acquire_owned()
            .map_err(|_| QueueFull)?;
        let (outputs, receiver) = mpsc::channel(request.output_tokens + 1);
        let client = Client {
            outputs,
            place_in_queue: Some(permit),
        };
        // Failing, it drops `outputs`, which ends the receiver: that is how the caller learns.
        let _ = self.commands.send(Command::Submit(request, client));
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

    pub(crate) fn stats(&self) -> RankStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's own side; [`RankTask::run`] ends when the last handle is gone.
#[derive(Debug)]
pub(crate) struct RankTask {
    scheduler: Scheduler,
    pacer: Pacer,
    commands: mpsc::UnboundedReceiver<Command>,
    clients: HashMap<u64, Client>,
    stats: Arc<Mutex<RankStats>>,
}

impl RankTask {
    pub(crate) fn new(
        scheduler: Scheduler,
        time_scale: f64,
        max_queue: usize,
    ) -> (Self, RankHandle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let stats = Arc::new(Mutex::new(scheduler.stats()));
        let queue = Arc::new(Semaphore::new(max_queue.min(Semaphore::MAX_PERMITS)));
        let handle = RankHandle {
            commands: sender,
            queue,
            stats: stats.clone(),
        };
        let pacer = Pacer::new(time_scale);
        (
            Self {
                scheduler,
                pacer,
                commands,
                clients: HashMap::new(),
                stats,
            },
            handle,
        )
    }

    pub(crate) async fn run(mut self) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.apply(command);
            }
            match self.scheduler.step(Admission::Fire) {
                Some(step) => self.perform(step).await,
                None => {
                    self.publish();
                    let Some(command) = self.commands.recv().await else {
                        return;
                    };
                    self.pacer.resume();
                    self.apply(command);
                }
            }
        }
    }

    /// Lets the step's time pass, then hands out its tokens.
    async fn perform(&mut self, step: Step) {
        for started in &step.started {
            if let Some(client) = self.clients.get_mut(&started.id) {
                client.place_in_queue = None;
                // A client that is gone has sent its cancellation.
                let _ = client.outputs.try_send(Output::Started {
                    cached_tokens: started.cached_tokens,
                });
            }
        }
        self.publish();
        if let Some(end) = self.pacer.end_of(step.duration) {
            self.listen_until(end).await;
        }
        for token in step.tokens {
            let output = Output::Token {
                index: token.index,
                last: token.last,
            };
            if let Some(client) = self.clients.get(&token.id) {
                let _ = client.outputs.try_send(output);
            }
            if token.last {
                self.clients.remove(&token.id);
            }
        }
        // A step that needs no wait must not keep the clients from running.
        tokio::task::yield_now().await;
    }

    /// Commands take effect at once, also in the middle of a step.
    async fn listen_until(&mut self, end: Instant) {
        let end = sleep_until(end);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return,
                Some(command) = self.commands.recv() => {
                    self.apply(command);
                    self.publish();
                }
            }
        }
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Submit(request, client) => {
                let id = request.id;
                match self.scheduler.push(request) {
                    Ok(()) => drop(self.clients.insert(id, client)),
                    // The engine checks the length before it submits.
                    Err(too_long) => tracing::error!(%too_long, "request dropped"),
                }
            }
            Command::Cancel(id) => {
                self.scheduler.cancel(id);
                self.clients.remove(&id);
            }
            Command::Reset(done) => {
                self.scheduler.reset();
                self.publish();
                let _ = done.send(());
            }
        }
    }

    fn publish(&self) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.scheduler.stats();
    }
}
