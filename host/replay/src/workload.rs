//! A trace made playable: how many users, how fast, and who waits for whom.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::prompt::{self, Boundaries, Message, mix};
use crate::trace::{Session, Trace};

/// How a trace becomes a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadOptions {
    /// Users that play every root session, at least 1; they share no text.
    pub copies: usize,
    /// Seconds played per second recorded, 0 (no pauses) to 1,000.
    pub time_scale: f64,
    /// Seconds of the trace between the starts of two root sessions.
    pub spacing_s: f64,
    /// Longest answer asked for, in tokens, at least 1.
    pub output_cap: u64,
}

impl Default for WorkloadOptions {
    /// The demo: four users at a hundred times the recorded speed.
    fn default() -> Self {
        Self {
            copies: 4,
            time_scale: 0.01,
            spacing_s: 30.0,
            output_cap: 64,
        }
    }
}

/// Conversations to play, every parent before its children.
#[derive(Clone, Debug)]
pub struct Workload {
    pub(crate) conversations: Arc<[Conversation]>,
}

/// One session as one user plays it.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Unique in the workload: user and session.
    pub id: String,
    /// The conversation that spawned this one.
    pub parent: Option<String>,
    /// When its first turn may be sent.
    pub start: Start,
    /// Sent one after the other, each when the one before is answered.
    pub turns: Vec<PlannedTurn>,
    salt: u64,
    boundaries: Arc<Boundaries>,
}

/// When a conversation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this time of the run.
    At(Duration),
    /// `wait` after turn `turn` of conversation number `conversation`, its
    /// parent, was answered: a subagent cannot run before it was spawned.
    After {
        /// Position in [`Workload::conversations`].
        conversation: usize,
        /// 0-based in that conversation.
        turn: usize,
        /// Pause after the answer.
        wait: Duration,
    },
}

/// One request to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTurn {
    /// Pause between the answer to the turn before, or the conversation's
    /// start, and this turn.
    pub think: Duration,
    /// `max_tokens` of the request.
    pub max_tokens: u64,
    blocks: Vec<u64>,
}

/// An option out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("workload option {option}: wanted {wanted}, found {found}; choose a value in that range")]
pub struct WorkloadError {
    /// Name of the option.
    pub option: &'static str,
    /// Its range.
    pub wanted: &'static str,
    /// What was given.
    pub found: String,
}

impl Workload {
    /// Plans `options.copies` plays of every root session of the trace. A
    /// session whose parent is not in the trace before it starts by the clock.
    pub fn build(trace: &Trace, options: &WorkloadOptions) -> Result<Self, WorkloadError> {
        options.check()?;
        let families = families(trace);
        let mut conversations = Vec::new();
        for copy in 0..options.copies {
            for family in &families {
                let root = family.sessions.first().map_or("", |s| s.id.as_str());
                let user = User {
                    name: copy + 1,
                    salt: salt(root, copy),
                    start_s: options.spacing_s * (copy * families.len() + family.number) as f64,
                    scale: options.time_scale,
                    cap: options.output_cap,
                };
                user.plan(family, &mut conversations);
            }
        }
        Ok(Self {
            conversations: conversations.into(),
        })
    }

    /// Every parent before its children.
    pub fn conversations(&self) -> &[Conversation] {
        &self.conversations
    }

    /// Requests in the whole workload.
    pub fn requests(&self) -> usize {
        self.conversations.iter().map(|c| c.turns.len()).sum()
    }
}

impl Conversation {
    /// The prompt of a turn of this conversation. Made on demand: all of them
    /// at once would be tens of megabytes.
    pub fn messages(&self, turn: &PlannedTurn) -> Vec<Message> {
        prompt::messages(self.salt, &turn.blocks, &self.boundaries)
    }
}

impl WorkloadOptions {
    fn check(&self) -> Result<(), WorkloadError> {
        let flaw = |option, wanted, found| {
            Err(WorkloadError {
                option,
                wanted,
                found,
            })
        };
        if self.copies == 0 || self.copies > 100_000 {
            return flaw("copies", "1 to 100000", self.copies.to_string());
        }
        if !(0.0..=1000.0).contains(&self.time_scale) {
            return flaw("time_scale", "0 to 1000", self.time_scale.to_string());
        }
        if !(0.0..=1e6).contains(&self.spacing_s) {
            return flaw(
                "spacing_s",
                "0 to 1000000 seconds",
                self.spacing_s.to_string(),
            );
        }
        if self.output_cap == 0 {
            return flaw(
                "output_cap",
                "at least 1 token",
                self.output_cap.to_string(),
            );
        }
        Ok(())
    }
}

/// A root session and its descendants, parents first.
struct Family<'a> {
    number: usize,
    sessions: Vec<&'a Session>,
    boundaries: Arc<Boundaries>,
}

fn families(trace: &Trace) -> Vec<Family<'_>> {
    let mut groups: Vec<Vec<&Session>> = Vec::new();
    let mut group_of: HashMap<&str, usize> = HashMap::new();
    for session in &trace.sessions {
        // Only sessions before this one are known here, so there is no cycle.
        let known = session
            .parent
            .as_ref()
            .and_then(|p| group_of.get(p.as_str()))
            .copied();
        let number = known.unwrap_or(groups.len());
        match groups.get_mut(number) {
            Some(group) => group.push(session),
            None => groups.push(vec![session]),
        }
        group_of.insert(&session.id, number);
    }
    groups
        .into_iter()
        .enumerate()
        .map(|(number, sessions)| Family {
            number,
            boundaries: Arc::new(Boundaries::of(&sessions)),
            sessions,
        })
        .collect()
}

/// One user's play of one family.
struct User {
    name: usize,
    salt: u64,
    /// When the root starts, in seconds of the trace.
    start_s: f64,
    scale: f64,
    cap: u64,
}

impl User {
    fn plan(&self, family: &Family<'_>, conversations: &mut Vec<Conversation>) {
        let first = conversations.len();
        for session in &family.sessions {
            let spawner = family
                .sessions
                .iter()
                .position(|s| Some(&s.id) == session.parent.as_ref());
            let spawner = spawner.and_then(|n| Some((first + n, family.sessions.get(n)?)));
            conversations.push(Conversation {
                id: self.named(&session.id),
                parent: session.parent.as_ref().map(|p| self.named(p)),
                start: self.start(session, spawner),
                turns: session
                    .turns
                    .iter()
                    .enumerate()
                    .map(|(n, turn)| PlannedTurn {
                        think: if n == 0 {
                            Duration::ZERO
                        } else {
                            self.played(turn.think_time_s)
                        },
                        max_tokens: turn.output_tokens.clamp(1, self.cap),
                        blocks: turn.blocks.clone(),
                    })
                    .collect(),
                salt: self.salt,
                boundaries: Arc::clone(&family.boundaries),
            });
        }
    }

    /// A child hangs on the last turn its parent had sent when it began.
    fn start(&self, session: &Session, spawner: Option<(usize, &&Session)>) -> Start {
        let anchor = spawner.and_then(|(conversation, parent)| {
            let turn = parent
                .turns
                .iter()
                .rposition(|t| t.at_s <= session.start_s)?;
            let answered_s = parent.turns.get(turn).map(|t| t.at_s + t.api_time_s)?;
            Some(Start::After {
                conversation,
                turn,
                wait: self.played(session.start_s - answered_s),
            })
        });
        anchor.unwrap_or_else(|| Start::At(self.played(self.start_s + session.start_s)))
    }

    fn named(&self, session: &str) -> String {
        format!("user{}/{session}", self.name)
    }

    /// Seconds of the trace as time of the run; what lies in the past is now.
    fn played(&self, seconds: f64) -> Duration {
        Duration::try_from_secs_f64(seconds * self.scale).unwrap_or_default()
    }
}

fn salt(root: &str, copy: usize) -> u64 {
    root.bytes()
        .fold(mix(copy as u64), |hash, byte| mix(hash ^ u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cut;

    #[test]
    fn a_child_hangs_on_the_parents_turn_before_it() {
        let options = WorkloadOptions {
            time_scale: 0.5,
            copies: 2,
            ..WorkloadOptions::default()
        };
        let workload = Workload::build(&Cut::embedded().unwrap(), &options).unwrap();
        let find = |id: &str| {
            workload
                .conversations()
                .iter()
                .position(|c| c.id == id)
                .unwrap()
        };
        let at = |id: &str| &workload.conversations()[find(id)];
        let late = at("user2/trace_0277/agent_004");
        let Start::After {
            conversation,
            turn,
            wait,
        } = late.start
        else {
            panic!("{:?}", late.start);
        };
        assert_eq!((conversation, turn), (find("user2/trace_0277"), 6));
        // Recorded: spawned at 723.533 s, turn 6 sent at 347 s, answered in 37.63 s.
        assert_eq!(wait.as_millis(), 169_451);
        assert_eq!(late.parent.as_deref(), Some("user2/trace_0277"));
        assert_eq!(at("user1/trace_0274").start, Start::At(Duration::ZERO));
        assert_eq!(
            at("user2/trace_0277").start,
            Start::At(Duration::from_secs(45))
        );
    }

    #[test]
    fn users_play_the_same_turns_in_words_of_their_own() {
        let workload =
            Workload::build(&Cut::embedded().unwrap(), &WorkloadOptions::default()).unwrap();
        assert_eq!(
            (workload.conversations().len(), workload.requests()),
            (36, 276)
        );
        let (mine, yours) = (&workload.conversations()[0], &workload.conversations()[9]);
        assert_eq!(mine.turns, yours.turns);
        let (a, b) = (
            mine.messages(&mine.turns[0]),
            yours.messages(&yours.turns[0]),
        );
        assert_eq!(a.len(), b.len());
        assert_ne!(a[0].content[..16], b[0].content[..16]);
        assert!(mine.turns.iter().all(|t| (1..=64).contains(&t.max_tokens)));
    }

    #[test]
    fn an_orphan_starts_by_the_clock() {
        let mut trace = Cut::embedded().unwrap();
        trace.sessions.retain(|s| s.id == "trace_0277/agent_004");
        let workload = Workload::build(&trace, &WorkloadOptions::default()).unwrap();
        let orphan = &workload.conversations()[0];
        assert_eq!(orphan.parent.as_deref(), Some("user1/trace_0277"));
        assert_eq!(orphan.start, Start::At(Duration::from_secs_f64(7.23533)));
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        let good = WorkloadOptions::default();
        let bad = [
            (
                "copies",
                WorkloadOptions {
                    copies: 0,
                    ..good.clone()
                },
            ),
            (
                "time_scale",
                WorkloadOptions {
                    time_scale: f64::NAN,
                    ..good.clone()
                },
            ),
            (
                "spacing_s",
                WorkloadOptions {
                    spacing_s: -1.0,
                    ..good.clone()
                },
            ),
            (
                "output_cap",
                WorkloadOptions {
                    output_cap: 0,
                    ..good
                },
            ),
        ];
        for (name, options) in bad {
            let error = Workload::build(&Trace::default(), &options).unwrap_err();
            assert_eq!(error.option, name);
        }
    }
}
