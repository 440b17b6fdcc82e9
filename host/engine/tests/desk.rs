//! A driver's thread: slow, stuck and panicking drivers, and profiling windows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pointsman_engine::{Desk, Driver, Failure, Knob, Limits, NullDriver, Opener, Profile};

const PATIENT: Limits = Limits {
    deadline: Duration::from_secs(60),
    queue: 2,
};

/// Does what the name of a knob says.
struct Scripted {
    /// Says what was done.
    log: Sender<String>,
    /// Waited for by `wait`.
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl Driver for Scripted {
    fn ranks(&mut self) -> Result<u32, Failure> {
        Ok(1)
    }

    fn knobs(&mut self, _rank: u32) -> Result<Vec<Knob>, Failure> {
        Ok(Vec::new())
    }

    fn knob_get(&mut self, _rank: u32, name: &str) -> Result<i64, Failure> {
        self.log.send(name.to_owned()).unwrap();
        match name {
            "wait" => self.go_on.lock().unwrap().recv().unwrap(),
            "panic" => panic!("on purpose"),
            _ => {}
        }
        Ok(7)
    }

    fn knob_set(&mut self, _rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        self.log.send(format!("{name}={value}")).unwrap();
        Ok(())
    }

    fn stat(&mut self, _rank: u32, _name: &str) -> Result<f64, Failure> {
        Err(Failure::Unknown)
    }

    fn profile_start(&mut self) -> Result<(), Failure> {
        self.log.send("start".into()).unwrap();
        Ok(())
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        self.log.send("stop".into()).unwrap();
        Ok("/trace".into())
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = self.log.send("close".into());
    }
}

struct Rig {
    desk: Desk,
    log: Receiver<String>,
    go_on: Sender<()>,
}

fn rig(limits: Limits) -> Rig {
    let (sender, log) = channel();
    let (go_on, waits) = channel();
    let waits = Arc::new(Mutex::new(waits));
    let desk = Desk::open(limits, move || {
        sender.send("open".into()).unwrap();
        Ok(Scripted {
            log: sender.clone(),
            go_on: waits.clone(),
        })
    });
    Rig { desk, log, go_on }
}

fn why<T: std::fmt::Debug>(answer: Result<T, Failure>) -> String {
    match answer {
        Err(Failure::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_driver_that_panics_is_closed_and_opened_anew_by_the_next_call() {
    let rig = rig(PATIENT);
    assert_eq!(rig.desk.knob_get(0, "a"), Ok(7));
    assert!(why(rig.desk.knob_get(0, "panic")).contains("panicked"));
    assert_eq!(rig.desk.knob_get(0, "b"), Ok(7));
    drop(rig.desk);
    let log: Vec<_> = rig.log.iter().collect();
    assert_eq!(log, ["open", "a", "panic", "close", "open", "b", "close"]);
}

#[test]
fn an_open_that_panics_or_fails_is_tried_again_by_the_next_call() {
    let mut tries = 0;
    let desk = Desk::open(PATIENT, move || {
        tries += 1;
        match tries {
            1 => panic!("on purpose"),
            2 => Err(Failure::Unavailable("not yet".into())),
            _ => Ok(NullDriver),
        }
    });
    assert!(why(desk.ranks()).contains("panicked"));
    assert_eq!(why(desk.ranks()), "not yet");
    assert_eq!(desk.ranks(), Ok(1));
}

#[test]
fn a_slow_driver_serves_again_when_it_is_back_and_what_was_given_up_is_not_done() {
    let rig = rig(Limits {
        deadline: Duration::from_millis(30),
        queue: 2,
    });
    thread::scope(|scope| {
        let slow = scope.spawn(|| why(rig.desk.knob_get(0, "wait")));
        assert_eq!(rig.log.recv().unwrap(), "open");
        assert_eq!(rig.log.recv().unwrap(), "wait");
        // Handed in while the driver works; given up, or refused, before it is back.
        why(rig.desk.knob_set(None, "late", 1));
        assert!(slow.join().unwrap().contains("did not answer within 30ms"));
    });
    assert!(why(rig.desk.ranks()).contains("should have ended"));
    rig.go_on.send(()).unwrap();
    while rig.desk.knob_set(None, "next", 2).is_err() {
        thread::yield_now();
    }
    let log: Vec<_> = rig.log.try_iter().collect();
    assert!(!log.contains(&"late=1".to_owned()), "{log:?}");
    assert!(log.contains(&"next=2".to_owned()), "{log:?}");
}

#[test]
fn only_so_many_calls_wait() {
    let rig = rig(PATIENT);
    thread::scope(|scope| {
        let call = || scope.spawn(|| rig.desk.knob_get(0, "wait"));
        let mut calls = vec![call()];
        assert_eq!(rig.log.recv().unwrap(), "open");
        assert_eq!(rig.log.recv().unwrap(), "wait");
        // The driver is in the first one: of these, two wait and the others are refused at once.
        calls.extend((0..9).map(|_| call()));
        while calls.iter().filter(|call| call.is_finished()).count() < 7 {
            thread::yield_now();
        }
        (0..3).for_each(|_| rig.go_on.send(()).unwrap());
        let answers = calls.into_iter().map(|call| call.join().unwrap());
        let (done, refused): (Vec<_>, Vec<_>) = answers.partition(Result::is_ok);
        assert_eq!((done.len(), refused.len()), (3, 7));
        for answer in refused {
            assert_eq!(why(answer), "too many calls wait for the driver");
        }
    });
}

#[test]
fn a_profiling_window_ends_by_itself_when_it_is_stopped_and_with_the_desk() {
    let rig = rig(PATIENT);
    rig.desk
        .profile_start(Some(Duration::from_millis(1)))
        .unwrap();
    let next = || rig.log.recv().unwrap();
    assert_eq!([next(), next(), next()], ["open", "start", "stop"]);
    let me = Opener {
        by: "me".into(),
        number: 1,
    };
    rig.desk
        .profile_start_for(me.clone(), Some(Duration::MAX))
        .unwrap();
    let profile = rig.desk.profile();
    assert_eq!(profile.open.map(|open| open.opener), Some(me));
    assert_eq!(
        profile.last,
        Some(Ok("/trace".into())),
        "the one that ended by itself has left its trace"
    );
    let second = why(rig.desk.profile_start(None));
    assert_eq!(second, "a window is open already by me: stop it first");
    assert_eq!(rig.desk.profile_stop(), Ok("/trace".into()));
    assert_eq!(rig.desk.profile().open, None);
    assert_eq!([next(), next()], ["start", "stop"]);
    rig.desk.profile_start(None).unwrap();
    why(rig.desk.knob_get(0, "panic"));
    // Whoever called hears of it first; the window is gone when the driver is closed.
    assert_eq!([next(), next(), next()], ["start", "panic", "close"]);
    let lost = Some(Err(Failure::Unavailable("the driver panicked".into())));
    assert_eq!(
        rig.desk.profile(),
        Profile {
            last: lost,
            ..Profile::default()
        }
    );
    rig.desk.profile_start(None).unwrap();
    drop(rig.desk);
    let rest: Vec<_> = rig.log.iter().collect();
    assert_eq!(rest, ["open", "start", "stop", "close"]);
}

#[test]
fn a_driver_that_is_closed_has_ended_its_window_and_stays_closed() {
    let rig = rig(PATIENT);
    rig.desk.profile_start(None).unwrap();
    assert_eq!(rig.desk.close(), Ok(()));
    let log: Vec<_> = rig.log.try_iter().collect();
    assert_eq!(log, ["open", "start", "stop", "close"]);
    assert_eq!(why(rig.desk.ranks()), "the driver is closed");
    assert_eq!(rig.desk.close(), Ok(()));
    drop(rig.desk);
    assert_eq!(rig.log.iter().count(), 0, "closed once");

    let late = self::rig(Limits {
        deadline: Duration::from_millis(1),
        queue: 2,
    });
    while late.desk.knob_get(0, "a").is_err() {
        thread::yield_now();
    }
    // Given up before it began, it is not done.
    while !late.log.try_iter().any(|done| done == "wait") {
        why(late.desk.knob_get(0, "wait"));
    }
    assert!(why(late.desk.close()).contains("should have ended after 1ms"));
    late.go_on.send(()).unwrap();
}

#[test]
fn the_null_driver_takes_profiling_windows_and_knows_nothing() {
    let desk = Desk::open(PATIENT, || Ok(NullDriver));
    assert_eq!((desk.ranks(), desk.knobs(0)), (Ok(1), Ok(Vec::new())));
    assert_eq!(desk.profile_start(None), Ok(()));
    assert_eq!(desk.profile_stop(), Ok(String::new()));
    assert_eq!(desk.knob_set(None, "x", 1), Err(Failure::Unknown));
    assert_eq!(desk.kernels(0, "bmm"), Err(Failure::Unknown));
}
