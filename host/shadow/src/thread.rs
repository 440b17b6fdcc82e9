//! The shadow's thread: it decides, compares, and lets its own requests end as the live ones do.

use crate::{Decided, Event, Shared};
use pointsman_core::{
    Answer, Core, Failure, Fallback, Outcome, Router, Source, Step, Ticket, Wants, Worker, decide,
};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Between two sweeps of its table.
const SWEEP: Duration = Duration::from_secs(1);

pub(crate) fn run(
    live: &Core,
    own: &Arc<Core>,
    source: &dyn Source,
    fallback: Fallback,
    events: &Receiver<Event>,
    shared: &Shared,
) {
    let mut shade = Shade {
        live,
        own,
        source,
        fallback,
        shared,
        asker: Asker::new(own, source),
        fleet: live.fleet.generation(),
        tickets: HashMap::new(),
    };
    let mut sweep = Instant::now() + SWEEP;
    loop {
        match events.recv_timeout(sweep.saturating_duration_since(Instant::now())) {
            Ok(Event::Decided(decided)) => shade.decide(*decided),
            Ok(Event::Step(number, step)) => shade.follow(number, step),
            Ok(Event::Ended(session)) => own.end_session(session),
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() >= sweep {
            own.sweep();
            shared.tally().bindings = own.bindings().len();
            sweep = Instant::now() + SWEEP;
        }
    }
}

/// Who is asked, of one generation.
struct Asker {
    generation: u64,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
    wants: Wants,
}

impl Asker {
    fn new(own: &Arc<Core>, source: &dyn Source) -> Asker {
        let generation = source.generation();
        let (policy, router) = source.router();
        Asker {
            generation,
            worker: Worker::new(own.clone(), policy),
            wants: router.wants(),
            router,
        }
    }
}

struct Shade<'a> {
    live: &'a Core,
    own: &'a Arc<Core>,
    source: &'a dyn Source,
    fallback: Fallback,
    shared: &'a Shared,
    asker: Asker,
    /// the live fleet's generation that it has
    fleet: u64,
    /// by the number of the live request
    tickets: HashMap<u64, Ticket>,
}

impl Shade<'_> {
    fn decide(&mut self, decided: Decided) {
        self.shared.waiting.fetch_sub(1, Relaxed);
        self.shared.waiting_bytes.fetch_sub(decided.bytes, Relaxed);
        self.see_fleet();
        if self.asker.generation != self.source.generation() {
            self.asker = Asker::new(self.own, self.source);
        }
        let began = Instant::now();
        let outcome = decide(
            &self.asker.worker,
            self.asker.router.as_mut(),
            self.fallback,
            &decided.incoming,
        );
        let took = began.elapsed();
        let failure = match &outcome {
            Outcome::Routed(ticket) => ticket.verdict().failure.clone(),
            Outcome::Refused(refusal) => refusal.failure.clone(),
        };
        match failure {
            Some(failure) => self.failed(&failure),
            // What the fallback says for it is no agreement.
            None => {
                let answer = Answer::of(&outcome);
                self.shared.tally().compared(&decided.answer, &answer, took);
            }
        }
        // Of a request that the live policy refused nothing more is heard.
        if let (Outcome::Routed(ticket), Some(_)) = (outcome, decided.answer.target) {
            self.tickets.insert(decided.number, ticket);
        }
    }

    fn follow(&mut self, number: u64, step: Step) {
        let Some(ticket) = self.tickets.get_mut(&number) else {
            return;
        };
        let target = ticket.target();
        if ticket.come_to(step) {
            self.tickets.remove(&number);
        }
        let wants = self.asker.wants;
        match step {
            Step::Output if wants.first_output => {
                self.observe(pointsman_core::Event::FirstOutput(target));
            }
            Step::Failed if wants.failed => {
                self.observe(pointsman_core::Event::Failed(target));
            }
            _ => {}
        }
    }

    fn see_fleet(&mut self) {
        let now = self.live.fleet.generation();
        if std::mem::replace(&mut self.fleet, now) != now {
            self.own.fleet.mirror(&self.live.fleet.snapshot());
            if self.asker.wants.fleet_changed {
                self.observe(pointsman_core::Event::FleetChanged);
            }
        }
    }

    fn observe(&mut self, event: pointsman_core::Event) {
        if let Err(failure) = self
            .asker
            .router
            .observe(event, &self.asker.worker.overview())
        {
            self.failed(&failure);
        }
    }

    fn failed(&self, failure: &Failure) {
        let first = self.shared.tally().failed(failure);
        if first {
            tracing::warn!(cause = failure.cause(), "the shadow policy: {failure}");
        }
        self.source.failed(self.asker.generation, failure);
    }
}
