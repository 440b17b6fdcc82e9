//! The last decisions in memory, and every one in a file when that is wanted.

use crate::file::Writer;
use arc_swap::ArcSwapOption;
use pointsman_core::Moment;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// A thread keeps one decision in this time, and bursts after silence: at little traffic that is every
/// one, at much a share too small to be measured.
const PACE: Duration = Duration::from_millis(5);
/// Decisions on their way to the file; those beyond are left out of it.
const QUEUE: usize = 4096;
/// A file ends when it has grown so large, in bytes.
const MAX_BYTES: u64 = 4 << 30;

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    keep: usize,
    last: Mutex<VecDeque<Arc<Moment>>>,
    sink: ArcSwapOption<Sink>,
    /// the file that is written, or was last
    file: Mutex<Option<Recording>>,
}

/// A file and the thread that writes it.
#[derive(Debug)]
struct Recording {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Sink {
    queue: SyncSender<Arc<Moment>>,
    told: Arc<Told>,
}

/// What becomes of a file.
#[derive(Debug)]
struct Told {
    file: PathBuf,
    most: u64,
    written: AtomicU64,
    bytes: AtomicU64,
    lost: AtomicU64,
    /// none: it goes on
    ended: Mutex<Option<String>>,
    failed: AtomicBool,
}

impl Told {
    fn ended(&self) -> MutexGuard<'_, Option<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The recorder, for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// decisions that memory holds now
    pub recent: usize,
    /// and at most
    pub keep: usize,
    /// the file that is written, or was last
    pub file: Option<PathBuf>,
    /// whether it is written now
    pub recording: bool,
    /// decisions in it
    pub written: u64,
    /// its size
    pub bytes: u64,
    /// decisions that were left out: the disk was too slow
    pub lost: u64,
    /// why it ended
    pub ended: Option<String>,
    /// whether that was a failure: it is not whole
    pub failed: bool,
}

/// Why no file is written.
#[derive(Debug, Error)]
pub enum StartError {
    /// one at a time
    #[error("decisions are being recorded to {0} already: stop that first")]
    Busy(PathBuf),
    /// the system's
    #[error("the recording {file} cannot be made: {source}")]
    File {
        /// which
        file: PathBuf,
        /// why
        source: io::Error,
    },
}

impl Recorder {
    /// Keeps the last `keep` decisions; 0: none.
    pub fn new(keep: usize) -> Recorder {
        Recorder {
            keep,
            last: Mutex::default(),
            sink: ArcSwapOption::empty(),
            file: Mutex::default(),
        }
    }

    /// The time for which a thread is to keep one decision; none: it need not keep any.
    pub fn pace(&self) -> Option<Duration> {
        if self.sink.load().is_some() {
            return Some(Duration::ZERO);
        }
        (self.keep > 0).then_some(PACE)
    }

    /// Keeps a decision.
    pub fn keep(&self, moment: Moment) {
        let moment = Arc::new(moment);
        if let Some(sink) = &*self.sink.load()
            && let Err(error) = sink.queue.try_send(moment.clone())
        {
            match error {
                TrySendError::Full(_) => {
                    sink.told.lost.fetch_add(1, Relaxed);
                }
                TrySendError::Disconnected(_) => self.sink.store(None),
            }
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.push_back(moment);
        let over = last.len().saturating_sub(self.keep);
        let gone: Vec<_> = last.drain(..over).collect();
        drop(last);
        // Freed without the lock: it may be many targets' loads.
        drop(gone);
    }

    /// The last decisions, the oldest first.
    pub fn recent(&self) -> Vec<Arc<Moment>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().cloned().collect()
    }

    /// From now on every decision goes to a new file, `most` at most, which only its owner may read: it
    /// holds what policies read of requests.
    ///
    /// # Errors
    /// If another one is written, or the file is there already or cannot be made.
    pub fn start(&self, file: PathBuf, most: u64) -> Result<(), StartError> {
        let mut now = self.file();
        if let Some(recording) = now.as_ref().filter(|r| r.told.ended().is_none()) {
            return Err(StartError::Busy(recording.told.file.clone()));
        }
        let failed = |source| StartError::File {
            file: file.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        let out = options.write(true).create_new(true).mode(0o600).open(&file);
        let writer = Writer::new(out.map_err(failed)?).map_err(failed)?;
        let (queue, decisions) = sync_channel(QUEUE);
        let told = Arc::new(Told {
            file: file.clone(),
            most,
            written: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            ended: Mutex::default(),
            failed: AtomicBool::new(false),
        });
        let work = {
            let told = told.clone();
            move || write(writer, &decisions, &told)
        };
        let thread = std::thread::Builder::new().name("pointsman-recorder".to_owned());
        let thread = Some(thread.spawn(work).map_err(failed)?);
        self.sink.store(Some(Arc::new(Sink {
            queue,
            told: told.clone(),
        })));
        *now = Some(Recording { told, thread });
        Ok(())
    }

    /// Ends the file, and waits until all of it is written. False: none was written.
    pub fn stop(&self) -> bool {
        let mut now = self.file();
        self.sink.store(None);
        let Some(thread) = now.as_mut().and_then(|recording| recording.thread.take()) else {
            return false;
        };
        let went_on = !thread.is_finished();
        let _ = thread.join();
        went_on
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let recent = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        let now = self.file();
        let told = now.as_ref().map(|recording| &recording.told);
        let count = |of: fn(&Told) -> &AtomicU64| told.map_or(0, |told| of(told).load(Relaxed));
        let ended = told.and_then(|told| told.ended().clone());
        Status {
            recent,
            keep: self.keep,
            file: told.map(|told| told.file.clone()),
            recording: told.is_some() && ended.is_none(),
            written: count(|told| &told.written),
            bytes: count(|told| &told.bytes),
            lost: count(|told| &told.lost),
            failed: told.is_some_and(|told| told.failed.load(Relaxed)),
            ended,
        }
    }

    fn file(&self) -> MutexGuard<'_, Option<Recording>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The thread of a file.
fn write(mut writer: Writer<File>, decisions: &Receiver<Arc<Moment>>, told: &Told) {
    let ended = fill(&mut writer, decisions, told).unwrap_or_else(|error| {
        tracing::error!(file = %told.file.display(), %error, "the recording breaks off");
        told.failed.store(true, Relaxed);
        format!("it cannot be written: {error}")
    });
    *told.ended() = Some(ended);
}

fn fill(
    writer: &mut Writer<File>,
    decisions: &Receiver<Arc<Moment>>,
    told: &Told,
) -> io::Result<String> {
    Ok(loop {
        if told.written.load(Relaxed) >= told.most {
            break format!("{} decisions are recorded, as was wanted", told.most);
        }
        if writer.bytes() >= MAX_BYTES {
            break format!("{MAX_BYTES} bytes are as large as a recording may be");
        }
        match decisions.recv() {
            // Not buffered: what is said to be written is.
            Ok(moment) => {
                writer.write(&moment)?;
                told.written.fetch_add(1, Relaxed);
                told.bytes.store(writer.bytes(), Relaxed);
            }
            Err(RecvError) => break "stopped".to_owned(),
        }
    })
}
