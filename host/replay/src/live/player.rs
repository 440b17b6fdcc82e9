//! One conversation, from its cue to its last answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::LiveOptions;
use super::connection::{Connection, Upstream};
use super::exchange::{exchange, request};
use crate::record::Record;
use crate::workload::{Conversation, PlannedTurn, Workload};

/// What all players share.
pub(super) struct Stage {
    pub workload: Workload,
    pub upstream: Upstream,
    pub permits: Semaphore,
    pub options: LiveOptions,
    pub origin: Instant,
    pub records: mpsc::UnboundedSender<Record>,
}

/// What a conversation waits for before its first turn.
pub(super) enum Cue {
    /// A time of the run.
    Clock(Duration),
    /// The answer to the parent's turn `turn` (0-based), and a pause.
    Answer {
        /// How many turns of the parent are answered.
        parent: watch::Receiver<usize>,
        turn: usize,
        wait: Duration,
    },
}

pub(super) struct Player {
    stage: Arc<Stage>,
    number: usize,
    connection: Connection,
}

impl Player {
    pub fn new(stage: Arc<Stage>, number: usize) -> Self {
        Self {
            stage,
            number,
            connection: Connection::default(),
        }
    }

    /// Plays every turn and reports how many are answered.
    pub async fn play(mut self, cue: Cue, answered: watch::Sender<usize>) {
        let stage = Arc::clone(&self.stage);
        let Some(conversation) = stage.workload.conversations().get(self.number) else {
            return;
        };
        cue.wait(stage.origin).await;
        for (n, turn) in conversation.turns.iter().enumerate() {
            if !turn.think.is_zero() {
                sleep(turn.think).await;
            }
            let record = self.turn(&stage, conversation, n, turn).await;
            answered.send_replace(n + 1);
            // Nobody to tell: the run was dropped, and this task with it.
            let _ = stage.records.send(record);
        }
    }

    async fn turn(
        &mut self,
        stage: &Stage,
        conversation: &Conversation,
        n: usize,
        turn: &PlannedTurn,
    ) -> Record {
        let mut record = Record {
            session: conversation.id.clone(),
            parent: conversation.parent.clone(),
            turn: n,
            ..Record::default()
        };
        let permit = stage.permits.acquire().await;
        let request = request(
            &stage.upstream,
            &conversation.id,
            conversation.parent.as_deref(),
            &stage.options.model,
            turn.max_tokens,
            &conversation.messages(turn),
        );
        record.start = stage.origin.elapsed();
        let outcome = match request {
            Ok(request) => {
                let exchange = exchange(
                    &mut self.connection,
                    &stage.upstream,
                    request,
                    stage.origin,
                    &mut record,
                );
                let limit = stage.options.timeout;
                timeout(limit, exchange)
                    .await
                    .unwrap_or_else(|_| Err(format!("no complete answer within {limit:?}")))
            }
            Err(unsendable) => Err(unsendable),
        };
        record.end = stage.origin.elapsed();
        drop(permit);
        if let Err(error) = outcome {
            self.connection.close();
            record.error = Some(error);
        }
        record
    }
}

impl Cue {
    async fn wait(self, origin: Instant) {
        match self {
            Self::Clock(time) => sleep_until(origin + time).await,
            Self::Answer {
                mut parent,
                turn,
                wait,
            } => {
                // An error means that the parent is over: nothing to wait for.
                let _ = parent.wait_for(|answered| *answered > turn).await;
                sleep(wait).await;
            }
        }
    }
}
