//! The collector's own thread: what it hears, one thing after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::super::index::{Engine, File, Index, State, millis, said};
use super::fetch::Fetch;
use super::{Driven, Ended, Message, Record, Shared, roles};

/// Engines that a reload has brought are looked for so often; those that an operator names, at once.
const ADOPT: Duration = Duration::from_secs(1);
/// Why a window was shorter than it was to be.
const CUT: &str = "its window was cut short: a reload, or the host's end, ended its driver";
/// Engines whose traces are fetched at one time: each holds one rank's in memory.
const FETCHES: usize = 8;

pub(super) struct Work {
    shared: Arc<Shared>,
    waiting: VecDeque<Fetch>,
    running: usize,
}

impl Work {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            waiting: VecDeque::new(),
            running: 0,
        }
    }

    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        loop {
            match inbox.recv_timeout(ADOPT) {
                Ok(Message::Ended(engine, role, ended)) => self.ended(&engine, role, ended),
                Ok(Message::Collected(window, part)) => {
                    self.running -= 1;
                    self.part(&window, part);
                }
                Ok(Message::Look) => {}
                Ok(Message::GiveUp) => self.give_up(),
                Err(RecvTimeoutError::Timeout) => self.shared.adopt(),
                Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => return,
            }
            self.start_fetches();
            // All of them: what ends one may be what another has waited for.
            for window in self.not_done() {
                self.look(&window);
            }
        }
    }

    /// The window of an engine is over: notes what it said, and has its traces fetched.
    fn ended(&mut self, engine: &str, role: &'static str, ended: Ended) {
        let desk = (self.shared.engines)()
            .into_iter()
            .find(|driven| driven.name == engine);
        let mut records = self.shared.records();
        let at = records
            .iter()
            .position(|record| record.takes(engine, &ended));
        let record = match at.and_then(|at| records.get_mut(at)) {
            Some(record) => record,
            None => {
                records.push(self.shared.record(ended.opener.clone(), ended.started));
                let Some(record) = records.last_mut() else {
                    return;
                };
                record
            }
        };
        let index = &mut record.index;
        index.duration_ms = index.duration_ms.max(millis(ended.lasted));
        index.roles = roles(index.roles.iter().copied().chain([role]));
        // One that was given up, and has opened all the same.
        index.engines.retain(|part| part.engine != engine);
        record.awaited.insert(engine.to_owned());
        record.begin(&self.shared);
        let window = record.index.window.clone();
        let has_traces = ended.said.is_ok();
        let (said, error) = match ended.said {
            Ok(text) => (said(text), ended.is_cut.then(|| CUT.to_owned())),
            Err(error) => (None, Some(error.to_string())),
        };
        let mut part = Engine {
            engine: engine.to_owned(),
            role,
            said,
            error,
            traces: Vec::new(),
        };
        let (partial, bytes) = (record.partial.clone(), record.bytes.clone());
        drop(records);
        match (desk, partial) {
            (Some(Driven { desk, .. }), Some(partial)) if has_traces => {
                self.waiting.push_back(Fetch {
                    window,
                    part,
                    desk,
                    partial,
                    bytes,
                });
            }
            (Some(Driven { desk, .. }), _) => {
                desk.profile_collected();
                self.part(&window, part);
            }
            (None, _) => {
                let gone = "the engine was removed before its traces were fetched";
                part.error = Some(match part.error {
                    Some(error) => format!("{error}; {gone}"),
                    None => gone.to_owned(),
                });
                self.part(&window, part);
            }
        }
    }

    fn start_fetches(&mut self) {
        while self.running < FETCHES
            && let Some(fetch) = self.waiting.pop_front()
        {
            self.running += 1;
            let messages = self.shared.messages.clone();
            let (window, mut lost) = (fetch.window.clone(), fetch.part.clone());
            let run = move || {
                let _ = messages.send(Message::Collected(fetch.window.clone(), fetch.run()));
            };
            let thread = thread::Builder::new().name("profile-fetch".into());
            if let Err(error) = thread.spawn(run) {
                // The desk is free again: its fetch was dropped.
                lost.error = Some(format!("no thread to fetch its traces: {error}"));
                self.running -= 1;
                self.part(&window, lost);
            }
        }
    }

    /// All there is of an engine.
    fn part(&mut self, window: &str, part: Engine) {
        let mut records = self.shared.records();
        if let Some(record) = records.iter_mut().find(|r| r.index.window == window) {
            // None is awaited any more once they were given up.
            if record.awaited.remove(&part.engine) {
                record.index.engines.push(part);
            }
        }
    }

    /// Waits for no engine any more: says of each that is not there why.
    fn give_up(&mut self) {
        self.waiting.clear();
        let engines = (self.shared.engines)();
        let mut records = self.shared.records();
        for record in records.iter_mut().filter(|r| r.index.state != State::Done) {
            record.begin(&self.shared);
            for Driven { name, role, desk } in &engines {
                let its = |opener| opener == record.opener;
                let profile = desk.profile();
                let is_open = profile.open.is_some_and(|open| its(open.opener));
                if !record.awaited.remove(name) && !is_open {
                    continue;
                }
                let why = match is_open {
                    true => "it did not answer before the host ended: its window may be open still",
                    false => "the host ended before all its traces were fetched",
                };
                record.index.engines.push(Engine {
                    engine: name.clone(),
                    role,
                    said: None,
                    error: Some(why.to_owned()),
                    traces: Vec::new(),
                });
            }
            record.awaited.clear();
            record.is_given_up = true;
        }
    }

    fn not_done(&self) -> Vec<String> {
        let records = self.shared.records();
        let open = records.iter().filter(|r| r.index.state != State::Done);
        open.map(|r| r.index.window.clone()).collect()
    }

    /// Ends a window whose parts are all there.
    fn look(&mut self, window: &str) {
        let engines = (self.shared.engines)();
        let mut records = self.shared.records();
        let record = records.iter_mut().find(|r| r.index.window == window);
        let Some(record) = record.filter(|r| r.index.state != State::Done) else {
            return;
        };
        if !record.is_given_up && !record.is_over(&engines) {
            return;
        }
        record.index.state = State::Collecting;
        if !record.awaited.is_empty() {
            return;
        }
        record.index.engines.sort_by(|a, b| a.engine.cmp(&b.engine));
        let (mut index, partial) = (record.index.clone(), record.partial.clone());
        drop(records);
        index.state = State::Done;
        if let (Some(partial), Some(folder)) = (&partial, &self.shared.folder) {
            let traces: Vec<(String, File)> = (index.engines.iter())
                .flat_map(|part| part.traces.iter().map(move |trace| (&part.engine, trace)))
                .filter(|(_, trace)| trace.error.is_none())
                .filter_map(|(engine, trace)| {
                    Some((format!("{engine}/{}", trace.rank), trace.file.clone()?))
                })
                .collect();
            if !traces.is_empty() {
                match partial.merge(&traces) {
                    Ok((file, left_out)) => {
                        index.merged = Some(file);
                        if !left_out.is_empty() {
                            let left_out = left_out.join(", ");
                            index.failed(format!("too long to be merged as well: {left_out}"));
                        }
                    }
                    Err(error) => index.failed(error),
                }
            }
            if let Err(error) = folder.end(partial, &index) {
                index.failed(error);
                index.folder = None;
            }
        }
        self.done(index);
    }

    fn done(&self, index: Index) {
        let (window, whole) = (index.window.clone(), index.is_whole());
        let folder = index.folder.clone().unwrap_or_default();
        if whole {
            tracing::info!(
                window,
                folder,
                by = index.opened_by,
                "profiling window collected"
            );
        } else {
            tracing::warn!(
                window,
                folder,
                by = index.opened_by,
                error = index.error,
                "profiling window collected, not all of it: see its index"
            );
        }
        let mut records = self.shared.records();
        if let Some(record) = records.iter_mut().find(|r| r.index.window == window) {
            record.index = index;
            record.partial = None;
        }
        let done = records
            .iter()
            .filter(|r| r.index.state == State::Done)
            .count();
        let mut old = done.saturating_sub(self.shared.keep);
        records.retain(|record| {
            let goes = old > 0 && record.index.state == State::Done;
            old -= usize::from(goes);
            !goes
        });
        drop(records);
        let open = self.not_done();
        self.shared.changed.notify_all();
        if let Some(folder) = &self.shared.folder
            && let Err(error) = folder.clean(|name| open.iter().any(|window| window == name))
        {
            tracing::warn!(%error, "an old profiling window is not removed");
        }
    }
}

impl Record {
    /// Whether what has ended on an engine is part of this window.
    fn takes(&self, engine: &str, ended: &Ended) -> bool {
        let done = self.index.state == State::Done;
        let has = self.index.engines.iter().any(|part| part.engine == engine)
            || self.awaited.contains(engine);
        self.opener == ended.opener && !done && (ended.opener.number > 0 || !has)
    }

    /// Whether no engine records any more for it: windows that a policy opened are told from one
    /// another by that alone.
    fn is_over(&self, engines: &[Driven]) -> bool {
        !engines.iter().any(|driven| {
            let profile = driven.desk.profile();
            let open = profile.open.map(|open| open.opener);
            // One that has ended, of which this thread has not heard yet.
            let mine = (open.or(profile.collecting)).is_some_and(|opener| opener == self.opener);
            let has = self
                .index
                .engines
                .iter()
                .any(|part| part.engine == driven.name);
            let waits = self.opener.number > 0 || !self.awaited.contains(&driven.name);
            !has && waits && mine
        })
    }

    /// Its folder, from the first engine that has ended on.
    fn begin(&mut self, shared: &Shared) {
        let (Some(folder), Some(place)) = (&shared.folder, &shared.place) else {
            return;
        };
        if self.partial.is_some() || self.index.error.is_some() {
            return;
        }
        match folder.begin(&self.index.window) {
            Ok(partial) => {
                self.partial = Some(partial);
                let path = place.join(&self.index.window);
                self.index.folder = Some(path.display().to_string());
            }
            Err(error) => self.index.failed(error),
        }
    }
}
