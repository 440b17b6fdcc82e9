//! A fence around the generator: its panics become errors, its recursion has room.
//!
//! `wasmtime-environ` and `wit-component` check untrusted components, but they also assert what they
//! believe to have checked (the WIT decoder does panic on some valid components that no tool makes), and
//! walk nested types by recursion; their insides are not a stable interface. Whoever hands a component to the fuser must get an answer, so all of it runs on a thread
//! of its own. What it was building when it panicked is dropped: nothing half made is looked at again.

use crate::Error;
use std::any::Any;
use std::thread;

/// For types that are nested as deep as [`crate::fuse`] lets them be.
const STACK: usize = 64 << 20;

/// Runs it. The panic hook of the process still sees a panic.
pub(crate) fn fenced<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("fuse".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, work)
            .map_err(|error| Error::internal("starting a thread", error))?;
        (thread.join()).unwrap_or_else(|panic| {
            Err(Error::internal(
                "generating the module",
                words(panic.as_ref()),
            ))
        })
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_with_its_words() {
        let error = fenced::<()>(|| panic!("number {}", 7)).unwrap_err();
        assert!(error.to_string().contains("failed: number 7"), "{error}");
    }
}
