//! The control instance: one of the policy that decides now, on a thread of its own, which gets
//! `tick` and nothing else. There, and only there, a policy may drive engines: what takes
//! milliseconds must not stand in the way of a request.
//!
//! The first tick comes one interval after the policy was put in place. One that takes longer than
//! its interval delays the next; none is made up for.

use crate::driving::Engines;
use crate::instance::Instance;
use crate::slot::Slot;
use pointsman_core::{Failure, Source as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Without ticks to give: how long until it looks whether a pause is over.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The thread; it ends when this is dropped, or with the tick that it is in.
#[derive(Debug)]
pub struct Control {
    slot: Arc<Slot>,
    ends: Arc<AtomicBool>,
}

impl Control {
    /// Starts it. `failed` hears of every tick that fails: of which policy, and how.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start(
        slot: Arc<Slot>,
        engines: Arc<dyn Engines>,
        failed: impl Fn(&str, &Failure) + Send + 'static,
    ) -> std::io::Result<Control> {
        let ends = Arc::new(AtomicBool::new(false));
        let (of, until) = (slot.clone(), ends.clone());
        let name = "pointsman-control".to_owned();
        thread::Builder::new()
            .name(name)
            .spawn(move || run(&of, &engines, &failed, &until))?;
        Ok(Control { slot, ends })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.slot.announce();
    }
}

/// The instance of one generation.
struct Ticking {
    policy: String,
    instance: Instance,
    interval: Duration,
    next: Instant,
}

impl Ticking {
    /// None: paused, or it wants no ticks.
    fn of(slot: &Slot) -> Option<Ticking> {
        let (prepared, cells) = slot.prepared()?;
        let interval = prepared.tick_interval()?;
        Some(Ticking {
            policy: prepared.policy().name.clone(),
            instance: Instance::new(prepared, cells),
            interval,
            next: Instant::now() + interval,
        })
    }
}

fn run(
    slot: &Slot,
    engines: &Arc<dyn Engines>,
    failed: &dyn Fn(&str, &Failure),
    ends: &AtomicBool,
) {
    let mut generation = slot.generation();
    let mut ticking = Ticking::of(slot);
    while !ends.load(Ordering::Acquire) {
        let now = Instant::now();
        if let Some(due) = ticking.as_mut().filter(|ticking| ticking.next <= now) {
            if let Err(failure) = due.instance.tick(slot.now_ms(), slot.overview(), engines) {
                failed(&due.policy, &failure);
                tracing::warn!(policy = due.policy, "a tick failed: {failure}");
                slot.failed(generation, &failure);
            }
            due.next = (due.next + due.interval).max(Instant::now());
        }
        let next = ticking.as_ref().map(|ticking| ticking.next);
        let wait = next.map_or(LONGEST_WAIT, |next| {
            next.saturating_duration_since(Instant::now())
        });
        let changed = slot.wait(generation, wait);
        if changed != generation {
            generation = changed;
            let next = Ticking::of(slot);
            if let Some(was) = &ticking
                && next.as_ref().is_none_or(|next| next.policy != was.policy)
            {
                engines.ended(&was.policy);
            }
            ticking = next;
        }
    }
}
