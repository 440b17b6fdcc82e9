//! The driver's own thread: one call after the other, and the end of profiling windows.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::{Ended, Job, Listener, OpenWindow, Opener, Profile};
use crate::driver::{Driver, Failure};

/// The thread's own side.
pub(super) struct Worker {
    pub(super) open: Box<dyn FnMut() -> Result<Box<dyn Driver>, Failure>>,
    pub(super) driver: Option<Box<dyn Driver>>,
    /// For good: none is opened any more.
    pub(super) is_closed: bool,
    /// A profiling window is open.
    pub(super) window: Option<Window>,
    pub(super) profile: Arc<Mutex<Profile>>,
    pub(super) listener: Arc<OnceLock<Listener>>,
}

/// One that is open.
pub(super) struct Window {
    opener: Opener,
    since: (SystemTime, Instant),
    /// Until then, or until it is stopped.
    until: Option<Instant>,
    /// The driver ends before that.
    is_cut: bool,
}

impl Worker {
    pub(super) fn run(mut self, jobs: &Receiver<Job>, busy: &Mutex<Option<Instant>>) {
        let set = |since| *busy.lock().unwrap_or_else(PoisonError::into_inner) = since;
        loop {
            let (since, job): Job = match self.next(jobs) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => (Instant::now(), Box::new(end_window)),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            set(Some(since));
            self.perform(job);
            set(None);
        }
        self.close();
    }

    /// The end of the driver, and of its window before.
    pub(super) fn close(&mut self) {
        if let Some(window) = &mut self.window {
            window.is_cut = true;
            self.perform(end_window);
        }
        self.drop_driver();
        self.is_closed = true;
    }

    /// The next job, or that the window is over.
    fn next(&self, jobs: &Receiver<Job>) -> Result<Job, RecvTimeoutError> {
        match self.window.as_ref().and_then(|window| window.until) {
            Some(end) => jobs.recv_timeout(end.saturating_duration_since(Instant::now())),
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn perform(&mut self, job: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(self))) {
            tracing::error!("an engine's driver panicked: {}", words(panic.as_ref()));
            self.ended(Err(Failure::unavailable("the driver panicked")));
            self.drop_driver();
        }
    }

    fn drop_driver(&mut self) {
        let driver = self.driver.take();
        if catch_unwind(AssertUnwindSafe(|| drop(driver))).is_err() {
            tracing::error!("an engine's driver panicked while it was closed");
        }
    }

    pub(super) fn driver(&mut self) -> Result<&mut dyn Driver, Failure> {
        let driver = match self.driver.take() {
            Some(driver) => driver,
            None if self.is_closed => return Err(Failure::unavailable("the driver is closed")),
            None => (self.open)()?,
        };
        Ok(&mut **self.driver.insert(driver))
    }

    pub(super) fn profile_start(
        &mut self,
        opener: Opener,
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        self.profile().may_open()?;
        self.driver()?.profile_start()?;
        let since = (SystemTime::now(), Instant::now());
        self.profile().open = Some(OpenWindow {
            opener: opener.clone(),
            started: since.0,
        });
        self.window = Some(Window {
            opener,
            since,
            until: duration.and_then(|duration| since.1.checked_add(duration)),
            is_cut: false,
        });
        Ok(())
    }

    pub(super) fn profile_stop(&mut self) -> Result<String, Failure> {
        let said = self.driver().and_then(|driver| driver.profile_stop());
        self.ended(said.clone());
        said
    }

    /// What became of the window. Whoever collects it hears of it while the lock is held: there is no moment
    /// at which a window is neither open nor to be collected.
    fn ended(&mut self, said: Result<String, Failure>) {
        let window = self.window.take();
        let mut profile = self.profile();
        // A stop without a window is an answer, not the end of one.
        if window.is_some() || said.is_ok() {
            profile.last = Some(said.clone());
        }
        profile.open = None;
        if let (Some(window), Some(listener)) = (window, self.listener.get()) {
            let Window {
                opener,
                since,
                is_cut,
                ..
            } = window;
            profile.collecting = Some(opener.clone());
            listener(Ended {
                opener,
                started: since.0,
                lasted: since.1.elapsed(),
                is_cut,
                said,
            });
        }
    }

    fn profile(&self) -> std::sync::MutexGuard<'_, Profile> {
        self.profile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end_window(worker: &mut Worker) {
    if let Err(error) = worker.profile_stop() {
        tracing::warn!(%error, "a profiling window did not end");
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no words")
}
