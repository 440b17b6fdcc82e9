//! Ranks that come late, hang, come back and die in every order: those of one round hear the same and
//! decide the same, and nobody waits for ever.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::delayer::{Cause, CollectiveError, Delayer, Outlook};
use crate::gate::follow;

const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
enum Act {
    /// A rank begins a tick, if it is not in one.
    Arrive(usize, Outlook),
    /// A rank looks for the decision of the tick that it is in.
    Hear(usize),
    /// The timeout passes.
    Expire,
    Die(usize),
    /// The delayer is turned on, with this interval, or off.
    Set(Option<u32>),
}

fn act(ranks: usize) -> impl Strategy<Value = Act> {
    let outlook = (any::<bool>(), 0..9000u64, 0..3u64, any::<bool>());
    let outlook = outlook.prop_map(
        |(prefillable, pending_tokens, running_decode, has_partial)| Outlook {
            prefillable,
            pending_tokens,
            running_decode,
            kv_usage: 0.5,
            has_partial: has_partial && prefillable,
            oldest_age_ms: 0.0,
        },
    );
    prop_oneof![
        30 => (0..ranks, outlook).prop_map(|(rank, has)| Act::Arrive(rank, has)),
        30 => (0..ranks).prop_map(Act::Hear),
        4 => Just(Act::Expire),
        1 => (0..ranks).prop_map(Act::Die),
        1 => prop::option::weighted(0.7, 0..5u32).prop_map(Act::Set),
    ]
}

fn acts() -> impl Strategy<Value = (usize, Vec<Act>)> {
    (2..6usize).prop_flat_map(|ranks| (Just(ranks), prop::collection::vec(act(ranks), 1..400)))
}

/// A rank as its thread and gate are.
#[derive(Debug, Default)]
struct Rank {
    dead: bool,
    delayer: Option<(u64, Delayer)>,
    /// The round that it is in, and whether it has prompts.
    tick: Option<(Round, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Round {
    /// That many had ended before it.
    Number(u64),
    /// It was over for this rank before it came, or there is none.
    Late,
}

struct Game {
    rounds: Rounds,
    ranks: Vec<Rank>,
    now: Instant,
    ended: u64,
    heard: BTreeMap<u64, Vec<(Outcome, Option<Cause>)>>,
}

impl Game {
    fn new(ranks: usize) -> Self {
        Self {
            rounds: Rounds::new(ranks, Some(Thresholds::default()), Some(TIMEOUT)),
            ranks: (0..ranks).map(|_| Rank::default()).collect(),
            now: Instant::now(),
            ended: 0,
            heard: BTreeMap::new(),
        }
    }

    /// Notices whether a round ended meanwhile, by nothing but how many have arrived.
    fn watch<T>(&mut self, what: impl FnOnce(&mut Rounds, Instant) -> T) -> T {
        let before = self.rounds.arrived();
        let result = what(&mut self.rounds, self.now);
        if self.rounds.arrived() < before {
            self.ended += 1;
        }
        result
    }

    fn play(&mut self, act: Act) -> Result<(), TestCaseError> {
        match act {
            Act::Arrive(rank, has) => self.arrive(rank, has),
            Act::Hear(rank) => self.hear(rank)?,
            Act::Expire => {
                self.now += TIMEOUT;
                self.watch(|rounds, now| rounds.expire(now));
            }
            Act::Die(rank) => {
                // One stays.
                if self.ranks.iter().filter(|rank| !rank.dead).count() > 1
                    && !std::mem::replace(&mut self.ranks[rank].dead, true)
                {
                    self.watch(|rounds, _| rounds.leave(rank));
                }
            }
            Act::Set(interval) => {
                let thresholds = interval.map(|prefill_decode_interval| Thresholds {
                    prefill_decode_interval,
                    ..Thresholds::default()
                });
                self.watch(|rounds, _| rounds.set(thresholds));
            }
        }
        Ok(())
    }

    fn arrive(&mut self, rank: usize, has: Outlook) {
        let mode = self.rounds.mode();
        let one = &mut self.ranks[rank];
        if one.dead || one.tick.is_some() {
            return;
        }
        let Some(mode) = mode else {
            one.delayer = None;
            return;
        };
        let vector = follow(&mut one.delayer, mode).contribution(&has);
        let (number, before) = (self.ended, self.rounds.arrived());
        self.watch(|rounds, now| rounds.arrive(rank, &vector, now));
        let is_in = self.ended > number || self.rounds.arrived() > before;
        let alone = self.rounds.places[rank]
            .unheard
            .is_some_and(|o| o != Outcome::Failed);
        // A group of one completes its round without anybody having arrived before.
        let round = if is_in || alone {
            Round::Number(number)
        } else {
            Round::Late
        };
        if alone && !is_in {
            self.ended += 1;
        }
        self.ranks[rank].tick = Some((round, has.prefillable));
    }

    fn hear(&mut self, rank: usize) -> Result<(), TestCaseError> {
        let one = &mut self.ranks[rank];
        let Some((round, prefillable)) = one.tick else {
            return Ok(());
        };
        if one.dead {
            return Ok(());
        }
        let Some(outcome) = self.rounds.hear(rank) else {
            return Ok(());
        };
        one.tick = None;
        let cause = match outcome {
            Outcome::Off => None,
            Outcome::Reduced { reduced, mode } => {
                Some(follow(&mut one.delayer, mode).decide(Ok(reduced)))
            }
            Outcome::Failed => {
                let (_, delayer) = one.delayer.as_mut().unwrap();
                Some(delayer.decide(Err(CollectiveError)))
            }
        };
        if cause.is_none_or(Cause::fires)
            && prefillable
            && let Some((_, delayer)) = &mut one.delayer
        {
            delayer.notify_prefill_executed();
        }
        let Round::Number(number) = round else {
            prop_assert!(
                !matches!(outcome, Outcome::Reduced { .. }),
                "late, and yet in it"
            );
            return Ok(());
        };
        let others = self.heard.entry(number).or_default();
        if let Some(first) = others.first() {
            prop_assert_eq!(
                *first,
                (outcome, cause),
                "ranks of round {} disagree",
                number
            );
        }
        others.push((outcome, cause));
        if let Outcome::Reduced { reduced, .. } = outcome {
            prop_assert!(others.len() <= reduced.ranks, "one took part uncounted");
        }
        Ok(())
    }

    /// Everybody who waits hears, one timeout later; then those that live meet as ever.
    fn end(mut self) -> Result<(), TestCaseError> {
        self.play(Act::Expire)?;
        let all = 0..self.ranks.len();
        for rank in all.clone() {
            self.hear(rank)?;
            prop_assert!(
                self.ranks[rank].dead || self.ranks[rank].tick.is_none(),
                "waits for ever"
            );
        }
        self.play(Act::Set(Some(2)))?;
        // Each owes as many failures as it has missed rounds.
        let has = Outlook::default();
        for _ in 0..500 {
            for rank in all.clone() {
                if !self.rounds.calls(rank) || self.rounds.arrived() > 0 {
                    continue;
                }
                self.arrive(rank, has);
                self.hear(rank)?;
            }
        }
        for round in 0..3 {
            for rank in all.clone() {
                self.arrive(rank, has);
            }
            let living: Vec<_> = all.clone().filter(|rank| !self.ranks[*rank].dead).collect();
            for rank in &living {
                let outcome = self.rounds.places[*rank].unheard;
                let Some(Outcome::Reduced { reduced, .. }) = outcome else {
                    return Err(TestCaseError::fail(format!("round {round}: {outcome:?}")));
                };
                prop_assert_eq!(reduced.ranks, living.len());
                self.hear(*rank)?;
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn whoever_hangs_comes_back_or_dies_ranks_of_a_round_agree_and_nobody_waits_for_ever(
        (ranks, acts) in acts()
    ) {
        let mut game = Game::new(ranks);
        for act in acts {
            game.play(act)?;
        }
        game.end()?;
    }
}
