//! All ranks of one engine, and a request's way through them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::balancer::{Balancer, Seat};
use crate::collective::Group;
use crate::config::EngineConfig;
use crate::delayer::Counts;
use crate::gate::{Decisions, Gate};
use crate::preset::Preset;
use crate::rank::{Output, RankHandle, RankTask};
use crate::scheduler::{Request, Scheduler, TooLong, check_length};
use crate::settings::{BadSetting, Settings};
use crate::stats::RankStats;
use crate::tokens::{Chain, Words, tokens_of};

#[derive(Debug)]
pub(crate) struct Engine {
    preset: Preset,
    ranks: Vec<RankHandle>,
    balancer: Balancer,
    group: Group,
    settings: Mutex<Settings>,
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
    /// Starts one task a rank in `tasks`; they end with it.
    pub(crate) fn start(config: &EngineConfig, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let settings = Settings::of(config);
        let (group, members) = Group::new(config.ranks, settings.delayer());
        let ranks = (members.into_iter())
            .map(|member| {
                let scheduler = Scheduler::new(config.preset.clone());
                let decisions = Decisions::default();
                let gate = Gate::new(member, decisions.clone());
                let (task, handle) =
                    RankTask::new(scheduler, decisions, config.time_scale, config.max_queue);
                tasks.spawn(task.run(gate));
                handle
            })
            .collect();
        Arc::new(Self {
            preset: config.preset.clone(),
            ranks,
            balancer: Balancer::new(config.ranks),
            group,
            settings: Mutex::new(settings),
            next_id: AtomicU64::new(0),
        })
    }

    /// What may be changed while it runs.
    pub(crate) fn settings(&self) -> Settings {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes some of it, for all ranks, from their next tick on.
    pub(crate) fn change(&self, changes: Map<String, Value>) -> Result<Settings, BadSetting> {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        *settings = settings.with(changes)?;
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

        let unknown = |wanted| Refused::UnknownRank {
            wanted,
            last: self.ranks.len().saturating_sub(1),
        };
        let wanted = rank
            .map(|r| usize::try_from(r).map_err(|_| unknown(r)))
            .transpose()?;
        let seat = self
            .balancer
            .take(wanted)
            .ok_or_else(|| unknown(rank.unwrap_or(0)))?;
        let handle = self
            .ranks
            .get(seat.rank())
            .ok_or_else(|| unknown(seat.rank() as u64))?;

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
        let outputs = handle
            .submit(request)
            .map_err(|_| Refused::QueueFull { rank: seat.rank() })?;
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

    /// Each rank's figures, in order.
    pub(crate) fn stats(&self) -> Vec<RankStats> {
        self.ranks.iter().map(RankHandle::stats).collect()
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

    /// Known once the first token is there.
    pub(crate) fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// The next token; `None` before the last one means that the engine is going down.
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
