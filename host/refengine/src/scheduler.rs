//! One rank's continuous batching, as a state machine without clock or I/O.
//!
//! Whoever drives it owns time: call [`Scheduler::step`], let [`Step::duration`] pass (really, or
//! in virtual time), deliver [`Step::tokens`], repeat. After `step` returns, the state is that of
//! the step's end; what is pushed meanwhile is looked at by the next step.
//!
//! A step computes, within `max_num_batched_tokens`: one token for every sequence that decodes,
//! then prompt chunks first come first served: partly computed prompts, then waiting requests while
//! `max_num_seqs` and the cache allow. A request that does not fit yet holds up those behind it.
//! The chunk that ends a prompt also yields the first token.
//!
//! Whether a step may prefill is the [`Admission`] that it is given: the place of a prefill delayer,
//! which looks at [`Scheduler::outlook`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::cache::{Hold, PrefixCache};
use crate::cost::Work;
use crate::delayer::Outlook;
use crate::preset::Preset;
use crate::stats::RankStats;

/// A request as the scheduler sees it: sizes and cache keys, no text.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Chosen by the caller, unique among the requests in flight on this rank.
    pub id: u64,
    /// 0 counts as 1: something has to be computed to yield the first token.
    pub prompt_tokens: usize,
    /// How many tokens will be generated, 0 counts as 1.
    pub output_tokens: usize,
    /// Keys of the full blocks of the prompt and, as far as known, of the output behind it. Blocks
    /// without a key are never found again.
    pub keys: Arc<[u64]>,
    /// When it came, on the clock of whoever drives the scheduler.
    pub arrived: Duration,
}

/// May this step prefill? Decided by the caller for each step, before it begins: this is the place
/// of a prefill delayer and of a decode interval after prefill. Permission, not an order: whether
/// a prefill took place is [`Step::prefill_tokens`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Prefill what fits.
    Fire,
    /// Only decode: neither partly computed prompts nor waiting requests go on.
    Hold,
}

/// One forward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// How long it takes.
    pub duration: Duration,
    /// Requests that left the queue, as of the step's begin.
    pub started: Vec<Started>,
    /// What it yields, as of the step's end.
    pub tokens: Vec<Token>,
    /// Prompt tokens it computes.
    pub prefill_tokens: usize,
    /// Sequences that get one more token from decoding.
    pub decode_sequences: usize,
}

/// A request entered the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Which request.
    pub id: u64,
    /// Prompt tokens that the prefix cache spares it.
    pub cached_tokens: usize,
}

/// A request got one more token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Which request.
    pub id: u64,
    /// Which token of its output, from 0.
    pub index: usize,
    /// It is over; its blocks are released.
    pub last: bool,
}

/// The request can never run here, however long it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "prompt and output together may have {limit} tokens here, found {tokens}; shorten the prompt or lower max_tokens"
)]
pub struct TooLong {
    /// Prompt and output of the request, tokens.
    pub tokens: usize,
    /// What the cache of a rank holds, tokens.
    pub limit: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    preset: Preset,
    cache: PrefixCache,
    waiting: VecDeque<Waiting>,
    /// In order of admission.
    running: Vec<Sequence>,
    /// Only the totals; `stats` fills in the rest.
    totals: RankStats,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    /// Prompt tokens that were not cached when it came: looking again at every tick would cost more
    /// than it is worth.
    new_tokens: usize,
}

#[derive(Debug)]
struct Sequence {
    request: Request,
    hold: Hold,
    /// Tokens whose KV is in the cache. The last generated token's is not yet, as in real engines.
    computed: usize,
    generated: usize,
    /// Prompt tokens that the step being built computes.
    chunk: usize,
}

impl Sequence {
    fn prompt_left(&self) -> usize {
        self.request.prompt_tokens.saturating_sub(self.computed)
    }

    fn decodes(&self) -> bool {
        self.generated > 0
    }

    fn is_over(&self) -> bool {
        self.generated >= self.request.output_tokens
    }
}

/// Whether a request of so many tokens can run under `preset` at all.
///
/// # Errors
/// It needs more blocks than there are.
pub fn check_length(preset: &Preset, prompt: usize, output: usize) -> Result<(), TooLong> {
    let (tokens, limit) = (prompt.saturating_add(output), preset.max_context());
    if tokens > limit {
        Err(TooLong { tokens, limit })
    } else {
        Ok(())
    }
}

impl Scheduler {
    /// An idle rank with an empty cache. The preset must be valid.
    #[must_use]
    pub fn new(preset: Preset) -> Self {
        Self {
            cache: PrefixCache::new(preset.cache_blocks),
            preset,
            waiting: VecDeque::new(),
            running: Vec::new(),
            totals: RankStats::default(),
        }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// It can never run here.
    pub fn push(&mut self, mut request: Request) -> Result<(), TooLong> {
        request.prompt_tokens = request.prompt_tokens.max(1);
        request.output_tokens = request.output_tokens.max(1);
        check_length(&self.preset, request.prompt_tokens, request.output_tokens)?;
        self.totals.requests_total += 1;
        let new_tokens = request.prompt_tokens - self.cached_tokens(&request);
        self.waiting.push_back(Waiting {
            request,
            new_tokens,
        });
        Ok(())
    }

    /// Nothing waits and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// What a prefill delayer wants to know before a step that begins at `now`.
    #[must_use]
    pub fn outlook(&self, now: Duration) -> Outlook {
        let partial = || self.running.iter().filter(|s| !s.decodes());
        let has_partial = partial().next().is_some();
        let head = self.waiting.front();
        let budget = self.preset.max_num_batched_tokens;
        let mut pending: usize = partial().map(Sequence::prompt_left).sum();
        // More than a forward pass holds is not asked for.
        for waiting in &self.waiting {
            if pending >= budget {
                break;
            }
            pending += waiting.new_tokens;
        }
        let age = head.map_or(Duration::ZERO, |w| now.saturating_sub(w.request.arrived));
        Outlook {
            prefillable: has_partial || head.is_some_and(|w| self.is_admissible(&w.request)),
            pending_tokens: pending as u64,
            running_decode: (self.running.len() - partial().count()) as u64,
            kv_usage: self.kv_usage(),
            has_partial,
            oldest_age_ms: age.as_secs_f64() * 1e3,
        }
    }

    /// Begins the next step, or says that there is nothing to do, under this admission.
    pub fn step(&mut self, admission: Admission) -> Option<Step> {
        let started = match admission {
            Admission::Fire => self.plan_prefill(),
            Admission::Hold => Vec::new(),
        };
        let (work, tokens) = self.advance();
        if work.is_empty() {
            return None;
        }
        self.release_finished();

        let duration = self.preset.cost.step(&work);
        self.totals.steps_total += 1;
        self.totals.busy_seconds_total += duration.as_secs_f64();
        self.totals.prefill_tokens_computed_total += work.prefill_tokens as u64;
        self.totals.generation_tokens_total += tokens.len() as u64;
        self.totals.decode_tokens_total += work.decode_sequences as u64;
        Some(Step {
            duration,
            started,
            tokens,
            prefill_tokens: work.prefill_tokens,
            decode_sequences: work.decode_sequences,
        })
    }

    /// Gives a request up, waiting or running, and frees its blocks. False: not here (any more).
    pub fn cancel(&mut self, id: u64) -> bool {
        if let Some(at) = self.waiting.iter().position(|w| w.request.id == id) {
            self.waiting.remove(at);
        } else if let Some(at) = self.running.iter().position(|s| s.request.id == id) {
            let sequence = self.running.remove(at);
            self.cache.release(sequence.hold);
        } else {
            return false;
        }
        self.totals.cancelled_total += 1;
        true
    }

    /// Forgets the cached blocks that nothing references, and all totals.
    pub fn reset(&mut self) {
        self.cache.clear();
        self.totals = RankStats::default();
    }

    /// The figures as of now.
    #[must_use]
    pub fn stats(&self) -> RankStats {
        RankStats {
            alive: true,
            kv_usage: self.kv_usage(),
            requests_running: self.running.len() as u64,
            requests_waiting: self.waiting.len() as u64,
            cache_blocks_used: self.cache.used() as u64,
            cache_blocks_referenced: self.cache.referenced() as u64,
            cache_blocks_capacity: self.cache.capacity() as u64,
            cache_evictions_total: self.cache.evictions(),
            ..self.totals
        }
    }

    fn kv_usage(&self) -> f64 {
        self.cache.referenced() as f64 / self.cache.capacity() as f64
    }

    /// Deals out what decoding leaves of the token budget.
    fn plan_prefill(&mut self) -> Vec<Started> {
        let decoding = self.running.iter().filter(|s| s.decodes()).count();
        let mut budget = self.preset.max_num_batched_tokens.saturating_sub(decoding);
        for sequence in self.running.iter_mut().filter(|s| !s.decodes()) {
            sequence.chunk = sequence.prompt_left().min(budget);
            budget -= sequence.chunk;
        }

        let mut started = Vec::new();
        while budget > 0 && self.running.len() < self.preset.max_num_seqs {
            let Some(mut sequence) = self.admit_next() else {
                break;
            };
            sequence.chunk = sequence.prompt_left().min(budget);
            budget -= sequence.chunk;
            started.push(Started {
                id: sequence.request.id,
                cached_tokens: sequence.computed,
            });
            self.totals.prompt_tokens_total += sequence.request.prompt_tokens as u64;
            self.totals.cached_tokens_total += sequence.computed as u64;
            self.running.push(sequence);
        }
        started
    }

    /// Takes the head of the queue, if the cache has room for it.
    fn admit_next(&mut self) -> Option<Sequence> {
        let head = &self.waiting.front()?.request;
        let (usable, total) = self.blocks_of(head);
        let hold = self.cache.admit(&head.keys, usable, total)?;
        let request = self.waiting.pop_front()?.request;
        let computed = hold.shared() * self.preset.block_tokens;
        Some(Sequence {
            request,
            hold,
            computed,
            generated: 0,
            chunk: 0,
        })
    }

    fn is_admissible(&self, head: &Request) -> bool {
        let (usable, total) = self.blocks_of(head);
        self.running.len() < self.preset.max_num_seqs && self.cache.fits(&head.keys, usable, total)
    }

    /// Prompt tokens that the cache would spare it now.
    fn cached_tokens(&self, request: &Request) -> usize {
        let (usable, _) = self.blocks_of(request);
        let keys = request.keys.get(..usable.min(request.keys.len()));
        self.cache.lookup(keys.unwrap_or_default()) * self.preset.block_tokens
    }

    /// How many blocks it can have from the cache at most, and how many it needs.
    fn blocks_of(&self, request: &Request) -> (usize, usize) {
        let block = self.preset.block_tokens;
        // At least the prompt's last token is computed: it yields the first output token.
        let usable = request.prompt_tokens.saturating_sub(1) / block;
        let total = (request.prompt_tokens + request.output_tokens).div_ceil(block);
        (usable, total)
    }

    /// Computes the planned chunks and one token for each sequence that decodes.
    fn advance(&mut self) -> (Work, Vec<Token>) {
        let (mut work, mut tokens) = (Work::default(), Vec::new());
        for sequence in &mut self.running {
            if sequence.decodes() {
                work.decode(sequence.computed);
                sequence.computed += 1;
            } else if sequence.chunk > 0 {
                work.prefill(sequence.chunk, sequence.computed);
                sequence.computed += std::mem::take(&mut sequence.chunk);
            } else {
                continue;
            }
            self.cache.publish(
                &mut sequence.hold,
                sequence.computed / self.preset.block_tokens,
            );
            if sequence.prompt_left() == 0 {
                let index = sequence.generated;
                sequence.generated += 1;
                tokens.push(Token {
                    id: sequence.request.id,
                    index,
                    last: sequence.is_over(),
                });
            }
        }
        (work, tokens)
    }

    fn release_finished(&mut self) {
        let cache = &mut self.cache;
        for sequence in self.running.extract_if(.., |s| s.is_over()) {
            cache.release(sequence.hold);
        }
    }
}

#[cfg(test)]
mod tests;
