//! Opens windows, hears of those that end, and has them collected.

mod fetch;
mod work;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::folder::{Folder, INDEX, Partial};
use super::index::{Engine, Index, State, millis, name, rfc3339, unix_millis};
use crate::desk::{Desk, Ended, Opener};
use crate::driver::Failure;
use work::Work;

/// For an engine that writes its traces before it answers.
pub const STOP_PATIENCE: Duration = Duration::from_secs(120);
/// For an engine that sets up its profiler before it answers.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// For what engines left to be written, when nothing more is waited for.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// Of an index that is read, bytes: 1,024 engines of 1,024 ranks fit.
const INDEX_BYTES: u64 = 256 << 20;

/// Where windows go.
#[derive(Debug, Clone)]
pub struct Settings {
    /// None: no files are kept.
    pub folder: Option<PathBuf>,
    /// So many windows are, the last ones.
    pub keep: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            folder: None,
            keep: 16,
        }
    }
}

/// An engine that has a driver.
#[derive(Debug, Clone)]
pub struct Driven {
    /// The endpoint's name.
    pub name: String,
    /// Its role.
    pub role: &'static str,
    /// Where its driver is called.
    pub desk: Desk,
}

/// A window that was asked for: its name, and for each engine whether it is open there.
#[derive(Debug)]
pub struct Opened {
    /// See [`Index::window`]. If it is open nowhere, there is none.
    pub window: String,
    /// Engine, role, and what the driver said.
    pub engines: Vec<(String, &'static str, Result<(), Failure>)>,
}

/// See the module. Its thread ends when it is dropped.
pub struct Collector {
    shared: Arc<Shared>,
}

struct Shared {
    engines: Box<dyn Fn() -> Vec<Driven> + Send + Sync>,
    folder: Option<Folder>,
    place: Option<PathBuf>,
    keep: usize,
    records: Mutex<Vec<Record>>,
    changed: Condvar,
    number: AtomicU64,
    messages: Sender<Message>,
}

/// A window that this host has opened, or has seen end.
struct Record {
    opener: Opener,
    index: Index,
    /// Engines whose part is still to come.
    awaited: BTreeSet<String>,
    /// None is awaited any more, whatever it does.
    is_given_up: bool,
    partial: Option<Partial>,
    /// Of its files, so far.
    bytes: Arc<AtomicU64>,
}

enum Message {
    /// On this engine.
    Ended(String, &'static str, Ended),
    /// For this window.
    Collected(String, Engine),
    /// Something has changed that no engine says.
    Look,
    /// The host ends: what is not there by now never will be.
    GiveUp,
    Close,
}

impl Collector {
    /// Hears from now on of every window that ends on these engines, also on those that come later.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(
        settings: Settings,
        engines: impl Fn() -> Vec<Driven> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (messages, inbox) = channel();
        let keep = settings.keep.max(1);
        let folder = (settings.folder.clone()).map(|path| Folder::new(path, keep));
        let last = folder.as_ref().map_or(0, Folder::last_number);
        let shared = Arc::new(Shared {
            engines: Box::new(engines),
            folder,
            place: settings.folder,
            keep,
            records: Mutex::default(),
            changed: Condvar::new(),
            number: AtomicU64::new(last + 1),
            messages,
        });
        shared.adopt();
        let work = Work::new(shared.clone());
        thread::Builder::new()
            .name("profile-windows".into())
            .spawn(move || work.run(&inbox))?;
        Ok(Self { shared })
    }

    /// Opens a window on every engine of the roles that are chosen. None for `duration`: until it is
    /// stopped.
    pub fn open(
        &self,
        by: &str,
        choose: impl Fn(&str) -> bool,
        duration: Option<Duration>,
    ) -> Opened {
        self.shared.adopt();
        let mut engines = (self.shared.engines)();
        engines.retain(|engine| choose(engine.role));
        let opener = Opener {
            by: by.to_owned(),
            number: self.shared.next(),
        };
        let mut record = self.shared.record(opener.clone(), SystemTime::now());
        let window = record.index.window.clone();
        record.index.wanted_ms = duration.map(millis);
        record.awaited = engines.iter().map(|engine| engine.name.clone()).collect();
        record.index.roles = roles(engines.iter().map(|engine| engine.role));
        // Before any of them begins: a short window may be over before the last one has begun.
        self.shared.records().push(record);
        let said = each(&engines, |desk| {
            desk.profile_start_within(START_PATIENCE, opener.clone(), duration)
        });
        let mut records = self.shared.records();
        if said.iter().all(|(.., said)| said.is_err()) {
            records.retain(|record| record.index.window != window);
        } else if let Some(record) = records.iter_mut().find(|r| r.index.window == window) {
            for (engine, role, error) in &said {
                let Err(error) = error else { continue };
                // It was late, and has begun and ended all the same.
                if record
                    .index
                    .engines
                    .iter()
                    .any(|part| part.engine == *engine)
                {
                    continue;
                }
                record.awaited.remove(engine);
                record.index.engines.push(Engine {
                    engine: engine.clone(),
                    role,
                    said: None,
                    error: Some(format!("it was not opened: {error}")),
                    traces: Vec::new(),
                });
            }
        }
        drop(records);
        let _ = self.shared.messages.send(Message::Look);
        Opened {
            window,
            engines: said,
        }
    }

    /// Ends the windows on the engines of the roles that are chosen, whoever opened them. What each
    /// engine said; the traces come later, see [`Collector::wait`].
    pub fn stop(
        &self,
        choose: impl Fn(&str) -> bool,
    ) -> Vec<(String, &'static str, Result<String, Failure>)> {
        self.shared.adopt();
        let mut engines = (self.shared.engines)();
        engines.retain(|engine| choose(engine.role));
        each(&engines, |desk| desk.profile_stop_within(STOP_PATIENCE))
    }

    /// Ends one window where it is open, and no other.
    pub fn stop_window(
        &self,
        window: &str,
    ) -> Vec<(String, &'static str, Result<String, Failure>)> {
        let records = self.shared.records();
        let record = records.iter().find(|record| record.index.window == window);
        let opener = record.map(|record| record.opener.clone());
        drop(records);
        let mut engines = (self.shared.engines)();
        engines.retain(|engine| {
            let open = engine.desk.profile().open;
            open.is_some_and(|open| Some(open.opener) == opener)
        });
        each(&engines, |desk| desk.profile_stop_within(STOP_PATIENCE))
    }

    /// Waits until a window is done. It is as it is, if that takes longer; none: there is no such one.
    #[must_use]
    pub fn wait(&self, window: &str, patience: Duration) -> Option<Index> {
        let find = |records: &[Record]| {
            let record = records.iter().find(|record| record.index.window == window);
            record.map(|record| record.index.clone())
        };
        let records = self.shared.records();
        let waits = |records: &mut Vec<Record>| {
            find(records).is_some_and(|index| index.state != State::Done)
        };
        let waited = self
            .shared
            .changed
            .wait_timeout_while(records, patience, waits);
        find(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Ends all windows, and waits until what they left is written: an engine whose host ends would record
    /// for ever. After `patience` their indexes are written as they are, and name the engines that did not
    /// answer.
    pub fn end(&self, patience: Duration) {
        let begun = Instant::now();
        let mut engines = (self.shared.engines)();
        engines.retain(|engine| engine.desk.profile().open.is_some());
        for (engine, _, said) in each(&engines, |desk| desk.profile_stop_within(patience)) {
            if let Err(error) = said {
                tracing::warn!(engine, %error, "its profiling window did not end with the host");
            }
        }
        if !self.is_done_within(patience.saturating_sub(begun.elapsed())) {
            let _ = self.shared.messages.send(Message::GiveUp);
            if !self.is_done_within(WRITE_PATIENCE) {
                tracing::warn!("profiling windows are not written: their folders stay partial");
            }
        }
    }

    fn is_done_within(&self, patience: Duration) -> bool {
        let waits = |records: &mut Vec<Record>| {
            records
                .iter()
                .any(|record| record.index.state != State::Done)
        };
        let records = self.shared.records();
        let waited = (self.shared.changed).wait_timeout_while(records, patience, waits);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The windows that are there, the last ones first: those of this host, and those that lie in the
    /// folder.
    #[must_use]
    pub fn windows(&self) -> Vec<Value> {
        let mut all: Vec<Index> = self
            .shared
            .records()
            .iter()
            .map(|r| r.index.clone())
            .collect();
        all.sort_by(|a, b| b.window.cmp(&a.window));
        let known: BTreeSet<String> = all.iter().map(|index| index.window.clone()).collect();
        let mut values: Vec<Value> = (all.iter())
            .filter_map(|index| serde_json::to_value(index).ok())
            .collect();
        let older = self.shared.folder.iter().flat_map(Folder::windows);
        let older: Vec<String> = older.filter(|window| !known.contains(window)).collect();
        values.extend(older.iter().rev().filter_map(|window| self.read(window)));
        values
    }

    /// One of them.
    #[must_use]
    pub fn window(&self, window: &str) -> Option<Value> {
        let records = self.shared.records();
        let record = records.iter().find(|record| record.index.window == window);
        match record {
            Some(record) => serde_json::to_value(&record.index).ok(),
            None => {
                drop(records);
                self.read(window)
            }
        }
    }

    /// A file of a window that is done; none: there is no such one, or it is none of a window's.
    #[must_use]
    pub fn file(&self, window: &str, file: &str) -> Option<PathBuf> {
        self.shared.folder.as_ref()?.file(window, file)
    }

    /// Hears also of windows on engines that have come since the last look.
    pub fn adopt(&self) {
        self.shared.adopt();
    }

    /// The operator's folder.
    #[must_use]
    pub fn folder(&self) -> Option<&PathBuf> {
        self.shared.place.as_ref()
    }

    fn read(&self, window: &str) -> Option<Value> {
        let path = self.file(window, INDEX)?;
        let short = std::fs::metadata(&path).is_ok_and(|about| about.len() <= INDEX_BYTES);
        let text = short.then(|| std::fs::read(&path).ok())??;
        serde_json::from_slice(&text).ok()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.shared.messages.send(Message::Close);
    }
}

impl std::fmt::Debug for Collector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector")
            .field("folder", &self.shared.place)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn records(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    /// Hears of windows on engines that have come since.
    fn adopt(&self) {
        for Driven { name, role, desk } in (self.engines)() {
            if desk.is_heard() {
                continue;
            }
            let messages = self.messages.clone();
            desk.on_window_end(Box::new(move |ended| {
                let _ = messages.send(Message::Ended(name.clone(), role, ended));
            }));
        }
    }

    /// A new one.
    fn record(&self, opener: Opener, started: SystemTime) -> Record {
        let number = match opener.number {
            0 => self.next(),
            number => number,
        };
        let window = name(started, number);
        Record {
            index: Index {
                folder: None,
                window,
                state: State::Open,
                opened_by: opener.by.clone(),
                started: rfc3339(started),
                started_unix_ms: unix_millis(started),
                wanted_ms: None,
                duration_ms: 0,
                roles: Vec::new(),
                engines: Vec::new(),
                merged: None,
                error: None,
            },
            opener,
            awaited: BTreeSet::new(),
            is_given_up: false,
            partial: None,
            bytes: Arc::default(),
        }
    }
}

/// Does it on each of them, at the same time: a slow one delays none of the others.
fn each<R: Send>(
    engines: &[Driven],
    call: impl Fn(&Desk) -> Result<R, Failure> + Sync,
) -> Vec<(String, &'static str, Result<R, Failure>)> {
    thread::scope(|scope| {
        let call = &call;
        let calls: Vec<_> = (engines.iter())
            .map(|engine| (engine, scope.spawn(move || call(&engine.desk))))
            .collect();
        let joined = calls.into_iter().map(|(engine, call)| {
            let failed = |_| Err(Failure::unavailable("the call panicked"));
            (
                engine.name.clone(),
                engine.role,
                call.join().unwrap_or_else(failed),
            )
        });
        joined.collect()
    })
}

fn roles(all: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    all.collect::<BTreeSet<_>>().into_iter().collect()
}
