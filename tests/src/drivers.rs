//! Engine drivers in C.

use crate::root;
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Command;

/// Compiles a driver against the header, as its author would; `options` are the compiler's, such as
/// `-DNAME`.
///
/// # Errors
/// If the compiler fails, with what it says.
pub fn driver_in_c(source: &Path, options: &[String], to: &Path) -> Result<()> {
    let built = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O2",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
        ])
        .arg("-I")
        .arg(root().join("host/engine/include"))
        .args(options)
        .arg("-o")
        .args([to, source])
        .output()?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "cc: {said}");
    Ok(())
}
