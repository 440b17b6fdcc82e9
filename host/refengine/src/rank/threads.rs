//! The ranks' threads.

use std::thread::{Builder, JoinHandle};

use tokio::runtime::Runtime;

use crate::error::Error;
use crate::gate::Gate;
use crate::rank::{RankHandle, RankTask};

/// Nothing recurses here: 1,024 ranks take little address space, and of it only what they touch.
const STACK_BYTES: usize = 256 << 10;

/// One thread a rank; dropped, they are told to end, and waited for.
#[derive(Debug, Default)]
pub(crate) struct Threads(Vec<(RankHandle, JoinHandle<()>)>);

impl Threads {
    /// One more, for this rank.
    ///
    /// # Errors
    /// The system has no more threads, or no memory.
    pub(crate) fn start(
        &mut self,
        rank: usize,
        handle: &RankHandle,
        task: RankTask,
        gate: Gate,
    ) -> Result<(), Error> {
        let failed = |cause| Error::Thread { rank, cause };
        // Timers only: a rank has no I/O.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map(|runtime| Timers(Some(runtime)))
            .map_err(failed)?;
        let thread = Builder::new()
            .name(format!("rank-{rank}"))
            .stack_size(STACK_BYTES)
            .spawn(move || runtime.block_on(task.run(gate)))
            .map_err(failed)?;
        self.0.push((handle.clone(), thread));
        Ok(())
    }
}

/// Without a thread it is dropped where the server is started, in another runtime: there it must not
/// wait for anything.
struct Timers(Option<Runtime>);

impl Timers {
    fn block_on(&self, future: impl Future<Output = ()>) {
        if let Some(runtime) = &self.0 {
            runtime.block_on(future);
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        for (handle, _) in &self.0 {
            handle.end();
        }
        for (rank, (_, thread)) in self.0.drain(..).enumerate() {
            if thread.join().is_err() {
                tracing::error!(rank, "the rank's thread had panicked");
            }
        }
    }
}
