//! Where calls to a driver are handed in: a thread of the driver's own, and a deadline.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::driver::{Driver, Failure, Kernel, Knob};

/// How long callers wait, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one call, its time in the queue included.
    pub deadline: Duration,
    /// Calls that wait for those before them; more are refused.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            queue: 64,
        }
    }
}

/// One engine's driver on its thread. Any thread may call; what is asked is done one after the other.
///
/// The driver is opened by the first call. A call that overruns its deadline is given up; until the
/// driver is back from it, others are refused at once. A driver that panics is dropped, and opened
/// anew by the next call. The thread ends when the desk is dropped, or with the call that is stuck.
#[derive(Debug)]
pub struct Desk {
    jobs: SyncSender<Job>,
    limits: Limits,
    /// When the call was handed in that the driver is in.
    busy_since: Arc<Mutex<Option<Instant>>>,
    profile: Arc<Mutex<Profile>>,
}

/// The profiling window of an engine, and the one before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// One is open.
    pub open: bool,
    /// What the driver said when the last one ended: where the trace is, or the trace itself.
    pub last: Option<Result<String, Failure>>,
}

/// When it was handed in, and what to do.
type Job = (Instant, Box<dyn FnOnce(&mut Worker) + Send>);

impl Desk {
    /// Starts the thread; `open` runs on it, each time that the driver is opened.
    pub fn open<D: Driver + 'static>(
        limits: Limits,
        mut open: impl FnMut() -> Result<D, Failure> + Send + 'static,
    ) -> Self {
        let (jobs, receiver) = sync_channel(limits.queue.max(1));
        let busy_since = Arc::new(Mutex::new(None));
        let busy = busy_since.clone();
        let profile = Arc::new(Mutex::new(Profile::default()));
        let of_worker = profile.clone();
        let run = move || {
            let open = Box::new(move || open().map(|driver| Box::new(driver) as Box<dyn Driver>));
            Worker {
                open,
                driver: None,
                window: None,
                profile: of_worker,
            }
            .run(&receiver, &busy);
        };
        if let Err(error) = thread::Builder::new()
            .name("engine-driver".into())
            .spawn(run)
        {
            // The receiver is gone with the closure: every call says so.
            tracing::error!(%error, "no thread for an engine's driver");
        }
        Self {
            jobs,
            limits,
            busy_since,
            profile,
        }
    }

    /// How many ranks there are.
    ///
    /// # Errors
    /// Here and below: what the driver says, that it is late, busy, or has panicked.
    pub fn ranks(&self) -> Result<u32, Failure> {
        self.call(|worker| worker.driver()?.ranks())
    }

    /// See [`Driver::knobs`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn knobs(&self, rank: u32) -> Result<Vec<Knob>, Failure> {
        self.call(move |worker| worker.driver()?.knobs(rank))
    }

    /// See [`Driver::knob_get`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn knob_get(&self, rank: u32, name: &str) -> Result<i64, Failure> {
        let name = name.to_owned();
        self.call(move |worker| worker.driver()?.knob_get(rank, &name))
    }

    /// See [`Driver::knob_set`]. After an error that is not the driver's own, it may or may not have
    /// been set.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn knob_set(&self, rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure> {
        let name = name.to_owned();
        self.call(move |worker| worker.driver()?.knob_set(rank, &name, value))
    }

    /// See [`Driver::stat`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn stat(&self, rank: u32, name: &str) -> Result<f64, Failure> {
        let name = name.to_owned();
        self.call(move |worker| worker.driver()?.stat(rank, &name))
    }

    /// A profiling window begins; after `duration` it ends by itself. None: it is to be stopped.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_start(&self, duration: Option<Duration>) -> Result<(), Failure> {
        self.call(move |worker| {
            worker.driver()?.profile_start()?;
            let end = duration.map(|duration| Instant::now().checked_add(duration));
            worker.window = Some(end.flatten());
            worker.profile().open = true;
            Ok(())
        })
    }

    /// It ends; what [`Profile::last`] says.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_stop(&self) -> Result<String, Failure> {
        self.call(Worker::profile_stop)
    }

    /// Whether a window is open, and what became of the last one; waits for nothing.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// See [`Driver::kernels`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn kernels(&self, rank: u32, operation: &str) -> Result<Vec<Kernel>, Failure> {
        let operation = operation.to_owned();
        self.call(move |worker| worker.driver()?.kernels(rank, &operation))
    }

    /// See [`Driver::kernel_choose`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn kernel_choose(
        &self,
        rank: Option<u32>,
        operation: &str,
        name: &str,
        rows: (u32, u32),
    ) -> Result<(), Failure> {
        let (operation, name) = (operation.to_owned(), name.to_owned());
        self.call(move |worker| {
            worker
                .driver()?
                .kernel_choose(rank, &operation, &name, rows)
        })
    }

    fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Worker) -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Failure> {
        let deadline = self.limits.deadline;
        let busy = *self
            .busy_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if busy.is_some_and(|since| since.elapsed() >= deadline) {
            let why = format!("the driver is in a call that should have ended after {deadline:?}");
            return Err(Failure::Unavailable(why));
        }
        let (answer, answered) = sync_channel(1);
        let given_up = Arc::new(AtomicBool::new(false));
        let is_given_up = given_up.clone();
        let job = move |worker: &mut Worker| {
            // Nobody expects its effect any more.
            if !is_given_up.load(Ordering::Acquire) {
                let _ = answer.send(call(worker));
            }
        };
        self.jobs
            .try_send((Instant::now(), Box::new(job)))
            .map_err(|error| match error {
                TrySendError::Full(_) => Failure::unavailable("too many calls wait for the driver"),
                TrySendError::Disconnected(_) => {
                    Failure::unavailable("the driver's thread is gone")
                }
            })?;
        answered.recv_timeout(deadline).unwrap_or_else(|error| {
            given_up.store(true, Ordering::Release);
            Err(match error {
                RecvTimeoutError::Timeout => {
                    Failure::Unavailable(format!("the driver did not answer within {deadline:?}"))
                }
                RecvTimeoutError::Disconnected => {
                    Failure::unavailable("the driver panicked; the next call opens it anew")
                }
            })
        })
    }
}

/// The thread's own side.
struct Worker {
    open: Box<dyn FnMut() -> Result<Box<dyn Driver>, Failure>>,
    driver: Option<Box<dyn Driver>>,
    /// A profiling window is open; until then, or until it is stopped.
    window: Option<Option<Instant>>,
    profile: Arc<Mutex<Profile>>,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<Job>, busy: &Mutex<Option<Instant>>) {
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
        if self.window.is_some() {
            self.perform(end_window);
        }
        self.close();
    }

    /// The next job, or that the window is over.
    fn next(&self, jobs: &Receiver<Job>) -> Result<Job, RecvTimeoutError> {
        match self.window {
            Some(Some(end)) => jobs.recv_timeout(end.saturating_duration_since(Instant::now())),
            _ => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn perform(&mut self, job: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(self))) {
            tracing::error!("an engine's driver panicked: {}", words(panic.as_ref()));
            self.window = None;
            let panicked = Failure::unavailable("the driver panicked");
            let mut profile = self.profile();
            if std::mem::take(&mut profile.open) {
                profile.last = Some(Err(panicked));
            }
            drop(profile);
            self.close();
        }
    }

    fn close(&mut self) {
        let driver = self.driver.take();
        if catch_unwind(AssertUnwindSafe(|| drop(driver))).is_err() {
            tracing::error!("an engine's driver panicked while it was closed");
        }
    }

    fn driver(&mut self) -> Result<&mut dyn Driver, Failure> {
        let driver = match self.driver.take() {
            Some(driver) => driver,
            None => (self.open)()?,
        };
        Ok(&mut **self.driver.insert(driver))
    }

    fn profile_stop(&mut self) -> Result<String, Failure> {
        self.window = None;
        let said = self.driver().and_then(|driver| driver.profile_stop());
        *self.profile() = Profile {
            open: false,
            last: Some(said.clone()),
        };
        said
    }

    fn profile(&self) -> MutexGuard<'_, Profile> {
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
