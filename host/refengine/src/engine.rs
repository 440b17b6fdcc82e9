//! All ranks of one engine, and a request's way through them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::balancer::{Balancer, Seat};
use crate::clock::Clock;
use crate::collective::Group;
use crate::config::EngineConfig;
use crate::delayer::Counts;
use crate::error::Error;
use crate::fault::RankFault;
use crate::gate::{Decisions, Gate};
use crate::preset::Preset;
use crate::rank::{NotTaken, Output, RankHandle, RankTask, Threads};
use crate::scheduler::{Request, Scheduler, TooLong, check_length};
use crate::settings::{BadSetting, Settings};
use crate::stats::RankStats;
use crate::tokens::{Chain, Words, tokens_of};
use crate::trace::{Begin, Trace};

#[derive(Debug)]
pub(crate) struct Engine {
    preset: Preset,
    ranks: Vec<RankHandle>,
    balancer: Balancer,
    group: Group,
    settings: Mutex<Settings>,
    clock: Clock,
    next_id: AtomicU64,
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("rank {wanted} does not exist; this engine has ranks 0 to {last}")]
    UnknownRank { wanted: u64, last: usize },
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("the queue of rank {rank} is full; retry later or on another rank")]
    QueueFull { rank: usize },
    #[error("rank {rank} is dead; ask for another rank, or start the engine anew")]
    Dead { rank: usize },
    #[error("no rank of this engine is alive; start it anew")]
    AllDead,
}

/// Why a rank was not harmed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unharmed {
    #[error(transparent)]
    Unknown(Refused),
    #[error("rank {0} is dead already")]
    Dead(usize),
}

/// A request in flight. Dropping it gives the request up and frees its blocks.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) id: u64,
    pub(crate) prompt_tokens: usize,
    pub(crate) output_tokens: usize,
    words: Words,
    cached_tokens: usize,
    outputs: mpsc::Receiver<Output>,
    handle: RankHandle,
    seat: Seat,
    over: bool,
}

/// One generated token.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word {
    pub(crate) text: &'static str,
    pub(crate) first: bool,
    pub(crate) last: bool,
}

impl Engine {
    /// Starts one thread a rank; they end with `Threads`.
    pub(crate) fn start(config: &EngineConfig) -> Result<(Arc<Self>, Threads), Error> {
        let settings = Settings::of(config);
        let clock = Clock::start(config.time_scale);
        let timeout = settings.collective_timeout(clock);
        let (group, members) = Group::new(config.ranks, settings.delayer(), timeout);
        let mut threads = Threads::default();
        let mut ranks = Vec::with_capacity(config.ranks);
        for (rank, member) in members.into_iter().enumerate() {
            let scheduler = Scheduler::new(config.preset.clone());
            let decisions = Decisions::default();
            let gate = Gate::new(member, decisions.clone());
            let (scale, max_queue) = (config.time_scale, config.max_queue);
            let (task, handle) = RankTask::new(scheduler, decisions, clock, scale, max_queue);
            threads.start(rank, &handle, task, gate)?;
            ranks.push(handle);
        }
        let engine = Self {
            preset: config.preset.clone(),
            ranks,
            balancer: Balancer::new(config.ranks),
            group,
            settings: Mutex::new(settings),
            clock,
            next_id: AtomicU64::new(0),
        };
        Ok((Arc::new(engine), threads))
    }

    /// What may be changed while it runs.
    pub(crate) fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes some of it, for all ranks, from their next tick on.
    pub(crate) fn change(&self, changes: Map<String, Value>) -> Result<Settings, BadSetting> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *settings = settings.with(changes)?;
        self.group
            .set_timeout(settings.collective_timeout(self.clock));
        self.group.set(settings.delayer());
        Ok(*settings)
    }

    /// Each rank's decisions about prefill, in order.
    pub(crate) fn decisions(&self) -> Vec<Counts> {
        self.ranks.iter().map(RankHandle::decisions).collect()
    }

    /// Queues a prompt on `rank`, or where the fewest requests are in flight.
    pub(crate) fn submit(
        &self,
        rank: Option<u64>,
        prompt: &[u8],
        output_tokens: usize,
    ) -> Result<Generation, Refused> {
        let prompt_tokens = tokens_of(prompt.len());
        check_length(&self.preset, prompt_tokens, output_tokens)?;

        let seat = match rank {
            Some(rank) => {
                let (rank, handle) = self.rank(rank)?;
                let seat = handle.is_alive().then(|| self.balancer.take(rank));
                seat.flatten().ok_or(Refused::Dead { rank })?
            }
            None => {
                let is_alive = |rank| self.ranks.get(rank).is_some_and(RankHandle::is_alive);
                let seat = self.balancer.take_least(is_alive);
                seat.ok_or(Refused::AllDead)?
            }
        };
        let (_, handle) = self.rank(seat.rank() as u64)?;

        let mut chain = Chain::new(self.preset.block_tokens);
        chain.extend(prompt);
        let words = Words::new(chain.digest());
        for index in 0..output_tokens {
            chain.extend(words.word(index).as_bytes());
        }

        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let keys = chain.into_keys().into();
        let request = Request {
            id,
            prompt_tokens,
            output_tokens,
            keys,
            arrived: handle.now(),
        };
        let rank = seat.rank();
        let outputs = handle.submit(request).map_err(|why| match why {
            NotTaken::QueueFull => Refused::QueueFull { rank },
            NotTaken::Gone => Refused::Dead { rank },
        })?;
        Ok(Generation {
            id,
            prompt_tokens,
            output_tokens,
            words,
            cached_tokens: 0,
            outputs,
            handle: handle.clone(),
            seat,
            over: false,
        })
    }

    /// A rank by its number.
    fn rank(&self, wanted: u64) -> Result<(usize, &RankHandle), Refused> {
        let rank = usize::try_from(wanted).ok();
        let found = rank.and_then(|rank| Some((rank, self.ranks.get(rank)?)));
        found.ok_or(Refused::UnknownRank {
            wanted,
            last: self.ranks.len().saturating_sub(1),
        })
    }

    /// Each rank's figures, in order.
    pub(crate) fn stats(&self) -> Vec<RankStats> {
        let ranks = self.ranks.iter().zip(self.group.suspended());
        let stats = ranks.map(|(rank, suspended)| RankStats {
            suspended,
            ..rank.stats()
        });
        stats.collect()
    }

    /// Some rank can take requests.
    pub(crate) fn is_alive(&self) -> bool {
        self.ranks.iter().any(RankHandle::is_alive)
    }

    /// Kills or blocks a rank.
    pub(crate) async fn harm(&self, fault: RankFault) -> Result<(), Unharmed> {
        let (rank, handle) = self.rank(fault.rank).map_err(Unharmed::Unknown)?;
        if !handle.is_alive() {
            return Err(Unharmed::Dead(rank));
        }
        handle.harm(fault.harm, fault.after).await;
        Ok(())
    }

    /// Opens a window of all ranks' traces.
    pub(crate) fn trace(&self, begin: Begin) {
        for rank in &self.ranks {
            rank.tracer().open(begin, self.ranks.len());
        }
    }

    /// Ends it.
    pub(crate) fn traced(&self) -> Vec<Trace> {
        self.ranks.iter().map(|r| r.tracer().close()).collect()
    }

    pub(crate) async fn reset(&self) {
        for rank in &self.ranks {
            rank.reset().await;
        }
    }
}

impl Generation {
    pub(crate) fn rank(&self) -> usize {
        self.seat.rank()
    }

    /// Why there is no further token.
    pub(crate) fn broken_off(&self) -> String {
        let rank = self.rank();
        if self.handle.is_alive() {
            format!("rank {rank} gave the request up")
        } else {
            format!("rank {rank} died; send the request again")
        }
    }

    /// Known once the first token is there.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// The next token; `None` before the last one means that the rank is gone.
    pub(crate) fn poll_word(&mut self, cx: &mut Context<'_>) -> Poll<Option<Word>> {
        loop {
            match std::task::ready!(self.outputs.poll_recv(cx)) {
                Some(Output::Started { cached_tokens }) => self.cached_tokens = cached_tokens,
                Some(Output::Token { index, last }) => {
                    self.over = last;
                    let text = self.words.word(index);
                    return Poll::Ready(Some(Word {
                        text,
                        first: index == 0,
                        last,
                    }));
                }
                None => return Poll::Ready(None),
            }
        }
    }

    pub(crate) async fn word(&mut self) -> Option<Word> {
        std::future::poll_fn(|cx| self.poll_word(cx)).await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.over {
            self.handle.cancel(self.id);
        }
    }
}
