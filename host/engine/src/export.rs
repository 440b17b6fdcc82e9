//! A driver written in Rust, behind the C ABI.
//!
//! ```
//! use pointsman_engine::{Driver, Failure, Knob, Open, export_driver};
//!
//! struct Mine;
//!
//! impl Open for Mine {
//!     fn open(_config: &str) -> Result<Self, Failure> {
//!         Ok(Mine)
//!     }
//! }
//!
//! impl Driver for Mine {
//! #   fn ranks(&mut self) -> Result<u32, Failure> { Ok(1) }
//! #   fn knobs(&mut self, _: u32) -> Result<Vec<Knob>, Failure> { Ok(vec![]) }
//! #   fn knob_get(&mut self, _: u32, _: &str) -> Result<i64, Failure> { Err(Failure::Unknown) }
//! #   fn knob_set(&mut self, _: Option<u32>, _: &str, _: i64) -> Result<(), Failure> { Err(Failure::Unknown) }
//! #   fn stat(&mut self, _: u32, _: &str) -> Result<f64, Failure> { Err(Failure::Unknown) }
//!     // ranks, knobs, …
//! }
//!
//! export_driver!(Mine);
//! # fn main() {}
//! ```
//!
//! A panic ends the call with an error; the driver goes on with the next one.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use crate::abi;
use crate::driver::{Driver, Failure, Kernel, Knob};

/// A driver that can be exported.
pub trait Open: Driver + Sized {
    /// Begins, with the driver's own configuration (JSON).
    ///
    /// # Errors
    /// The configuration cannot be, or the engine is not there.
    fn open(config: &str) -> Result<Self, Failure>;
}

/// Exports a type that is [`Open`] from a crate of type `cdylib`.
#[macro_export]
macro_rules! export_driver {
    ($driver:ty) => {
        /// The driver's table, see `pointsman_engine.h`.
        #[unsafe(no_mangle)]
        pub extern "C" fn pointsman_engine_v1() -> *const $crate::abi::Table {
            static TABLE: $crate::abi::Table = $crate::table::<$driver>();
            &raw const TABLE
        }
    };
}

/// The table of a driver.
#[must_use]
pub const fn table<D: Open>() -> abi::Table {
    abi::Table {
        size: size_of::<abi::Table>(),
        version: abi::VERSION,
        reserved: 0,
        open: Some(open::<D>),
        close: Some(close::<D>),
        ranks: Some(ranks::<D>),
        knobs: Some(knobs::<D>),
        knob_get: Some(knob_get::<D>),
        knob_set: Some(knob_set::<D>),
        stat: Some(stat::<D>),
        profile_start: Some(profile_start::<D>),
        profile_stop: Some(profile_stop::<D>),
        kernels: Some(kernels::<D>),
        kernel_choose: Some(kernel_choose::<D>),
        profile_read: Some(profile_read::<D>),
    }
}

/// What a handle points to.
struct Handle<D> {
    driver: D,
    /// What the last answer points to.
    knobs: Vec<Knob>,
    kernels: Vec<Kernel>,
    /// The trace that is being read, and of which rank; not kept when it was read to its end.
    trace: Option<(u32, Vec<u8>)>,
}

// SAFETY of all functions below: the host calls them as the header says, with handles from `open`
// on one thread, and with pointers that are valid through the call.

unsafe extern "C" fn open<D: Open>(
    config: abi::Bytes,
    out: *mut *mut abi::Engine,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let driver = D::open(unsafe { text(config)? })?;
        let handle = Handle {
            driver,
            knobs: Vec::new(),
            kernels: Vec::new(),
            trace: None,
        };
        unsafe { out.write(Box::into_raw(Box::new(handle)).cast()) };
        Ok(())
    })
}

unsafe extern "C" fn close<D>(engine: *mut abi::Engine) {
    let handle = unsafe { Box::from_raw(engine.cast::<Handle<D>>()) };
    guard(null_mut(), || {
        drop(handle);
        Ok(())
    });
}

unsafe extern "C" fn ranks<D: Open>(
    engine: *mut abi::Engine,
    out: *mut u32,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let ranks = unsafe { handle::<D>(engine) }.driver.ranks()?;
        unsafe { out.write(ranks) };
        Ok(())
    })
}

unsafe extern "C" fn knobs<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    out: *mut abi::Knob,
    capacity: usize,
    count: *mut usize,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let handle = unsafe { handle::<D>(engine) };
        handle.knobs = handle.driver.knobs(rank)?;
        let knobs = handle.knobs.iter().map(|knob| abi::Knob {
            name: bytes(&knob.name),
            unit: bytes(&knob.unit),
            low: knob.low,
            high: knob.high,
            value: knob.value,
        });
        unsafe { fill(knobs, out, capacity, count) };
        Ok(())
    })
}

unsafe extern "C" fn knob_get<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    name: abi::Bytes,
    out: *mut i64,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let value = unsafe { handle::<D>(engine).driver.knob_get(rank, text(name)?)? };
        unsafe { out.write(value) };
        Ok(())
    })
}

unsafe extern "C" fn knob_set<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    name: abi::Bytes,
    value: i64,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || unsafe {
        handle::<D>(engine)
            .driver
            .knob_set(one(rank), text(name)?, value)
    })
}

unsafe extern "C" fn stat<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    name: abi::Bytes,
    out: *mut f64,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let value = unsafe { handle::<D>(engine).driver.stat(rank, text(name)?)? };
        unsafe { out.write(value) };
        Ok(())
    })
}

unsafe extern "C" fn profile_start<D: Open>(
    engine: *mut abi::Engine,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        unsafe { handle::<D>(engine) }.driver.profile_start()
    })
}

unsafe extern "C" fn profile_stop<D: Open>(
    engine: *mut abi::Engine,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let said = unsafe { handle::<D>(engine) }.driver.profile_stop()?;
        put(message, &said);
        Ok(())
    })
}

unsafe extern "C" fn kernels<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    operation: abi::Bytes,
    out: *mut abi::Kernel,
    capacity: usize,
    count: *mut usize,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let handle = unsafe { handle::<D>(engine) };
        handle.kernels = handle.driver.kernels(rank, unsafe { text(operation)? })?;
        let kernels = handle.kernels.iter().map(|kernel| abi::Kernel {
            name: bytes(&kernel.name),
            low_m: kernel.low_m,
            high_m: kernel.high_m,
            ranks: kernel.ranks,
            chosen: kernel.chosen.into(),
            nanoseconds: kernel.nanoseconds.unwrap_or(0),
        });
        unsafe { fill(kernels, out, capacity, count) };
        Ok(())
    })
}

unsafe extern "C" fn kernel_choose<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    operation: abi::Bytes,
    name: abi::Bytes,
    low_m: u32,
    high_m: u32,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || unsafe {
        let driver = &mut handle::<D>(engine).driver;
        driver.kernel_choose(one(rank), text(operation)?, text(name)?, (low_m, high_m))
    })
}

unsafe extern "C" fn profile_read<D: Open>(
    engine: *mut abi::Engine,
    rank: u32,
    offset: u64,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
    message: *mut abi::Message,
) -> i32 {
    guard(message, || {
        let handle = unsafe { handle::<D>(engine) };
        let trace = match handle.trace.take() {
            Some((of, trace)) if of == rank && offset > 0 => trace,
            _ => handle.driver.profile_trace(rank)?,
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = trace.get(from..).unwrap_or_default();
        let piece = rest.len().min(capacity);
        unsafe {
            buffer.copy_from_nonoverlapping(rest.as_ptr().cast(), piece);
            length.write(piece);
        }
        if piece > 0 {
            handle.trace = Some((rank, trace));
        }
        Ok(())
    })
}

fn one(rank: u32) -> Option<u32> {
    (rank != abi::ALL_RANKS).then_some(rank)
}

unsafe fn handle<'a, D>(engine: *mut abi::Engine) -> &'a mut Handle<D> {
    unsafe { &mut *engine.cast::<Handle<D>>() }
}

unsafe fn text<'a>(bytes: abi::Bytes) -> Result<&'a str, Failure> {
    if bytes.length == 0 {
        return Ok("");
    }
    let bytes = unsafe { std::slice::from_raw_parts(bytes.data.cast::<u8>(), bytes.length) };
    std::str::from_utf8(bytes).map_err(|_| Failure::Unavailable("wanted UTF-8".to_owned()))
}

fn bytes(text: &str) -> abi::Bytes {
    abi::Bytes {
        data: text.as_ptr().cast(),
        length: text.len(),
    }
}

unsafe fn fill<T>(all: impl Iterator<Item = T>, out: *mut T, capacity: usize, count: *mut usize) {
    let mut written = 0;
    for one in all.take(capacity) {
        unsafe { out.add(written).write(one) };
        written += 1;
    }
    unsafe { count.write(written) };
}

/// No panic leaves a function; a failure is a code and words.
fn guard(message: *mut abi::Message, call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let done = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(Failure::Unavailable("the driver panicked".to_owned())));
    match done {
        Ok(()) => abi::OK,
        Err(Failure::Unknown) => abi::UNKNOWN,
        Err(failure) => {
            put(message, &failure.to_string());
            abi::UNAVAILABLE
        }
    }
}

/// What there is room for.
fn put(message: *mut abi::Message, words: &str) {
    // SAFETY: null, or with room for `capacity` bytes.
    if let Some(message) = unsafe { message.as_mut() } {
        message.length = words.len().min(message.capacity);
        unsafe {
            (message.data).copy_from(words.as_ptr().cast(), message.length);
        }
    }
}
