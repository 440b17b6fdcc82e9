//! One module a command.

pub mod check;
pub mod demo;
pub mod engine;
pub mod policy;
pub mod serve;

use anyhow::Result;
use serde::Serialize;

/// Prints a result for programs.
fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
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
