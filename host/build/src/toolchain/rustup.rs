//! The target through rustup.

use super::TARGET;
use crate::{Say, process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A mirror that cannot be reached must not hold up the build for longer.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a failure is believed.
const BELIEVED: Duration = Duration::from_secs(3600);

pub(super) fn add_target(memory: &Path, say: Say<'_>) -> Result<(), String> {
    let failed = memory.join("rustup-failed");
    if let Some(why) = remembered(&failed) {
        return Err(format!(
            "{why} (within the last hour; tried again without {})",
            failed.display()
        ));
    }
    say(&format!("toolchain: rustup target add {TARGET}"));
    process::run(
        Command::new("rustup").args(["target", "add", TARGET]),
        LIMIT,
    )
    .inspect_err(|why| {
        // Only saves time: without the note the next build tries again.
        let _ = fs::create_dir_all(memory).and_then(|()| fs::write(&failed, why));
    })
}

fn remembered(failed: &PathBuf) -> Option<String> {
    let written = fs::metadata(failed).and_then(|file| file.modified()).ok()?;
    let age = SystemTime::now().duration_since(written).ok()?;
    (age < BELIEVED)
        .then(|| fs::read_to_string(failed).ok())
        .flatten()
}
