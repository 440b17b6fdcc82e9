//! `pointsman engine try-driver FILE`: what others run beside themselves before they load a driver. Not
//! for people.

use pointsman_engine::Library;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The shared library
    file: PathBuf,
}

/// Loads it. Why not is said on standard output.
pub fn run(args: &Args) -> ExitCode {
    match Library::load(&args.file) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = write!(std::io::stdout(), "{error}");
            ExitCode::FAILURE
        }
    }
}
