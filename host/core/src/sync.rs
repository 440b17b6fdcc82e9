//! What the threads share, from one place: the model check (`tests/interleavings.rs`) compiles these
//! sources with a scheduler of its own under them.

pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
