//! One engine's traces, rank by rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::folder::{Partial, WINDOW_BYTES, file_name};
use super::super::index::{Engine, Trace};
use crate::desk::Desk;
use crate::driver::Failure;

/// For one trace.
const TRACE_PATIENCE: Duration = Duration::from_secs(120);
/// For all of an engine.
const ENGINE_PATIENCE: Duration = Duration::from_secs(600);
/// Of an engine.
const MAX_RANKS: u32 = 1024;

/// What is to be fetched, and where it goes. The desk opens no window until this is dropped.
pub(super) struct Fetch {
    pub(super) window: String,
    pub(super) part: Engine,
    pub(super) desk: Desk,
    pub(super) partial: Partial,
    /// Of the whole window, so far.
    pub(super) bytes: Arc<AtomicU64>,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.desk.profile_collected();
    }
}

impl Fetch {
    /// All that there is.
    pub(super) fn run(self) -> Engine {
        let mut part = self.part.clone();
        let ranks = match self.desk.ranks() {
            Ok(ranks) => ranks,
            // It does not say, so it hands none out either.
            Err(Failure::Unknown) => 0,
            Err(error) => {
                let why = format!("its traces were not fetched: {error}");
                part.error.get_or_insert(why);
                0
            }
        };
        if ranks > MAX_RANKS {
            let why = format!("{ranks} ranks: the traces of {MAX_RANKS} are fetched");
            part.error.get_or_insert(why);
        }
        let begun = Instant::now();
        for rank in 0..ranks.min(MAX_RANKS) {
            if begun.elapsed() > ENGINE_PATIENCE {
                let why = format!("the traces before it took {ENGINE_PATIENCE:?}");
                part.traces.push(missing(rank, why));
                continue;
            }
            match self.desk.profile_trace(rank, TRACE_PATIENCE) {
                Ok(bytes) => part.traces.push(self.put(rank, &bytes)),
                // Traces stay where the engine writes them.
                Err(Failure::Unknown) if rank == 0 => break,
                Err(error) => part.traces.push(missing(rank, error.to_string())),
            }
        }
        part
    }

    fn put(&self, rank: u32, bytes: &[u8]) -> Trace {
        let before = self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if before + bytes.len() as u64 > WINDOW_BYTES {
            return missing(
                rank,
                format!("the window has more than {WINDOW_BYTES} bytes"),
            );
        }
        let name = format!("{}-rank-{rank}", file_name(&self.part.engine));
        let (file, valid) = self.partial.put(&name, bytes);
        match file {
            Ok(file) => Trace {
                rank,
                file: Some(file),
                error: valid.err().map(|why| format!("this is no trace: {why}")),
            },
            Err(error) => missing(rank, error.to_string()),
        }
    }
}

fn missing(rank: u32, why: String) -> Trace {
    Trace {
        rank,
        file: None,
        error: Some(why),
    }
}
