//! Native schedulers and kernels, driven from outside: what a policy's calls to `interface engine`
//! are carried to.
//!
//! A [`Driver`] speaks to one engine: a shared library behind the C ABI of
//! `include/pointsman_engine.h` ([`Library`]), HTTP ([`HttpDriver`]), or nothing ([`NullDriver`]).
//! Whoever wants something of an engine holds its [`Desk`]: the driver works on a thread of its
//! own, calls have a deadline, and a driver that hangs or panics costs its callers an error.
//!
//! Drivers in Rust need none of that but the trait ([`export_driver`], without default features).
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pointsman_engine::{Desk, Driver, HttpDialect, HttpDriver, Library, Limits};
//!
//! let library = Library::load("libengine_driver.so")?;
//! let desk = Desk::open(Limits::default(), move || library.open("{}"));
//! desk.knob_set(None, "prefill_decode_interval", 10)?;
//!
//! let url = "http://127.0.0.1:9001";
//! let http = Desk::open(Limits::default(), || HttpDriver::new(url, HttpDialect::Reference));
//! assert_eq!(http.knob_get(0, "prefill_delayer")?, 1);
//! # Ok(()) }
//! ```

pub mod abi;

mod driver;
mod export;

pub use driver::{Deployment, Driver, Failure, Kernel, Knob, TRACE_BYTES};
pub use export::{Open, table};

#[cfg(feature = "host")]
mod desk;
#[cfg(feature = "host")]
mod http;
#[cfg(feature = "host")]
mod library;
#[cfg(feature = "host")]
mod null;
#[cfg(feature = "host")]
pub mod reference;

#[cfg(feature = "host")]
pub mod windows;

#[cfg(feature = "host")]
pub use desk::{Desk, Ended, Limits, OpenWindow, Opener, Profile};
#[cfg(feature = "host")]
pub use http::{HttpDialect, HttpDriver};
#[cfg(feature = "host")]
pub use library::{FileError, Library, LoadError};
#[cfg(feature = "host")]
pub use null::NullDriver;
