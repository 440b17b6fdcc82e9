//! What a driver does, in the words of the contract (`wit/host.wit`, `interface engine`).

/// A setting of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    /// As the engine calls it.
    pub name: String,
    /// Of the value.
    pub unit: String,
    /// Lowest value.
    pub low: i64,
    /// Highest value.
    pub high: i64,
    /// Value now.
    pub value: i64,
}

/// One way to compute an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// As the engine calls it.
    pub name: String,
    /// Fewest rows.
    pub low_m: u32,
    /// Most rows.
    pub high_m: u32,
    /// Ranks taking part.
    pub ranks: u32,
    /// Whether it is the one in use.
    pub chosen: bool,
    /// Its last timing.
    pub nanoseconds: Option<u64>,
}

/// The longest trace of a rank, bytes: about 500,000 events.
pub const TRACE_BYTES: usize = 64 << 20;

/// What an engine was started with, as far as it is known. Numbers are of one data-parallel rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deployment {
    /// Tokens of one forward pass, at most.
    pub max_num_batched_tokens: Option<u64>,
    /// Sequences that run at one time, at most.
    pub max_num_seqs: Option<u64>,
    /// Draft tokens that a sequence proposes in a step (K).
    pub num_speculative_tokens: Option<u64>,
    /// Ranks over which one sequence's cache is spread while it decodes; 1: not.
    pub decode_context_parallel_size: Option<u64>,
    /// Ranks of tensor parallelism.
    pub tensor_parallel_size: Option<u64>,
    /// Ranks of data parallelism, which the host routes to.
    pub data_parallel_size: Option<u64>,
}

/// Why a call did nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Not granted, or not now. Never a driver's own answer.
    #[error("denied: the policy is not granted this engine in the configuration, or is in `route`")]
    Denied,
    /// The engine does not know the name, the rank, or the whole function.
    #[error("the engine does not know that name or rank")]
    Unknown,
    /// The engine did not do it; its words.
    #[error("{0}")]
    Unavailable(String),
}

#[cfg(feature = "host")]
impl Failure {
    pub(crate) fn unavailable(why: impl ToString) -> Self {
        Self::Unavailable(why.to_string())
    }
}

/// Speaks to one engine. Called by one thread, one call at a time; a call may take as long as it
/// takes (see [`crate::Desk`]).
///
/// Every function fails with what [`Failure`] says; those with a body here are optional.
#[allow(clippy::missing_errors_doc)]
pub trait Driver {
    /// How many ranks there are, from 0.
    fn ranks(&mut self) -> Result<u32, Failure>;
    /// The settings of a rank's scheduler.
    fn knobs(&mut self, rank: u32) -> Result<Vec<Knob>, Failure>;
    /// One of them.
    fn knob_get(&mut self, rank: u32, name: &str) -> Result<i64, Failure>;
    /// Sets one; none: of every rank. All or none are set.
    fn knob_set(&mut self, rank: Option<u32>, name: &str, value: i64) -> Result<(), Failure>;
    /// A number that the engine reports.
    fn stat(&mut self, rank: u32, name: &str) -> Result<f64, Failure>;
    /// A profiling window begins.
    fn profile_start(&mut self) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }
    /// It ends; what there is to say of it: a summary, or where the trace is.
    fn profile_stop(&mut self) -> Result<String, Failure> {
        Err(Failure::Unknown)
    }
    /// What a rank did in the last window that ended, in the Chrome trace event format, of at most
    /// [`TRACE_BYTES`]. Unknown: traces stay where the engine writes them.
    fn profile_trace(&mut self, _rank: u32) -> Result<Vec<u8>, Failure> {
        Err(Failure::Unknown)
    }
    /// What the engine was started with, as far as it says.
    fn deployment(&mut self) -> Result<Deployment, Failure> {
        Err(Failure::Unknown)
    }
    /// The ways to compute an operation.
    fn kernels(&mut self, _rank: u32, _operation: &str) -> Result<Vec<Kernel>, Failure> {
        Err(Failure::Unknown)
    }
    /// Takes one for a range of rows; no rank: on all of them.
    fn kernel_choose(
        &mut self,
        _rank: Option<u32>,
        _operation: &str,
        _name: &str,
        _rows: (u32, u32),
    ) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }
}
