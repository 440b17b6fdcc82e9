//! One rank in real time: a task that owns its scheduler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::delayer::Counts;
use crate::gate::{Decisions, Gate};
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
    decisions: Decisions,
    clock: Clock,
}

/// Modelled time since the engine started; at time scale 0 the machine's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    scale: f64,
}

impl Clock {
    pub(crate) fn start(time_scale: f64) -> Self {
        let scale = if time_scale > 0.0 { time_scale } else { 1.0 };
        Self {
            start: Instant::now(),
            scale,
        }
    }

    pub(crate) fn now(self) -> Duration {
        let seconds = self.start.elapsed().as_secs_f64() / self.scale;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
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

    /// When a request arrives that is submitted now.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// What its delayer decided, by cause.
    pub(crate) fn decisions(&self) -> Counts {
        self.decisions.get()
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
    decisions: Decisions,
    clock: Clock,
}

impl RankTask {
    pub(crate) fn new(
        scheduler: Scheduler,
        decisions: Decisions,
        time_scale: f64,
        max_queue: usize,
    ) -> (Self, RankHandle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let stats = Arc::new(Mutex::new(scheduler.stats()));
        let queue = Arc::new(Semaphore::new(max_queue.min(Semaphore::MAX_PERMITS)));
        let clock = Clock::start(time_scale);
        let handle = RankHandle {
            commands: sender,
            queue,
            stats: stats.clone(),
            decisions: decisions.clone(),
            clock,
        };
        let pacer = Pacer::new(time_scale);
        (
            Self {
                scheduler,
                pacer,
                commands,
                clients: HashMap::new(),
                stats,
                decisions,
                clock,
            },
            handle,
        )
    }

    /// The gate ends with the task, however that ends: the other ranks must not wait for it.
    pub(crate) async fn run(mut self, mut gate: Gate) {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.apply(command);
            }
            if self.scheduler.is_idle() {
                self.publish();
                tokio::select! {
                    command = self.commands.recv() => {
                        let Some(command) = command else { return };
                        self.pacer.resume();
                        self.apply(command);
                        continue;
                    }
                    () = gate.called() => {}
                }
            }
            let admission = self.admission(&mut gate).await;
            match self.scheduler.step(admission) {
                Some(step) => {
                    let prefills = step.prefill_tokens > 0;
                    self.perform(step).await;
                    if prefills {
                        gate.prefill_executed();
                    }
                }
                // Held, or given up meanwhile: the other ranks go on.
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Whether the next step may prefill. Commands take effect meanwhile.
    async fn admission(&mut self, gate: &mut Gate) -> Admission {
        if !gate.begin(&self.scheduler, self.clock.now()) {
            return Admission::Fire;
        }
        loop {
            tokio::select! {
                biased;
                admission = gate.admission() => return admission,
                Some(command) = self.commands.recv() => {
                    self.apply(command);
                    self.publish();
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
                self.decisions.update(|counts| *counts = Counts::default());
                self.publish();
                let _ = done.send(());
            }
        }
    }

    fn publish(&self) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = self.scheduler.stats();
    }
}

#[cfg(test)]
mod tests;
