//! One module a command.

pub mod check;
pub mod demo;
pub mod engine;
pub mod envoy;
pub mod policy;
pub mod serve;

use anyhow::Result;
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// Prints a result for programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    // A reader that has seen enough is no failure of ours.
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Ready when the user or the system wants the process to end.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => drop(terminate.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
}
