//! Where calls to a driver are handed in: a thread of the driver's own, and a deadline.

mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::driver::{Deployment, Driver, Failure, Kernel, Knob};
use worker::Worker;

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
/// anew by the next call. The thread ends when the desk and all its clones are dropped, or with the call
/// that is stuck.
#[derive(Clone)]
pub struct Desk {
    jobs: SyncSender<Job>,
    limits: Limits,
    /// When the call was handed in that the driver is in.
    busy_since: Arc<Mutex<Option<Instant>>>,
    profile: Arc<Mutex<Profile>>,
    listener: Arc<OnceLock<Listener>>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Who opens a profiling window. What one opener opens under one number on several engines is one window.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opener {
    /// For people: `policy NAME`, an operator's address.
    pub by: String,
    /// 0: none was given; then windows of one opener that overlap are one.
    pub number: u64,
}

/// The profiling window of an engine, and the one before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The one that is open.
    pub open: Option<OpenWindow>,
    /// Whose the last one was, if its traces are still to be collected; until then none is opened,
    /// because an engine may keep them no longer.
    pub collecting: Option<Opener>,
    /// What the driver said when the last one ended: where the trace is, or a summary.
    pub last: Option<Result<String, Failure>>,
}

impl Profile {
    /// Whether a window may be opened now.
    fn may_open(&self) -> Result<(), Failure> {
        if let Some(open) = &self.open {
            let by = match open.opener.by.as_str() {
                "" => String::new(),
                by => format!(" by {by}"),
            };
            let why = format!("a window is open already{by}: stop it first");
            return Err(Failure::Unavailable(why));
        }
        self.is_collected()
    }

    /// Whether the traces of the last one were fetched.
    fn is_collected(&self) -> Result<(), Failure> {
        if self.collecting.is_some() {
            let why = "the traces of the last window are still being collected: try again";
            return Err(Failure::unavailable(why));
        }
        Ok(())
    }
}

/// A window that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWindow {
    /// Who opened it.
    pub opener: Opener,
    /// When.
    pub started: SystemTime,
}

/// A window that has ended, however it came to that.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Who opened it.
    pub opener: Opener,
    /// When it began.
    pub started: SystemTime,
    /// How long it was open, its end included.
    pub lasted: Duration,
    /// Ended before its time, because its driver did.
    pub is_cut: bool,
    /// See [`Profile::last`].
    pub said: Result<String, Failure>,
}

/// Hears of windows that end, on the driver's thread; must not wait for the driver.
pub(crate) type Listener = Box<dyn Fn(Ended) + Send + Sync>;

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
        let listener = Arc::new(OnceLock::new());
        let its_listener = listener.clone();
        let run = move || {
            let open = Box::new(move || open().map(|driver| Box::new(driver) as Box<dyn Driver>));
            Worker {
                open,
                driver: None,
                is_closed: false,
                window: None,
                profile: of_worker,
                listener: its_listener,
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
            listener,
        }
    }

    /// Whoever collects windows hears of each one that ends; the first one who asks. From then on
    /// [`Desk::profile_collected`] is owed for each.
    pub(crate) fn on_window_end(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// Whether somebody listens.
    pub(crate) fn is_heard(&self) -> bool {
        self.listener.get().is_some()
    }

    /// The traces of the last window were fetched, or never will be.
    pub(crate) fn profile_collected(&self) {
        let mut profile = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        profile.collecting = None;
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
        self.profile_start_for(Opener::default(), duration)
    }

    /// The same, for somebody.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_start_for(
        &self,
        opener: Opener,
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        self.profile_start_within(self.limits.deadline, opener, duration)
    }

    /// The same for one who has time: an engine may set up its profiler first.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_start_within(
        &self,
        patience: Duration,
        opener: Opener,
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        // Said at once: the driver's thread may be busy with a trace.
        self.profile().is_collected()?;
        self.call_within(patience, move |worker| {
            worker.profile_start(opener, duration)
        })
    }

    /// It ends; what [`Profile::last`] says.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_stop(&self) -> Result<String, Failure> {
        self.call(Worker::profile_stop)
    }

    /// The same for one who has time: engines write their traces before they answer.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_stop_within(&self, patience: Duration) -> Result<String, Failure> {
        self.call_within(patience, Worker::profile_stop)
    }

    /// See [`Driver::profile_trace`]. Whoever fetches one has time.
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn profile_trace(&self, rank: u32, patience: Duration) -> Result<Vec<u8>, Failure> {
        self.call_within(patience, move |worker| worker.driver()?.profile_trace(rank))
    }

    /// See [`Driver::deployment`].
    ///
    /// # Errors
    /// See [`Desk::ranks`].
    pub fn deployment(&self) -> Result<Deployment, Failure> {
        self.call(|worker| worker.driver()?.deployment())
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

    /// Closes the driver, after its window if one is open; every later call is refused. For a process
    /// that ends: the desk's own end closes it too, but nobody can wait for that.
    ///
    /// # Errors
    /// It is not closed, or not yet: late or busy, see [`Desk::ranks`].
    pub fn close(&self) -> Result<(), Failure> {
        self.call(|worker| {
            worker.close();
            Ok(())
        })
    }

    fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Worker) -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Failure> {
        self.call_within(self.limits.deadline, call)
    }

    fn call_within<R: Send + 'static>(
        &self,
        deadline: Duration,
        call: impl FnOnce(&mut Worker) -> Result<R, Failure> + Send + 'static,
    ) -> Result<R, Failure> {
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
