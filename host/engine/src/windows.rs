//! Profiling windows over several engines, collected: what each engine said, each rank's trace as a
//! file, all of them merged into one picture, and an index that names them.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pointsman_engine::windows::{Collector, Driven, Settings};
//! use pointsman_engine::{Desk, Limits, NullDriver};
//! use std::time::Duration;
//!
//! let desk = Desk::open(Limits::default(), || Ok(NullDriver));
//! let engines = move || vec![Driven { name: "a".into(), role: "serve", desk: desk.clone() }];
//! let settings = Settings { folder: Some("profiles".into()), ..Settings::default() };
//! let collector = Collector::start(settings, engines)?;
//! let opened = collector.open("me", |_| true, Some(Duration::from_secs(5)));
//! let index = collector.wait(&opened.window, Duration::from_secs(60));
//! # Ok(()) }
//! ```
//!
//! A window ends on the driver's thread; its traces are fetched rank by rank after that, other calls in
//! between, and written by a few threads of the collector's own. Windows that a policy opens are collected
//! like those of an operator. Nothing that goes wrong with the files keeps a window from ending: it is an
//! error in the index. Without a folder there is the index alone, and no trace is fetched.

mod collector;
mod folder;
mod index;
mod merge;
mod trace;

pub use collector::{Collector, Driven, Opened, STOP_PATIENCE, Settings};
pub use index::{Engine, File, Index, State, Trace};
