//! A shadow over real decisions, without any HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helper fails the test"
)]

use pointsman_core::{
    Answer, Ask, Core, Decision, Endpoint, Failure, Fallback, Incoming, Key, Keys, Limits,
    ManualClock, Outcome, Policy, Roles, Route, Router, Source, Step, TargetSpec, Ticket, Worker,
    decide,
};
use pointsman_shadow::{MAX_WAITING, Report, Shadow};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

/// Binds sessions to the target of this number; waits for leave first, if it must.
#[derive(Clone)]
struct Takes {
    target: Option<u32>,
    leave: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Router for Takes {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        if let Some(leave) = &self.leave {
            let _ = leave.lock().unwrap().recv();
        }
        let owner = ask.request().owner.map(|owner| owner.target);
        let target = owner.or(self.target).ok_or(Failure::Stack)?;
        Ok(Decision::To(Route {
            target,
            bind: Keys::NONE.with(Key::Session),
            rebind: Keys::NONE,
            charge: None,
            reason: u8::from(owner.is_some()),
        }))
    }
}

impl Source for Takes {
    fn generation(&self) -> u64 {
        1
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        let policy = Policy {
            name: "test".to_owned(),
            version: "0".to_owned(),
            reasons: vec!["placed".to_owned(), "owner".to_owned()],
            keys: Keys::NONE.with(Key::Session),
        };
        (policy, Box::new(self.clone()))
    }
}

fn takes(target: u32) -> Takes {
    Takes {
        target: Some(target),
        leave: None,
    }
}

/// A live policy and its shadow.
struct Stage {
    live: Arc<Core>,
    own: Arc<Core>,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
    shadow: Shadow,
}

impl Stage {
    fn new(shadow: Takes) -> Stage {
        let live = Arc::new(Core::new(
            Limits::default(),
            Arc::new(ManualClock::default()),
        ));
        for name in ["a/0", "a/1"] {
            live.fleet.add(TargetSpec {
                endpoint: Endpoint {
                    name: name.to_owned(),
                    url: "http://a".to_owned(),
                    rank: 0,
                    labels: Vec::new(),
                },
                roles: Roles::ALL,
                models: None,
            });
        }
        let own = Arc::new(live.beside());
        let (policy, router) = takes(0).router();
        let source = Arc::new(shadow);
        let fallback = Fallback::LeastLoad;
        let shadow = Shadow::start(live.clone(), own.clone(), source, fallback).unwrap();
        Stage {
            worker: Worker::new(live.clone(), policy),
            live,
            own,
            router,
            shadow,
        }
    }

    fn send(&mut self, session: u64) -> Ticket {
        let incoming = Incoming {
            session: Some(session),
            prompt_tokens: 100,
            ..Incoming::default()
        };
        let router = self.router.as_mut();
        let outcome = decide(&self.worker, router, Fallback::LeastLoad, &incoming);
        let follower = self.shadow.decided(&incoming, Answer::of(&outcome));
        let Outcome::Routed(mut ticket) = outcome else {
            panic!("{outcome:?}");
        };
        if let Some(follower) = follower {
            ticket.follow(follower);
        }
        ticket
    }

    /// Its last report, once it has done all that it was told.
    fn end(self) -> (Report, Arc<Core>) {
        self.shadow.stop();
        (self.shadow.report(), self.own)
    }
}

fn load(core: &Core, target: u32) -> pointsman_core::Load {
    core.fleet.snapshot().ledger().load(target)
}

#[test]
fn its_requests_end_as_the_live_ones_do() {
    let mut stage = Stage::new(takes(1));
    let finished = stage.send(1);
    let mut streaming = stage.send(2);
    let waiting = stage.send(3);
    let failed = stage.send(4);
    finished.finish();
    streaming.output();
    streaming.output();
    failed.fail();
    let (report, own) = stage.end();
    assert_eq!((report.decided, report.agreed), (4, 0));
    let load = load(&own, 1);
    assert_eq!(
        load.requests, 0,
        "what it held was given back when it was stopped"
    );
    let difference = report.differences.first().unwrap();
    assert_eq!((difference.live.as_str(), difference.count), ("placed", 4));
    drop((streaming, waiting));
}

#[test]
fn it_charges_and_binds_in_a_world_of_its_own() {
    let (go, leave) = channel();
    let mut stage = Stage::new(Takes {
        target: Some(1),
        leave: Some(Arc::new(Mutex::new(leave))),
    });
    let mut held: Vec<Ticket> = (0..3).map(|session| stage.send(session)).collect();
    held.iter_mut().for_each(Ticket::dispatched);
    assert_eq!(load(&stage.live, 0).requests, 3);
    assert_eq!(load(&stage.own, 1).requests, 0, "nobody waited for it");
    release(&go, 3);
    // A fourth decision: when it was asked, all before it is done.
    let fourth = stage.send(9);
    release(&go, 1);
    while stage.shadow.report().decided < 4 {
        std::thread::yield_now();
    }
    assert_eq!(
        (load(&stage.own, 0).requests, load(&stage.own, 1).sessions),
        (0, 4)
    );
    assert_eq!(
        (load(&stage.live, 0).sessions, load(&stage.live, 1).sessions),
        (4, 0)
    );
    drop((held, fourth));
}

fn release(go: &Sender<()>, times: usize) {
    for _ in 0..times {
        go.send(()).unwrap();
    }
}

#[test]
fn one_that_is_too_slow_is_left_out_and_that_is_counted() {
    let (go, leave) = channel();
    let mut stage = Stage::new(Takes {
        target: Some(1),
        leave: Some(Arc::new(Mutex::new(leave))),
    });
    let sent = MAX_WAITING as u64 + 100;
    for session in 0..sent {
        stage.send(session).finish();
    }
    let report = stage.shadow.report();
    assert!(report.waiting <= MAX_WAITING, "{report:?}");
    assert!(report.dropped >= 99, "{report:?}");
    drop(go);
    let dropped = report.dropped;
    let (report, own) = stage.end();
    assert_eq!(report.decided, sent - dropped);
    assert_eq!((report.waiting, report.in_flight), (0, 0));
    assert_eq!(load(&own, 1).requests, 0);
}

#[test]
fn its_failures_are_its_own() {
    let mut stage = Stage::new(Takes {
        target: None,
        leave: None,
    });
    for session in 0..5 {
        let mut ticket = stage.send(session);
        assert!(ticket.verdict().failure.is_none());
        assert!(ticket.come_to(Step::Refused));
    }
    let (report, _) = stage.end();
    assert_eq!(report.failures.get("stack"), Some(&5));
}
