//! Follows the file of the configured policy: a new one that is put in its place, best by renaming,
//! replaces the running policy as an operator's command would.
//!
//! The folder is watched, not the file, so that a rename is seen, and each few seconds the file is looked
//! at whatever the system says: it says nothing of a network folder. A file counts when it has stayed
//! as it is for a moment. One that cannot be used is reported once, and the running policy stays; it
//! also stays when the file is gone.

use super::swapper::Swapper;
use super::wanted::Wanted;
use crate::policies::digest;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// A file that did not change for so long is whole.
const QUIET: Duration = Duration::from_millis(100);
/// The same after it was not taken: somebody writes it in place, slowly, and each half is not an error
/// of its own.
const QUIET_AGAIN: Duration = Duration::from_secs(1);
/// The longest until a change is seen that the system did not tell.
const LOOK: Duration = Duration::from_secs(5);
/// A larger file is no policy, in bytes.
const MAX_WASM: u64 = 64 << 20;

/// See the module.
#[derive(Clone, Debug)]
pub struct Watch {
    pub file: PathBuf,
    /// JSON
    pub config: String,
    /// see [`Wanted::pin`]
    pub pin: String,
    pub swapper: Arc<Swapper>,
}

/// What tells one file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    file: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// The last file that was not taken.
#[derive(Debug)]
struct Refused {
    /// see [`Mark`]
    file: u64,
    sha256: String,
}

impl Mark {
    /// None: there is no file.
    fn of(path: &Path) -> Option<Mark> {
        let found = std::fs::metadata(path)
            .ok()
            .filter(std::fs::Metadata::is_file)?;
        Some(Mark {
            device: found.dev(),
            file: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// Follows the file that is to be followed, whichever that is now; for ever.
pub async fn follow(mut files: watch::Receiver<Option<Watch>>) {
    loop {
        let now = files.borrow_and_update().clone();
        let following = async {
            match now {
                Some(watch) => watch.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = following => {}
            changed = files.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

impl Watch {
    /// Follows it for ever.
    async fn run(self) {
        let changed = Arc::new(Notify::new());
        let _watcher = self.watcher(changed.clone());
        // Of the file that was loaded, or one that came since: reading it tells.
        let mut seen = None;
        let mut refused = None;
        loop {
            let now = self.settled(refused.as_ref()).await;
            if now != seen {
                seen = now;
                match now {
                    Some(mark) => self.replace(mark, &mut refused).await,
                    None => self.warn("is gone"),
                }
            }
            // Too late is as good as told.
            let _ = timeout(LOOK, changed.notified()).await;
        }
    }

    fn watcher(&self, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
        let tell = move |event: notify::Result<notify::Event>| {
            // Reading the file is an event too.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                changed.notify_one();
            }
        };
        let folder = match self.file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let watcher = notify::recommended_watcher(tell).and_then(|mut watcher| {
            watcher.watch(folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        let folder = folder.display();
        match watcher {
            Ok(watcher) => Some(watcher),
            Err(error) => {
                tracing::warn!(%folder, %error, "not told of changes here, looking every 5 s");
                None
            }
        }
    }

    /// The file, once it does not change any more.
    async fn settled(&self, refused: Option<&Refused>) -> Option<Mark> {
        let mut before = Mark::of(&self.file);
        loop {
            let again = refused.is_some_and(|r| before.is_some_and(|mark| mark.file == r.file));
            sleep(if again { QUIET_AGAIN } else { QUIET }).await;
            let now = Mark::of(&self.file);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    async fn replace(&self, mark: Mark, refused: &mut Option<Refused>) {
        if mark.bytes > MAX_WASM {
            return self.warn(&format!("is too large: {} bytes", mark.bytes));
        }
        let wasm = match tokio::fs::read(&self.file).await {
            Ok(wasm) => wasm,
            Err(error) => return self.warn(&format!("cannot be read: {error}")),
        };
        let sha256 = digest(&wasm);
        let known = (refused.as_ref()).is_some_and(|refused| refused.sha256 == sha256);
        if known {
            return;
        }
        if sha256 == self.swapper.slot().status().digest {
            if self.swapper.file().is_some() {
                let file = self.file.display();
                let note = format!("{file} is the policy that decides");
                self.swapper.note_file(note);
            }
            return;
        }
        let wanted = Wanted {
            wasm: wasm.into(),
            origin: self.file.display().to_string(),
            config: self.config.clone(),
            pin: self.pin.clone(),
        };
        match self.swapper.wait().await.swap(wanted).await {
            Ok((generation, _)) => {
                *refused = None;
                let file = self.file.display();
                tracing::info!(%file, sha256, generation, "policy replaced by its file");
                let note = format!("{file} replaced the policy, as generation {generation}");
                self.swapper.note_file(note);
            }
            Err(why) => {
                self.warn(&format!("is not taken: {why}"));
                *refused = Some(Refused {
                    file: mark.file,
                    sha256,
                });
            }
        }
    }

    fn warn(&self, what: &str) {
        let file = self.file.display();
        let note = format!("{file} {what}; the running policy stays");
        tracing::warn!("{note}");
        self.swapper.note_file(note);
    }
}
