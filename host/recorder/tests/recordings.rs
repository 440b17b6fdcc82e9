//! What is written is read again, whatever happened to the writer.

#![allow(clippy::unwrap_used, reason = "a test's helper fails the test")]

use pointsman_core::{
    Answer, Ask, Core, Decision, Endpoint, Failure, Fallback, Incoming, Key, Keys, Limits,
    ManualClock, Moment, Policy, Roles, Route, Router, TargetSpec, Worker, decide_taped,
};
use pointsman_recorder::{ReadError, Reader, Recorder, Rehearsal, StartError, Writer};
use std::rc::Rc;
use std::sync::Arc;

/// Takes the target of this number, or fails.
struct Takes(Option<u32>);

impl Router for Takes {
    fn route(&mut self, _: &Rc<Ask>) -> Result<Decision, Failure> {
        let target = self.0.ok_or(Failure::Stack)?;
        Ok(Decision::To(Route {
            target,
            bind: Keys::NONE.with(Key::Session),
            rebind: Keys::NONE,
            charge: None,
            reason: 0,
        }))
    }
}

fn policy() -> Policy {
    Policy {
        name: "test".to_owned(),
        version: "0".to_owned(),
        reasons: vec!["taken".to_owned()],
        keys: Keys::NONE.with(Key::Session),
    }
}

fn moments(count: u64) -> Vec<Moment> {
    let core = Arc::new(Core::new(
        Limits::default(),
        Arc::new(ManualClock::default()),
    ));
    let worker = Worker::new(core.clone(), policy());
    (0..count)
        .map(|n| {
            // Another fleet each tenth time.
            if n % 10 == 0 {
                core.fleet.add(TargetSpec {
                    endpoint: Endpoint {
                        name: format!("t/{n}"),
                        url: "http://t".to_owned(),
                        rank: 0,
                        labels: vec![("zone".to_owned(), "ä\n\"".to_owned())],
                    },
                    roles: Roles::ALL,
                    models: None,
                });
            }
            let incoming = Incoming {
                seed: u64::MAX - n,
                session: Some(n % 7),
                prompt_tokens: 10,
                ..Incoming::default()
            };
            let fallback = Fallback::LeastLoad;
            let (_, moment) = decide_taped(&worker, &mut Takes(Some(0)), fallback, &incoming);
            moment.unwrap()
        })
        .collect()
}

fn written(moments: &[Moment]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for moment in moments {
        writer.write(moment).unwrap();
    }
    writer.into_inner()
}

fn same(one: &Moment, other: &Moment) -> bool {
    let parts = |m: &Moment| {
        let i = &m.incoming;
        let targets: Vec<_> = m
            .fleet
            .members()
            .map(|(s, c)| (s.map(|s| s.endpoint.clone()), c))
            .collect();
        let who = (
            i.seed,
            i.session,
            i.parent,
            i.prompt_tokens,
            i.shared.clone(),
        );
        (
            m.loads.clone(),
            m.bound,
            m.read.clone(),
            m.answer.clone(),
            targets,
            who,
            m.at_ms,
        )
    };
    parts(one) == parts(other)
}

#[test]
fn what_was_written_is_read_again() {
    let moments = moments(35);
    let text = written(&moments);
    let read: Result<Vec<Moment>, ReadError> = Reader::new(text.as_slice()).unwrap().collect();
    let read = read.unwrap();
    assert_eq!(read.len(), moments.len());
    assert!(
        read.iter()
            .zip(&moments)
            .all(|(read, wrote)| same(read, wrote))
    );
    let fleets = String::from_utf8(text)
        .unwrap()
        .matches("{\"fleet\":")
        .count();
    assert_eq!(
        fleets, 4,
        "a fleet is written when it changes, not with each decision"
    );
}

#[test]
fn a_recording_that_breaks_off_anywhere_is_read_up_to_there() {
    let text = written(&moments(12));
    let first = text.iter().position(|&byte| byte == b'\n').unwrap();
    let mut most = 0;
    for end in first + 1..=text.len() {
        let part = text.get(..end).unwrap();
        let mut reader = Reader::new(part).unwrap();
        let read = reader.by_ref().map(Result::unwrap).count();
        assert_eq!(reader.is_torn(), !part.ends_with(b"\n"), "at {end}");
        assert!(read >= most && read <= 12, "at {end}");
        most = read;
    }
    assert_eq!(most, 12);
}

#[test]
fn what_is_no_recording_is_said_to_be_none() {
    let bad = |text: &[u8]| Reader::new(text).err().map(|error| error.to_string());
    for text in [
        b"".as_slice(),
        b"{}\n",
        b"\0asm",
        b"[1]\n",
        b"{\"fleet\":[]}\n",
    ] {
        assert!(bad(text).unwrap().contains("not a recording"), "{text:?}");
    }
    let newer = bad(b"{\"pointsman_recording\":9}\n").unwrap();
    assert!(newer.contains("version 9"), "{newer}");
    let text = b"{\"pointsman_recording\":1}\n{\"fleet\":[{}]}\n";
    let error = Reader::new(text.as_slice())
        .unwrap()
        .next()
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
}

#[test]
fn memory_keeps_the_last_ones_and_a_file_every_one() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::new(5);
    assert!(recorder.pace().is_some_and(|pace| !pace.is_zero()));
    let file = folder.path().join("r.jsonl");
    recorder.start(file.clone(), 30).unwrap();
    assert!(recorder.pace().is_some_and(|pace| pace.is_zero()));
    let again = recorder.start(folder.path().join("s.jsonl"), 30);
    assert!(matches!(again, Err(StartError::Busy(busy)) if busy == file));
    for moment in moments(20) {
        recorder.keep(moment);
    }
    assert!(recorder.stop() && !recorder.stop());
    let status = recorder.status();
    assert_eq!((status.recent, status.written, status.lost), (5, 20, 0));
    assert_eq!(status.ended.as_deref(), Some("stopped"));
    assert_eq!(status.bytes, std::fs::metadata(&file).unwrap().len());
    assert!(matches!(
        recorder.start(file, 1),
        Err(StartError::File { .. })
    ));

    let few = folder.path().join("few.jsonl");
    recorder.start(few.clone(), 3).unwrap();
    moments(20)
        .into_iter()
        .for_each(|moment| recorder.keep(moment));
    recorder.stop();
    let read = Reader::new(std::io::BufReader::new(std::fs::File::open(few).unwrap()));
    assert_eq!(read.unwrap().map(Result::unwrap).count(), 3);
    assert_eq!(Recorder::new(0).pace(), None);
}

#[test]
fn a_rehearsal_counts_what_would_change_and_what_fails() {
    let moments = moments(20);
    let rehearse = |takes| {
        let mut rehearsal = Rehearsal::new(policy(), Box::new(Takes(takes)));
        moments.iter().for_each(|moment| rehearsal.ask(moment));
        rehearsal.end()
    };
    let same = rehearse(Some(0));
    assert_eq!((same.asked, same.changed), (20, 0));
    // The second target is there from the tenth on, and the first ten are a bad answer.
    let other = rehearse(Some(1));
    assert_eq!(other.failures.get("bad-answer"), Some(&10));
    assert!(other.changed >= 10, "{other:?}");
    let fails = rehearse(None);
    assert_eq!(fails.failures.get("stack"), Some(&20));
    assert!(fails.first_failure.unwrap().contains("stack"));
    assert!(Answer::default().agrees(&Answer::default()));
}
