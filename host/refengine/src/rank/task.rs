//! What a rank's thread does.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::delayer::{Cause, Counts};
use crate::fault::{After, Harm};
use crate::gate::{Decisions, Gate};
use crate::pacer::Pacer;
use crate::rank::{Client, Command, Life, Output, RankHandle, Shared, lock};
use crate::scheduler::{Admission, Scheduler, Step};
use crate::stats::{Latency, RankStats};
use crate::trace::{Pass, Tracer, What};

/// The thread's own side; [`RankTask::run`] ends when the rank is told to, or its last handle is gone.
#[derive(Debug)]
pub(crate) struct RankTask {
    /// First, so that nobody sees its clients' streams end while it still counts as alive.
    alive: Alive,
    scheduler: Scheduler,
    pacer: Pacer,
    commands: mpsc::UnboundedReceiver<Command>,
    clients: HashMap<u64, Client>,
    latency: Latency,
    clock: Clock,
    /// A fault that waits for its moment.
    harm: Option<(Harm, After)>,
}

/// Dropped, the rank is dead, however that came.
#[derive(Debug)]
struct Alive(Arc<Shared>);

/// The rank is told to end.
#[derive(Debug)]
struct Ends;

impl RankTask {
    pub(crate) fn new(
        scheduler: Scheduler,
        decisions: Decisions,
        clock: Clock,
        time_scale: f64,
        max_queue: usize,
    ) -> (Self, RankHandle) {
        let (sender, commands) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            stats: Mutex::new(scheduler.stats()),
            decisions,
            tracer: Tracer::default(),
            life: watch::Sender::new(Life::Alive),
            end: (Mutex::new(false), Condvar::new()),
        });
        let handle = RankHandle {
            commands: sender,
            queue: Arc::new(Semaphore::new(max_queue.min(Semaphore::MAX_PERMITS))),
            shared: shared.clone(),
            clock,
        };
        let task = Self {
            alive: Alive(shared),
            scheduler,
            pacer: Pacer::new(time_scale),
            commands,
            clients: HashMap::new(),
            latency: Latency::default(),
            clock,
            harm: None,
        };
        (task, handle)
    }

    /// The gate ends with the task, however that ends: the other ranks must not wait for it.
    pub(crate) async fn run(mut self, mut gate: Gate) {
        // Told to end, or forgotten by all.
        let Err(Ends) = self.ticks(&mut gate).await;
    }

    async fn ticks(&mut self, gate: &mut Gate) -> Result<std::convert::Infallible, Ends> {
        loop {
            while let Ok(command) = self.commands.try_recv() {
                self.apply(command)?;
            }
            if self.scheduler.is_idle() {
                self.publish();
                tokio::select! {
                    command = self.commands.recv() => {
                        self.pacer.resume();
                        self.apply(command.ok_or(Ends)?)?;
                        continue;
                    }
                    () = gate.called() => {}
                }
            }
            let admission = self.admission(gate).await?;
            // None: held, or given up meanwhile; the other ranks go on.
            if let Some(step) = self.scheduler.step(admission) {
                let prefills = step.prefill_tokens > 0;
                self.perform(step).await?;
                if prefills {
                    gate.prefill_executed();
                }
            }
        }
    }

    /// Whether the next step may prefill.
    async fn admission(&mut self, gate: &mut Gate) -> Result<Admission, Ends> {
        if !gate.begin(&self.scheduler, self.clock.now()) {
            return Ok(Admission::Fire);
        }
        let begin = self.tracer().begin();
        let Some(cause) = self.decision(gate).await? else {
            return Ok(Admission::Fire);
        };
        self.tracer().end(begin, What::Wait(cause));
        if cause.fires() {
            return Ok(Admission::Fire);
        }
        self.tracer().mark(What::Hold(cause));
        Ok(Admission::Hold)
    }

    /// Waits for the other ranks. Commands take effect meanwhile.
    async fn decision(&mut self, gate: &mut Gate) -> Result<Option<Cause>, Ends> {
        loop {
            tokio::select! {
                biased;
                cause = gate.decision() => return Ok(cause),
                // It does wait: the decision is not there.
                () = std::future::ready(()), if self.is_due(After::Collective) => self.suffer()?,
                Some(command) = self.commands.recv() => {
                    self.apply(command)?;
                    self.publish();
                }
            }
        }
    }

    /// Lets the step's time pass, then hands out its tokens.
    async fn perform(&mut self, step: Step) -> Result<(), Ends> {
        let begin = self.tracer().begin();
        for started in &step.started {
            if let Some(client) = self.clients.get_mut(&started.id) {
                client.place_in_queue = None;
                // A client that is gone has sent its cancellation.
                let _ = client.outputs.try_send(Output::Started {
                    cached_tokens: started.cached_tokens,
                });
            }
        }
        let kv_usage = self.publish().kv_usage;
        if step.prefill_tokens > 0 && self.is_due(After::Prefill) {
            self.suffer()?;
        }
        if let Some(end) = self.pacer.end_of(step.duration) {
            self.listen_until(end).await?;
        }
        let pass = Pass {
            prefill_tokens: step.prefill_tokens,
            decode_sequences: step.decode_sequences,
            cached_tokens: step.started.iter().map(|s| s.cached_tokens).sum(),
            kv_usage,
            modelled_us: u64::try_from(step.duration.as_micros()).unwrap_or(u64::MAX),
        };
        self.tracer().end(begin, What::Pass(pass));
        self.hand_out(&step);
        Ok(())
    }

    /// What is counted of the step can be read as soon as its tokens can.
    fn hand_out(&mut self, step: &Step) {
        let now = self.clock.now();
        for token in &step.tokens {
            if let Some(client) = self.clients.get_mut(&token.id) {
                match client.heard.replace(now) {
                    None => self.latency.first(now.saturating_sub(client.arrived)),
                    Some(heard) => self.latency.next(now.saturating_sub(heard)),
                }
            }
        }
        self.publish();
        for token in &step.tokens {
            if let Some(client) = self.clients.get(&token.id) {
                let _ = client.outputs.try_send(Output::Token {
                    index: token.index,
                    last: token.last,
                });
            }
            if token.last {
                self.clients.remove(&token.id);
            }
        }
    }

    /// Commands take effect at once, also in the middle of a step.
    async fn listen_until(&mut self, end: Instant) -> Result<(), Ends> {
        let end = sleep_until(end);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = &mut end => return Ok(()),
                Some(command) = self.commands.recv() => {
                    self.apply(command)?;
                    self.publish();
                }
            }
        }
    }

    fn apply(&mut self, command: Command) -> Result<(), Ends> {
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
                self.latency = Latency::default();
                let decisions = &self.alive.0.decisions;
                decisions.update(|counts| *counts = Counts::default());
                self.publish();
                let _ = done.send(());
            }
            Command::Harm(harm, after) => {
                self.harm = Some((harm, after));
                if after == After::Now {
                    return self.suffer();
                }
            }
        }
        Ok(())
    }

    fn is_due(&self, moment: After) -> bool {
        self.harm.is_some_and(|(_, after)| after == moment)
    }

    fn suffer(&mut self) -> Result<(), Ends> {
        match self.harm.take() {
            None => Ok(()),
            Some((Harm::Kill, _)) => Err(Ends),
            Some((Harm::Hang(modelled), _)) => self.hang(self.clock.real(modelled)),
        }
    }

    /// Blocks the thread. Only to be told to end is heard.
    fn hang(&self, real: Duration) -> Result<(), Ends> {
        let (ends, told) = &self.alive.0.end;
        let (ends, _) = (told.wait_timeout_while(lock(ends), real, |ends| !*ends))
            .unwrap_or_else(PoisonError::into_inner);
        if *ends { Err(Ends) } else { Ok(()) }
    }

    fn tracer(&self) -> &Tracer {
        &self.alive.0.tracer
    }

    fn publish(&self) -> RankStats {
        let stats = self.latency.add_to(self.scheduler.stats());
        *lock(&self.alive.0.stats) = stats;
        self.tracer().mark(What::Load {
            running: stats.requests_running,
            waiting: stats.requests_waiting,
        });
        stats
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let mut stats = lock(&self.0.stats);
        *stats = stats.of_the_dead();
        drop(stats);
        self.0.life.send_replace(Life::Dead);
    }
}
